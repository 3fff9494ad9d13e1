"""Descriptions of settings come from the class docstrings."""

from __future__ import annotations

from evorl.config.descriptions import described_settings, field_descriptions
from evorl.config.nodes import completed
from evorl.ops.optimization import Optimizer
from evorl.types import PyTreeNode


class Base(PyTreeNode):
    """A base.

    Attributes:
        size: how large; ``None`` for as large
            as it gets.
        speed: how fast.
    """

    size: int | None = None
    speed: float = 1.0


class Heir(Base):
    """A subclass that documents one of them again.

    Attributes:
        speed: how fast it really is.

    Raises:
        ValueError: never.
    """

    optimizer: Optimizer = Optimizer("sgd")


def test_sentences_are_those_of_the_class_or_its_bases() -> None:
    assert field_descriptions(Heir) == {
        "size": "how large; null for as large as it gets",
        "speed": "how fast it really is",
    }


def test_settings_of_a_part_come_after_itself_with_their_own_sentences() -> None:
    settings = list(described_settings(Heir, completed(Heir, {"speed": 2.0}), "above."))
    names = [name for name, _, _ in settings]
    assert names[:4] == ["above.size", "above.speed", "above.optimizer", "above.optimizer.name"]
    assert settings[1] == ("above.speed", 2.0, "how fast it really is")
    meanings = field_descriptions(Optimizer)
    of_part = {name.removeprefix("above.optimizer."): text for name, _, text in settings[3:]}
    assert of_part["max_grad_norm"] == meanings["max_grad_norm"] != ""
