"""What a name was perhaps meant to be: for errors in words."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pkgutil
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from evorl.config.gate import ForeignCodeError, admit

SHIPPED_WORKFLOWS = "evorl.algorithms"  # package of the classes that a config may name as its workflow
OWN_MODULES: set[str] = set()  # modules outside evorl that settings named
_LISTED = 12  # so many names are told beside the nearest one
_MEANT = 3  # so many that mean the same


def did_you_mean(name: object, valid: Iterable[object]) -> str:
    """`` Did you mean 'relu'?`` for the nearest valid name, with a leading space; empty if none is near.

    A name that means the same is nearest: ``discount`` for ``gamma``. Capitals do not count. The nearest dotted name is
    one with the same last part, if there is any. For a setting of other systems that has no counterpart here, the text
    says what to do instead.
    """
    options = [str(option) for option in valid]
    if remark := load("evorl.config.other_words:remark_on")(str(name)):
        return f" {remark}"
    if meant := load("evorl.config.other_words:called_here")(str(name), options):
        return f" Did you mean {' or '.join(map(repr, meant[:_MEANT]))}?"
    folded = {option.lower(): option for option in options if option != str(name)}
    wrong = str(name).lower()
    same_end = [option for option in folded if option.rpartition(".")[2] == wrong.rpartition(".")[2]]
    near = difflib.get_close_matches(wrong, same_end or folded, n=1, cutoff=0.0 if same_end else 0.6)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def no_such(what: str, name: object, valid: Iterable[object]) -> str:
    """``there is no torso 'natur'. Did you mean 'nature'? There are: minatar, nature.``

    Of dotted names those beside the wrong one are told; of many names only the nearest one, if there is one.
    """
    options = [str(option) for option in valid]
    hint = did_you_mean(name, options)
    above = str(name).rpartition(".")[0]
    siblings = [option for option in options if option.rpartition(".")[0] == above]
    siblings = siblings or [option for option in options if "." not in option] or options
    there_are = "" if not siblings or (hint and len(siblings) > _LISTED) else f" There are: {', '.join(siblings)}."
    return f"there is no {what} {name!r}.{hint}{there_are}"


def load(path: str) -> Any:
    """Import the module of ``"package.module:name"``, unless it is imported already, and return the member.

    A base class or a factory can thus list its variants without importing them. The path comes from the code; for paths
    in settings use ``load_named``.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def load_named(path: Any, setting: str, shipped: str | None = None) -> Callable[..., Any]:
    """Import the function or class that a setting names; the text passes the gate, see ``evorl.config.gate``.

    Args:
        path: value of the setting, ``"package.module:function"``.
        setting: its name, for messages.
        shipped: package of evorl whose functions any source may name in this setting; ``None`` for none.

    Raises:
        ValueError: ``path`` is not like ``"package.module:function"``, or names nothing that can be called.
        ForeignCodeError: it comes from an untrusted source. Nothing is imported then.
    """
    module_name, colon, name = str(path).partition(":")
    if not (isinstance(path, str) and module_name and colon and name):
        raise ValueError(f"{setting} must be like package.module:function, got {path!r}.")
    admit(path, setting, shipped)
    module = _import_for(module_name, f"{setting}={path}")
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ValueError(f"{setting}={path}: {no_such(f'function of {module_name}', name, functions)}")
    return function


def _import_for(module_name: str, setting: str) -> ModuleType:
    """Import the module that a setting names.

    Args:
        module_name: of the module; the gate has admitted it.
        setting: with its value, for messages.

    Raises:
        ValueError: there is no such module, or an error ends its import; the message has the error and its place.
    """
    try:
        module = importlib.import_module(module_name)
    except ForeignCodeError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise ValueError(
                f"{setting}: Python finds no module {missing!r}. Put the folder that holds it on PYTHONPATH, or "
                "install it."
            ) from error
        # A module of evorl that lacks a package says so itself.
        if module_name.partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise ValueError(f"{setting}: the module {module_name} cannot be imported: {describe_error(error)}") from error
    if module_name.partition(".")[0] != __name__.partition(".")[0]:
        OWN_MODULES.add(module_name)
    return module


def describe_error(error: BaseException, file: str | None = None, line: int | None = None) -> str:
    """Format an error of a user's code: its type, its text in one line, and its place, which ends the sentence.

    Args:
        error: that was raised.
        file: where; by default the file of a syntax error, else that of the last frame of the traceback.
        line: in that file.
    """
    if file is None and isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    elif file is None and (frames := traceback.extract_tb(error.__traceback__)):
        file, line = frames[-1].filename, frames[-1].lineno
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(text.split())
    place = f" ({file}, line {line})" if file else ""
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}."


def load_class(path: Any, setting: str, shipped: str | None = None) -> Any:
    """Import the class of a dotted path, ``"package.module.Class"``; the text passes the gate.

    Args:
        path: value of the setting.
        setting: its name, for messages.
        shipped: see ``load_named``.

    Raises:
        ValueError: there is no such class.
        ForeignCodeError: the path comes from an untrusted source. Nothing is imported then.
    """
    admit(str(path), setting, shipped)
    module_name, _, class_name = str(path).rpartition(".")
    try:
        return getattr(_import_for(module_name, f"{setting}={path}"), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{setting}={path!r} names no class that can be imported: {error}") from error


@contextlib.contextmanager
def missing_in_words(what: str, module: str, install: str | None = None) -> Iterator[None]:
    """Within: that a package is not installed is told with what needs it, and the line that installs it.

    Args:
        what: needs it, a plural.
        module: by which it is imported.
        install: what is installed for it, by default a package of that name.

    Raises:
        ImportError: instead of the error that this module is not found; that of another one stays as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        install = install or module
        package = re.split(r"[\[<>=]", install)[0]
        quoted = install if install == package else f"'{install}'"
        raise ImportError(f"{what} need the package {package}: pip install {quoted}") from error


def load_all(package: str) -> list[str]:
    """The names of the modules of a package, all of which are imported now."""
    modules = [f"{package}.{module.name}" for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    for module in modules:
        importlib.import_module(module)
    return modules
