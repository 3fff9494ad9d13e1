"""Every mutation applies to the sources exactly once; incomplete mutations raise errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from benchmarks.machine import CHECKOUT
from benchmarks.mutations.mutation import Mutation, load_mutations
from tests.support.errors import raises_naming

MUTATIONS = load_mutations()
CONFIG: dict[str, Any] = {
    "fault": "One is two.",
    "file": "evorl/one.py",
    "text": "one = 1",
    "replacement": "one = 2",
    "tests": ["tests/test_one.py"],
}


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 60
    assert len({mutation.fault for mutation in MUTATIONS.values()}) == len(MUTATIONS)


@pytest.mark.parametrize("file", sorted({mutation.file for mutation in MUTATIONS.values()}))
def test_every_mutation_applies_once_and_compiles(file: str) -> None:
    source = (CHECKOUT / file).read_text(encoding="utf-8")
    for mutation in MUTATIONS.values():
        if mutation.file == file:
            mutated = mutation.mutated(source)
            assert mutated != source
            if file.endswith(".py"):
                compile(mutated, f"{file} with {mutation.name}", "exec")
            else:
                assert OmegaConf.create(mutated)


def test_the_tests_of_mutations_exist() -> None:
    """Node ids name a file, and functions or classes in this file or in a contract that its classes inherit."""
    contracts = "".join(path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests/conformance").glob("*.py"))
    for mutation in MUTATIONS.values():
        for test in mutation.tests:
            file, *names = test.split("[")[0].split("::")
            assert (CHECKOUT / file).is_file(), f"{mutation.name}: {test}"
            text = (CHECKOUT / file).read_text(encoding="utf-8") + contracts
            assert all(f"def {name}(" in text or f"class {name}(" in text for name in names), f"{mutation.name}: {test}"


def test_a_text_must_occur_exactly_once() -> None:
    mutation = Mutation.from_config("two", CONFIG)
    assert mutation.mutated("one = 1\n") == "one = 2\n"
    with raises_naming(ValueError, "two", "evorl/one.py", "0 times", "update the mutation"):
        mutation.mutated("one = 3")
    with raises_naming(ValueError, "two", "2 times"):
        mutation.mutated("one = 1\none = 1")
    with raises_naming(ValueError, "two", "replacement equals"):
        Mutation.from_config("two", {**CONFIG, "replacement": "one = 1"}).mutated("one = 1")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [({"tests": []}, ("tests", "[]")), ({"tests": "tests/a.py"}, ("tests", "a.py")), ({"reason": "x"}, ("reason",))],
)
def test_incomplete_mutations_are_refused(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, "mutation two", *parts):
        Mutation.from_config("two", {**CONFIG, **changes})


def test_a_name_occurs_once(tmp_path: Path) -> None:
    entry = "two: {fault: f, file: a.py, text: a, replacement: b, tests: [c.py]}\n"
    for name in ("first.yaml", "second.yaml"):
        (tmp_path / name).write_text(entry, encoding="utf-8")
    with raises_naming(ValueError, "two", "twice", "second.yaml"):
        load_mutations(tmp_path)
