"""Measures of the package's source, by its syntax trees: functions, imports and the workflow's interface."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.plain_english import python_breaches
from tests.support.source_tree import LOAD_TABLES, SourceFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
MAX_POSITIONAL = 6


def _functions(files: list[SourceFile]) -> Iterator[Function]:
    for file in files:
        if file.in_package:
            yield from file.functions


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def functions_of_config(files: list[SourceFile]) -> int:
    """Return the number of functions with a parameter ``config``."""
    return sum(any(p.arg == "config" for p in _parameters(function)) for function in _functions(files))


def functions_of_dict_config(files: list[SourceFile]) -> int:
    """Return the number of functions with a parameter annotated as OmegaConf's ``DictConfig``."""
    return sum(
        any(p.annotation is not None and "DictConfig" in ast.unparse(p.annotation) for p in _parameters(function))
        for function in _functions(files)
    )


def imports_in_functions(files: list[SourceFile]) -> int:
    """Return the number of import statements inside functions."""
    found = {
        (file.path, node.lineno)
        for file in files
        if file.in_package
        for function in file.functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(found)


def load_strings_in_tables(files: list[SourceFile]) -> int:
    """Return the number of strings such as ``"evorl.ops.trees:pack"``, which load a name late, in tables."""
    return sum(len(file.loads) for file in files if file.path in LOAD_TABLES)


def other_load_strings(files: list[SourceFile]) -> int:
    """Return the number of strings that load a name late outside of tables."""
    return sum(len(file.loads) for file in files if file.in_package and file.path not in LOAD_TABLES)


def functions_of_many_positions(files: list[SourceFile]) -> int:
    """Return the number of functions with more than six positional parameters, ``self`` and ``cls`` not counted."""

    def count(function: Function) -> int:
        names = [p.arg for p in (*function.args.posonlyargs, *function.args.args)]
        return len(names) - (names[:1] in (["self"], ["cls"]))

    return sum(count(function) > MAX_POSITIONAL for function in _functions(files))


def english_breaches(files: list[SourceFile]) -> int:
    """Return the number of banned openings and constructions in docstrings and comments of the package."""
    return sum(len(python_breaches(file.text)) for file in files if file.in_package)


def package_lines(files: list[SourceFile]) -> int:
    """Return the number of lines of the package."""
    return sum(file.text.count("\n") for file in files if file.in_package)


def interface(files: list[SourceFile], path: str, name: str) -> tuple[int, int, int]:
    """Return the methods, fields and class variables that a class declares itself.

    Args:
        files: of the repository.
        path: of the file with the class.
        name: of the class.
    """
    tree = next(file.tree for file in files if file.path == path)
    body = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name).body
    methods = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in body)
    annotated = [ast.unparse(node.annotation) for node in body if isinstance(node, ast.AnnAssign)]
    class_variables = sum(annotation.startswith("ClassVar") for annotation in annotated)
    return methods, len(annotated) - class_variables, class_variables
