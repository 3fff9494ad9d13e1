"""Removes secrets from configs, command lines and messages before they reach trackers, reports and packed policies.

The config in a run folder keeps its secrets, because resuming the run needs them. Only the user can enter the folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "..."
# Sections with settings of servers, and the private settings in these sections: addresses, secrets and files.
_SERVERS = ("serve", "parameters")
_OF_SERVER = frozenset("bind web token cert key profile_dir".split())
_SECRET_WORDS = frozenset(
    "token password passwords passwd pwd passphrase secret secrets credential credentials auth apikey".split()
)
_SECRET_KEYS = frozenset("api access secret private auth account signing encryption ssh".split())  # not eval_key
_IN_QUERIES = frozenset("key sig signature".split())
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_URL = re.compile(r"\w+://[^\s,'\"}\]]+")
_URL_USER = re.compile(r"(?<=://)[^\s/?#'\"]+@")
_URL_QUERY = re.compile(r"(?<=[?&])([\w.-]+)=[^&#\s'\"}\]]+")


def shareable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without secrets, and without the addresses and files of its servers.

    An entry at any depth is omitted if its name denotes a secret, such as ``api_key``, ``password`` or ``hub_token``,
    unless its value is null or a bool. In texts, secrets in addresses are hidden, see ``shareable_text``.

    Args:
        settings: config as plain data; keys may be dotted names.
    """
    return _without_secrets(settings, "")


def shareable_argument(argument: str) -> str:
    """Return an argument ``name=value``, with ``...`` as value if it is a secret, or an address or file of a server."""
    name, is_setting, value = argument.partition("=")
    words = _NAME.findall(_URL.sub("", argument))
    of_server = words[:1] and words[0] in _SERVERS and _OF_SERVER & set(words[1:])
    if is_setting and value and (of_server or any(map(is_secret, words))):
        return f"{name}={HIDDEN}"
    return shareable_text(argument)


def shareable_text(text: str) -> str:
    """Return a text with ``...`` for user names and passwords in addresses, and for secrets in their queries."""
    text = _URL_USER.sub(f"{HIDDEN}@", text)
    return _URL_QUERY.sub(lambda match: f"{match[1]}={HIDDEN}" if _is_secret_query(match[1]) else match[0], text)


def is_secret(name: str) -> bool:
    """Return True if a name, such as ``wandb.api_key``, denotes a secret."""
    words = _words(name)
    return bool(words) and (
        words[-1] in _SECRET_WORDS or (words[-1] in ("key", "keys") and bool(_SECRET_KEYS & set(words[:-1])))
    )


def _is_secret_query(name: str) -> bool:
    return is_secret(name) or bool(_IN_QUERIES & set(_words(name)[-1:]))


def _words(name: str) -> list[str]:
    """Return the words of the last part of a dotted name, in lower case; ``apiKey`` has two."""
    return [word.lower() for word in _WORD.findall(name.rpartition(".")[2])]


def _without_secrets(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        entries = [(key, entry, f"{name}.{key}" if name else str(key)) for key, entry in value.items()]
        return {key: _without_secrets(entry, path) for key, entry, path in entries if not _is_hidden(path, entry)}
    if isinstance(value, list | tuple):
        return [_without_secrets(entry, name) for entry in value]
    return shareable_text(value) if isinstance(value, str) else value


def _is_hidden(path: str, value: Any) -> bool:
    server, _, name = path.partition(".")
    of_server = server in _SERVERS and name in _OF_SERVER
    return of_server or (value is not None and not isinstance(value, bool) and is_secret(path))
