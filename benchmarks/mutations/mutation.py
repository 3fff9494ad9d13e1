"""Faults as data: each mutation replaces one text in one source file, and names the tests that should fail.

``faults/*.yaml`` map names to mutations, in files by subject. The keys are the fields of ``Mutation``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FAULTS = Path(__file__).with_name("faults")


class MutationError(ValueError):
    """Raised if a mutation is incomplete, or does not apply to the source."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
        name: unique name.
        fault: the fault in one sentence.
        file: source file, relative to the checkout.
        text: text that occurs exactly once in the file.
        replacement: text that replaces it.
        tests: test files or node ids that should fail.
    """

    name: str
    fault: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, Any]) -> Mutation:
        """Build a mutation from an entry of a YAML file.

        Raises:
            MutationError: a key is missing or unknown, or the list of tests is empty.
        """
        expected = {field.name for field in dataclasses.fields(cls)} - {"name"}
        if set(config) != expected:
            raise MutationError(f"mutation {name}: expected the keys {sorted(expected)}, got {sorted(config)}.")
        if not config["tests"] or isinstance(config["tests"], str):
            raise MutationError(f"mutation {name}: tests must be a list of at least one test, got {config['tests']!r}.")
        return cls(name=name, **{**config, "tests": tuple(config["tests"])})

    def mutated(self, source: str) -> str:
        """Return the source with the fault.

        Raises:
            MutationError: the text does not occur exactly once, or the replacement equals it.
        """
        if (count := source.count(self.text)) != 1:
            raise MutationError(
                f"mutation {self.name}: its text must occur exactly once in {self.file}, but occurs {count} times: "
                f"update the mutation.\n{self.text}"
            )
        if self.replacement == self.text:
            raise MutationError(f"mutation {self.name}: its replacement equals the replaced text.")
        return source.replace(self.text, self.replacement)


def load_mutations(folder: Path = FAULTS) -> dict[str, Mutation]:
    """Return all mutations by name, in the order of files and entries.

    Raises:
        MutationError: a mutation is incomplete, or a name occurs twice.
    """
    mutations: dict[str, Mutation] = {}
    for path in sorted(folder.glob("*.yaml")):
        for name, config in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            if name in mutations:
                raise MutationError(f"mutation {name} occurs twice: rename the one in {path.name}.")
            mutations[name] = Mutation.from_config(name, config)
    return mutations
