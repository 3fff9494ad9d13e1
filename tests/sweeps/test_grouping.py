"""Settings that differ only in numbers share a program."""

from __future__ import annotations

from typing import Any

from evorl.sweeps.grouping import grouped
from tests.support.errors import raises_naming
from tests.support.small_workflows import PPO_CONFIG, small


def settings_of(*settings: dict[str, Any]) -> list:
    def built(setting: Any) -> Any:
        changes: dict[str, Any] = {part: dict(PPO_CONFIG[part]) for part in ("agent", "optimizer")}
        for path, value in setting.items():
            part, _, name = path.rpartition(".")
            (changes[part] if part else changes)[name] = value
        return small("ppo", **changes)

    return list(grouped(settings, built))


def test_numbers_share_a_program_and_structure_does_not() -> None:
    groups = settings_of(
        {"agent.clip_epsilon": 0.1, "num_minibatches": 1, "optimizer.max_grad_norm": None},
        {"agent.clip_epsilon": 0.2, "num_minibatches": 2, "optimizer.max_grad_norm": None},
        {"agent.clip_epsilon": 0.3, "num_minibatches": 1, "optimizer.max_grad_norm": 0.5},
        {"agent.clip_epsilon": 0.4, "num_minibatches": 1, "optimizer.max_grad_norm": None},
    )
    assert [group.members for group in groups] == [(0, 3), (1,), (2,)]
    assert groups[0].paths == ("agent.clip_epsilon",)
    assert groups[0].numbers == ((0.1,), (0.4,))
    assert groups[2].paths == ("agent.clip_epsilon", "optimizer.max_grad_norm")


def test_what_the_loop_reads_is_no_number_of_a_row() -> None:
    groups = settings_of({"total_timesteps": 1000.0}, {"total_timesteps": 2000.0})
    assert [group.members for group in groups] == [(0,), (1,)]
    assert groups[0].paths == ()


def test_every_number_is_checked() -> None:
    with raises_naming(ValueError, "discount", "[0, 1]"):
        settings_of({"discount": 0.9}, {"discount": 1.5})
