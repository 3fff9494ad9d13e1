"""Architecture rule for the names that packages export."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.source_tree import SourceFile


def exports_of_packages(files: list[SourceFile]) -> list[str]:
    """A package's ``__init__`` imports for type checkers exactly the names that it loads on first access.

    They are defined below the package; the top package exports names of every layer.
    """
    breaches = []
    for file in files:
        if not (file.in_package and file.is_init):
            continue
        tables = [n for n in ast.walk(file.tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "lazy_exports"]
        loaded = {name for table in tables for name in _late_names(file.module, table)}
        for name in sorted(loaded ^ {name for name, _ in file.exports}):
            seen = "loads late but does not import for type checkers" if name in loaded else "does not load late"
            breaches.append(f"{file.path}: exports {name}, which it {seen}")
        breaches += [
            f"{file.path}:{line}: exports {name}, which is defined elsewhere"
            for name, line in file.exports
            if not name.startswith(f"{file.module}.")
        ]
    return breaches


def _late_names(package: str, table: ast.Call) -> Iterator[str]:
    """Yield the full names that a call of ``lazy_exports`` lists."""
    for keyword in table.keywords:
        value = ast.literal_eval(keyword.value)
        if keyword.arg == "packages":
            yield from (f"{package}.{name}" for name in value.split())
        elif keyword.arg != "others":
            modules = value if keyword.arg is None else {keyword.arg: value}  # None for **{...}
            yield from (f"{package}.{module}.{name}" for module, names in modules.items() for name in names.split())
