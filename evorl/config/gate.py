"""The gate: every text that becomes code passes it.

A setting may name code: a workflow, the factory of an environment, ``package:Env-v0`` of Gymnasium. Whatever turns
such a text into a module, a function or a class calls ``admit`` first. ``load_named`` of ``evorl.config.names`` does so
itself, and a test finds every place in the package that would go around the gate.

Text that users write themselves is admitted. While a source that somebody else may have written is open (``distrust``:
the config of a run folder, a sweep, the config that a server hands out), a text is admitted only if evorl ships what it
names for that setting, or if the user gave the same text (``grant``).

A restriction holds for the whole process, in every thread, until the ``scope`` that it was opened in ends, and for ever
where there is no scope. Processes that are started meanwhile inherit it by the environment variable ``VARIABLE``, and
do not import modules from their working directory, which may be the stranger's folder. One that cannot read the
variable admits nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

VARIABLE = "EVORL_DISTRUSTED"
_SAFE_PATH = "PYTHONSAFEPATH"  # Python: the working directory is not searched for modules
_DATA_SETS = "minari:"  # begins the name of a data set, which is read as numbers


class ForeignCodeError(ValueError):
    """A text from a source that is not trusted names code outside evorl; the message says what to do."""


class _Scope:
    """Sources that were opened in a scope, and the texts that the user gave in it."""

    def __init__(self, sources: Iterable[str] = (), grants: Iterable[str] = ()) -> None:
        self.sources = list(sources)
        self.grants = set(grants)

    def refuses(self, text: str) -> bool:
        return bool(self.sources) and text not in self.grants


def _inherited(described: str) -> list[_Scope]:
    """Return the scopes that ``carried`` described."""
    if not described:
        return []
    try:
        return [_Scope(map(str, sources), map(str, grants)) for sources, grants in json.loads(described)]
    except (ValueError, TypeError):
        return [_Scope([f"a source that the variable {VARIABLE} does not describe"])]


_lock = threading.RLock()
_without_end = _Scope()  # what is opened outside of any scope
_scopes = [_without_end, *_inherited(os.environ.get(VARIABLE, ""))]
_current: ContextVar[_Scope | None] = ContextVar("gate", default=None)
_variables_before: dict[str, str | None] | None = None


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """End restrictions and grants with the context. A scope inside another one is a part of that one."""
    if _current.get() is not None:
        yield
        return
    opened = _Scope()
    with _lock:
        _scopes.append(opened)
    token = _current.set(opened)
    try:
        yield
    finally:
        _current.reset(token)
        with _lock:
            _scopes.remove(opened)
            _publish()


def distrust(source: str) -> None:
    """Admit only what evorl ships, and what the user gave, from now on.

    Args:
        source: what may be a stranger's, for messages: ``"the config in runs/theirs"``.
    """
    with _lock:
        opened = _current.get() or _without_end
        if source not in opened.sources:
            opened.sources.append(source)
        _publish()


def grant(texts: Any) -> None:
    """Admit texts that the user gave: every text in a value, a list or a mapping."""
    with _lock:
        (_current.get() or _without_end).grants.update(texts_in(texts))
        _publish()


def is_granted(text: str) -> bool:
    """Return whether the user gave this text in the current scope."""
    return text in (_current.get() or _without_end).grants


def is_restricted() -> bool:
    """Return whether a source that is not trusted is open."""
    return any(opened.sources for opened in _scopes)


def carried() -> str:
    """Return the restrictions in force, for ``carry_on`` in a process that does not inherit variables."""
    scopes = [[opened.sources, sorted(opened.grants)] for opened in _scopes if opened.sources]
    return json.dumps(scopes) if scopes else ""


def carry_on(described: str) -> None:
    """Take over the restrictions of another process, for the rest of this one."""
    with _lock:
        _scopes.extend(_inherited(described))
        _publish()


def admit(text: str, setting: str, shipped: str | None = None) -> None:
    """Let a text become code, or refuse it. Call it before anything is imported.

    Args:
        text: names code, or a folder with programs.
        setting: whose value it is, for messages.
        shipped: package of evorl whose members the setting may name even where a stranger wrote it; ``None`` for
            none.

    Raises:
        ForeignCodeError: a source that is not trusted is open, evorl does not ship what the text names, and the user
            did not give it.
    """
    if shipped is not None and is_of(text, shipped):
        return
    with _lock:
        refusing = next((opened for opened in _scopes if opened.refuses(text)), None)
    if refusing is not None:
        raise ForeignCodeError(
            f"{setting}={text} would have code executed that is not of evorl, and comes from {refusing.sources[-1]}. "
            f"If you trust it, give {setting}={text} with the command, or trust=true for all that it names."
        )


def admit_arguments(arguments: Any, setting: str) -> None:
    """Let arguments reach another library, which may execute or import what a text among them names.

    EnvPool starts the program of ``vzd_path``, ViZDoom reads such a path from the file of ``level``, and Gymnasium's
    compatibility environments import modules. So a text that names code or a file passes the gate.

    Args:
        arguments: a value, a list or a mapping.
        setting: whose value it is, for messages.

    Raises:
        ForeignCodeError: as of ``admit``.
    """
    if is_restricted():
        for path, value in leaves(arguments, setting):
            if isinstance(value, str) and (names_code(value) or names_file(value) or _is_file(value)):
                admit(value, path)


def is_of(text: str, package: str) -> bool:
    """Return whether a dotted name, or ``module:name``, names a member of a package."""
    return text.partition(":")[0].startswith(f"{package}.")


def names_code(text: str) -> bool:
    """Return whether a text has the form ``module:name``, by which functions and classes are named."""
    module, colon, name = text.partition(":")
    is_path = len(module) == 1 and name[:1] in ("/", "\\")  # C:\data
    return bool(module and colon and name) and not is_path and not text.startswith(_DATA_SETS)


def names_file(text: str) -> bool:
    """Return whether a text is a path with a folder in it."""
    return "/" in text or "\\" in text


def _is_file(text: str) -> bool:
    """Return whether a file or folder has this name, as in a stranger's folder that is the working directory."""
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long, or with a zero in it
        return False


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted paths and values of nested mappings and lists; an empty one is a leaf ``None``."""
    if isinstance(node, Mapping | list | tuple):
        entries = node.items() if isinstance(node, Mapping) else enumerate(node)
        for key, value in entries:
            yield from leaves(value, f"{path}.{key}" if path else str(key))
        if not node:
            yield path, None
    else:
        yield path, node


def texts_in(value: Any) -> set[str]:
    """Return every text in a value, a list or a mapping."""
    return {leaf for _, leaf in leaves(value) if isinstance(leaf, str)}


def _publish() -> None:
    """Let processes that are started from now on inherit the restrictions, or none."""
    global _variables_before
    if described := carried():
        if _variables_before is None:
            _variables_before = {name: os.environ.get(name) for name in (VARIABLE, _SAFE_PATH)}
        os.environ |= {VARIABLE: described, _SAFE_PATH: "1"}
    elif _variables_before is not None:
        for name, value in _variables_before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _variables_before = None
