"""Lookup of names in configs: suggestions for unknown names, and imports of the code that settings name."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from evorl.config.gate import ForeignCodeError, admit
from evorl.config.synonyms import advice_for, names_for_synonym

SHIPPED_WORKFLOWS = "evorl.algorithms"  # package of the classes that a config may name as its workflow
USER_MODULES: set[str] = set()  # modules outside evorl that settings named
_MAIN = "__main__"  # module of a script or a notebook
_IF_MOVED = " If it was renamed or moved, use its new name. For a stored run, set it in the command or in config.yaml."
_LISTED = 12  # maximum number of valid names that are listed in addition to a suggestion
_MAX_LIST = 1_000  # maximum number of characters of a list of valid names
_MAX_NAME = 100  # maximum number of characters of an unknown name in a message
_MAX_SYNONYMS = 3  # maximum number of suggested synonyms


def did_you_mean(name: object, valid: Iterable[object]) -> str:
    """Return `` Did you mean 'relu'?`` for the closest valid name, with a leading space; empty if none is close.

    Synonyms have precedence: ``discount`` for ``gamma``. Case is ignored. Dotted names with the same last part are
    closer than others. For a setting of other libraries without a counterpart in evorl, the text advises what to do
    instead.
    """
    options = [str(option) for option in valid]
    if remark := advice_for(str(name)):
        return f" {remark}"
    if synonyms := names_for_synonym(str(name), options):
        return f" Did you mean {' or '.join(map(repr, synonyms[:_MAX_SYNONYMS]))}?"
    lowercase = {option.lower(): option for option in options if option != str(name)}
    unknown = str(name).lower()
    same_end = [option for option in lowercase if option.rpartition(".")[2] == unknown.rpartition(".")[2]]
    closest = difflib.get_close_matches(unknown, same_end or lowercase, n=1, cutoff=0.0 if same_end else 0.6)
    return f" Did you mean {lowercase[closest[0]]!r}?" if closest else ""


def no_such(kind: str, name: object, valid: Iterable[object]) -> str:
    """Return the message for an unknown name: ``unknown torso 'natur'. Did you mean 'nature'? Available: ...``

    The message lists valid names (of dotted names, those at the same level) in up to 1,000 characters. If there are
    many names and one is close, the message contains only the suggestion.
    """
    options = [str(option) for option in valid]
    hint = did_you_mean(name, options)
    above = str(name).rpartition(".")[0]
    siblings = [option for option in options if option.rpartition(".")[0] == above]
    siblings = siblings or [option for option in options if "." not in option] or options
    available = "" if not siblings or (hint and len(siblings) > _LISTED) else f" Available: {listed(siblings)}."
    text = repr(name)
    text = text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."
    return f"unknown {kind} {text}.{hint}{available}"


def listed(names: Sequence[str]) -> str:
    """Return names separated by commas; beyond ``_MAX_LIST`` characters, only the number of remaining names."""
    text = ", ".join(names)
    if len(text) <= _MAX_LIST:
        return text
    text = text[:_MAX_LIST].rpartition(", ")[0]
    return f"{text} and {len(names) - text.count(', ') - 1:,} others"


def load(path: str) -> Any:
    """Import the module of ``"package.module:name"`` and return the member.

    This lets a base class or factory list its variants without importing them. The path must be a constant in the code;
    for paths in settings use ``load_named``.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def path_of(member: type) -> str:
    """Return the path of a class, ``"package.module:name"``, as ``load`` and configs use it."""
    return f"{member.__module__}:{member.__qualname__}"


def name_of(function: str | Callable[..., object]) -> str:
    """Return the name ``package.module:name`` of a user's object, or raise ``ValueError`` if it cannot be imported."""
    if isinstance(function, str):
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    module = _MAIN if module == "__mp_main__" else module  # in a process that multiprocessing spawned
    if getattr(sys.modules.get(str(module)), name, None) is not function:
        raise ValueError(f"{function!r} cannot be imported by name: define it at the top level of a module.")
    return f"{module}:{name}"


def is_custom_name(value: Any) -> bool:
    """Return True if a value names a user-defined part: a string with a colon between module and name."""
    return isinstance(value, str) and ":" in value


def name_and_options(value: Any) -> tuple[Any, dict[str, Any]]:
    """Split a value, a name or a mapping with ``name`` and options, into both; a missing name is ``None``."""
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    return options.pop("name", None), options


