"""Gate that checks every text before it becomes code.

A setting may name code: a workflow, the factory of an environment, ``package:Env-v0`` of Gymnasium. Code that turns the
text into a module, a function or a class must call ``admit`` first. ``load_named`` of ``evorl.config.names`` calls it,
and a test fails for code in the package that bypasses the gate.

Text that users write themselves is admitted. While an untrusted source is open (``distrust``: the config of a run
folder, a sweep, the config that a server sends), a text is admitted only if it names something that evorl ships for
that setting, or if the user passed the same text (``grant``).

A restriction applies to all threads of the process until the end of the ``scope`` in which the source was opened. If
the source was opened outside a scope, it lasts until the process ends. Processes started in the meantime inherit the
restriction through the environment variable ``VARIABLE``, and do not import modules from their working directory, which
may be an untrusted folder. A process that cannot parse the variable admits only names that evorl ships.
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
_SAFE_PATH = "PYTHONSAFEPATH"  # stops Python from searching the working directory for modules
_MARK = "evorl read this from: "  # prefix of the flag of an OmegaConf node; its source follows


class ForeignCodeError(ValueError):
    """Raised for a text from an untrusted source that names code outside evorl; the message suggests a fix."""


class _Scope:
    """Untrusted sources opened in a scope, and texts granted by the user."""

    def __init__(self, sources: Iterable[str] = (), grants: Iterable[str] = ()) -> None:
        self.sources = list(sources)
        self.grants = set(grants)

    def refuses(self, text: str) -> bool:
        return bool(self.sources) and text not in self.grants


def _inherited(described: str) -> list[_Scope]:
    """Return the scopes in a description returned by ``carried``."""
    if not described:
        return []
    try:
        return [_Scope(map(str, sources), map(str, grants)) for sources, grants in json.loads(described)]
    except (ValueError, TypeError):
        return [_Scope([f"a source that the variable {VARIABLE} does not describe"])]


_lock = threading.RLock()
_without_end = _Scope()  # sources and grants outside of any scope
_scopes = [_without_end, *_inherited(os.environ.get(VARIABLE, ""))]
_current: ContextVar[_Scope | None] = ContextVar("gate", default=None)
_variables_before: dict[str, str | None] | None = None
_stored_texts: dict[str, set[str]] = {}  # texts of marked configs, by their source


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Limit restrictions and grants to this context; inside an outer scope, they last until the outer scope ends."""
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
    """Open an untrusted source, a text for messages: only code of evorl and granted texts are admitted."""
    with _lock:
        opened = _current.get() or _without_end
        if source not in opened.sources:
            opened.sources.append(source)
        _publish()


def grant(texts: Any) -> None:
    """Admit texts from the user: every string in a value, a list or a mapping."""
    with _lock:
        (_current.get() or _without_end).grants.update(texts_in(texts))
        _publish()


def mark_untrusted(config: Any, source: str) -> Any:
    """Mark a config as read from the untrusted ``source``, a description for messages, and return it.

    ``distrusting`` restricts the gate while objects are built from the config. Copies, merged configs and parts of a
    marked config are also marked; plain dicts created from a marked config are not.
    """
    from omegaconf import OmegaConf

    with _lock:
        _stored_texts.setdefault(source, set()).update(texts_in(OmegaConf.to_container(config)))
    config._set_flag(f"{_MARK}{source}", True)
    return config


@contextlib.contextmanager
def distrusting(config: Any) -> Iterator[None]:
    """Restrict the gate within the context if ``config``, or a config that contains it, was marked as untrusted.

    Texts that were not in the config when it was read come from the user, and are admitted.
    """
    sources, node = [], config
    while type(node).__module__.startswith("omegaconf"):
        flags = node._metadata.flags or {}
        sources += [flag.removeprefix(_MARK) for flag, is_set in flags.items() if is_set and flag.startswith(_MARK)]
        node = node._get_parent()
    if not sources:
        yield
        return
    from omegaconf import OmegaConf

    with scope():
        for source in sources:
            distrust(source)
        texts = texts_in(OmegaConf.to_container(config))
        grant(list(texts - set().union(*(_stored_texts.get(source, texts) for source in sources))))
        yield


def is_granted(text: str) -> bool:
    """Return True if the user granted this text in the current scope."""
    return text in (_current.get() or _without_end).grants


def is_restricted() -> bool:
    """Return True if an untrusted source is open."""
    return any(opened.sources for opened in _scopes)


def carried() -> str:
    """Return the active restrictions as text for ``carry_on`` in another process; empty without restrictions."""
    scopes = [[opened.sources, sorted(opened.grants)] for opened in _scopes if opened.sources]
    return json.dumps(scopes) if scopes else ""


def carry_on(described: str) -> None:
    """Apply the restrictions ``described`` by ``carried`` in another process, until the end of this process."""
    with _lock:
        _scopes.extend(_inherited(described))
        _publish()


def admit(text: str, setting: str, shipped: str | None = None) -> None:
    """Raise an error if a text must not become code. Call it before anything is imported.

    Args:
        text: text that names code, or a folder with programs.
        setting: name of the setting with this value, for messages.
        shipped: package of evorl whose members any source may name in this setting; ``None`` for none.

    Raises:
        ForeignCodeError: an untrusted source is open, evorl does not ship the named code for this setting, and the user
            did not grant the text.
    """
    if shipped is not None and is_of(text, shipped):
        return
    with _lock:
        refusing = next((opened for opened in _scopes if opened.refuses(text)), None)
    if refusing is not None:
        raise ForeignCodeError(
            f"{setting}={text} would execute code from outside evorl, and comes from {refusing.sources[-1]}. "
            "If you trust it, repeat this setting in the command, or add trust=true to allow all such code."
        )


def admit_arguments(arguments: Any) -> None:
    """Check arguments of an environment of another library, which may execute or import code that they name.

    EnvPool starts the program at ``vzd_path``, ViZDoom reads that path from the file of ``level``, and Gymnasium's
    compatibility environments import modules. Therefore strings that name code or a file must pass the gate.

    Raises:
        ForeignCodeError: see ``admit``.
    """
    if is_restricted():
        for path, value in leaves(arguments, "env"):
            if isinstance(value, str) and (names_code(value) or names_file(value) or _is_file(value)):
                admit(value, path)


def is_of(text: str, package: str) -> bool:
    """Return True if a dotted name, or ``module:name``, is inside a package."""
    return text.partition(":")[0].startswith(f"{package}.")


def names_code(text: str) -> bool:
    """Return True if a text has the form of a function's or class's name, ``module:name``."""
    module, colon, name = text.partition(":")
    is_path = len(module) == 1 and name[:1] in ("/", "\\")  # C:\data
    return bool(module and colon and name) and not is_path


def names_file(text: str) -> bool:
    """Return True if a text contains a path separator, ``/`` or a backslash."""
    return "/" in text or "\\" in text


def _is_file(text: str) -> bool:
    """Return True if a file or folder with this name exists, such as in an untrusted working directory."""
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted paths and values of nested mappings and lists; an empty container yields ``None``."""
    if isinstance(node, Mapping | list | tuple):
        entries = node.items() if isinstance(node, Mapping) else enumerate(node)
        for key, value in entries:
            yield from leaves(value, f"{path}.{key}" if path else str(key))
        if not node:
            yield path, None
    else:
        yield path, node


def texts_in(value: Any) -> set[str]:
    """Return every string in a value, a list or a mapping."""
    return {leaf for _, leaf in leaves(value) if isinstance(leaf, str)}


def _publish() -> None:
    """Set the environment variables that pass restrictions to new processes; without restrictions, restore them."""
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