def load_named(path: Any, setting: str) -> Callable[..., Any]:
    """Import the function or class that a setting names, if ``evorl.config.gate`` admits the name.

    Args:
        path: value of the setting, ``"package.module:function"``.
        setting: name of the setting, for messages.

    Raises:
        ValueError: ``path`` is not like ``"package.module:function"``, cannot be imported, or names no callable.
        ForeignCodeError: an untrusted source names it, and the user does not allow it.
    """
    module_name, colon, name = str(path).partition(":")
    if not (isinstance(path, str) and module_name and colon and name):
        raise ValueError(f"{setting} must have the form package.module:function, got {path!r}.")
    admit(path, setting)
    module = _import_for(module_name, f"{setting}={path}")
    function = getattr(module, name, None)
    if module_name == _MAIN and not hasattr(module, name):
        raise ValueError(f"{setting}={path}: {_no_such_in_main(name)}")
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ValueError(f"{setting}={path}: {no_such(f'function of {module_name}', name, functions)}{_IF_MOVED}")
    return function


def _no_such_in_main(name: str, separator: str = ":") -> str:
    return (
        f"this program does not define {name}. If a stored run's script or notebook does, define it here before you "
        f"load the run, or move it to a module on PYTHONPATH, such as my_parts.py, and use my_parts{separator}{name}."
    )


def _import_for(module_name: str, setting: str) -> ModuleType:
    """Import the module, admitted by the gate, that a setting names; ``setting`` includes the value, for messages."""
    try:
        module = importlib.import_module(module_name)
    except ForeignCodeError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            parent = missing.rpartition(".")[0]
            paths = getattr(sys.modules.get(parent), "__path__", [])
            problem = no_such("module", missing, [f"{parent}.{module.name}" for module in pkgutil.iter_modules(paths)])
            if not parent:
                problem = f"Python cannot find a module {missing!r}: add its folder to PYTHONPATH, or install it."
            raise ValueError(f"{setting}: {problem}{_IF_MOVED}") from error
        # A module of evorl reports missing packages itself.
        if module_name.partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise ValueError(f"{setting}: the module {module_name} cannot be imported: {describe_error(error)}") from error
    if module_name.partition(".")[0] != __name__.partition(".")[0]:
        USER_MODULES.add(module_name)
    return module


def describe_error(error: BaseException, file: str | None = None, line: int | None = None) -> str:
    """Format an exception of a user's code as the end of a sentence: type, text in one line, file and line.

    Args:
        error: the exception.
        file: file in which it was raised; by default the file of a syntax error, or of the last frame of the traceback.
        line: line in that file.
    """
    if file is None and isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    elif file is None and (frames := traceback.extract_tb(error.__traceback__)):
        file, line = frames[-1].filename, frames[-1].lineno
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(text.split())
    location = f" ({file}, line {line})" if file else ""
    return f"{type(error).__name__}{f': {text}' if text else ''}{location}."


def load_class(path: Any, setting: str, shipped: str | None = None) -> Any:
    """Import the class ``package.module.Class`` of a setting; for ``shipped`` and the gate see ``load_named``.

    Raises:
        ValueError: the class cannot be imported.
        ForeignCodeError: an untrusted source names it, and neither ``shipped`` nor the user allows it.
    """
    admit(str(path), setting, shipped)
    module_name, _, class_name = str(path).rpartition(".")
    if not module_name:
        raise ValueError(f"{setting} must have the form package.module.Class, got {path!r}.")
    module = _import_for(module_name, f"{setting}={path}")
    if not hasattr(module, class_name):
        unknown = no_such(f"class of {module_name}", class_name, [name for name in dir(module) if name[:1].isupper()])
        problem = _no_such_in_main(class_name, ".") if module_name == _MAIN else unknown + _IF_MOVED
        raise ValueError(f"{setting}={path!r} must be the path of a class: {problem}")
    return getattr(module, class_name)


@contextlib.contextmanager
def explain_missing_package(feature: str, module: str, install: str | None = None) -> Iterator[None]:
    """Replace the error for a missing optional package by a message with the command that installs it.

    Args:
        feature: feature that needs the package, in the plural, such as ``"Searches"``.
        module: name of the module that is imported.
        install: requirement to install, by default a package with the module's name.

    Raises:
        ImportError: the module is not installed. Errors for other missing modules are re-raised.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        install = install or module
        package = re.split(r"[\[<>=]", install)[0]
        quoted = install if install == package else f"'{install}'"
        raise ImportError(f"{feature} need the package {package}: pip install {quoted}") from error


def load_all(package: str) -> list[str]:
    """Import all modules of a package and return their names."""
    modules = [f"{package}.{module.name}" for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    for module in modules:
        importlib.import_module(module)
    return modules
