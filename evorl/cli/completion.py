"""Tab completion: ``evorl -sc install=bash`` prints a script for the shell, ``-sc query=bash`` prints completions.

A query prints only candidates, one per line, also for an invalid command line: an error message would disturb the
user's typing.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evorl.cli.command_options import Option
from evorl.cli.command_table import COMMANDS
from evorl.cli.config_tree import config_folder, config_names
from evorl.cli.options import APP_COMPONENTS
from evorl.cli.overrides import changeable_settings
from evorl.config.values import flat, plain

FLAGS = ("-sc", "--shell-completion")
_ACTIONS = ("install", "uninstall", "query")
_BASH = """_evorl() {
    COMPREPLY=()
    local candidate
    while IFS= read -r candidate; do
        case "$candidate" in
            *[=./]) COMPREPLY+=("$candidate") ;;
            *) COMPREPLY+=("$candidate ") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" evorl -sc query=bash 2>/dev/null)
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _evorl evorl
"""
_ZSH = """_evorl() {
    local -a candidates
    candidates=("${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" evorl -sc query=zsh 2>/dev/null)}")
    candidates=(${candidates:#})
    if (( ${#candidates} )); then
        compadd -S '' -- "${candidates[@]}"
    else
        _files
    fi
}
if ! (( $+functions[compdef] )); then
    autoload -Uz compinit && compinit
fi
compdef _evorl evorl
"""
_FISH = """function __evorl_complete
    set -l candidates (env COMP_LINE=(commandline -cp | string collect) evorl -sc query=fish 2>/dev/null)
    if set -q candidates[1]
        printf '%s\\n' $candidates
    else
        set -l key (string match -r '^[^=]*=' -- (commandline -ct))
        for path in (__fish_complete_path (string replace -r '^[^=]*=' '' -- (commandline -ct)))
            printf '%s%s\\n' "$key" $path
        end
    end
end
complete -c evorl -f -a '(__evorl_complete)'
"""
_SHELLS = {
    "bash": (_BASH, "complete -r evorl 2>/dev/null\nunset -f _evorl\n"),
    "zsh": (_ZSH, "compdef -d evorl\nunfunction _evorl\n"),
    "fish": (_FISH, "complete -e -c evorl\nfunctions -e __evorl_complete\n"),
}
_NAMES_OF_LIBRARIES = "gymnasium envpool host mjx playground jumanji craftax xminigrid jaxmarl"
# Config groups, whose files are chosen by name; and environment libraries, which have no files.
_GROUPS = ("agent", "env", "experiment", "replay", "parameters")
_LIBRARIES = tuple(f"{name}/" for name in _NAMES_OF_LIBRARIES.split())
_OF_RUNS = ("run", "resume", "init_from")


def complete_from_arguments(arguments: Sequence[str]) -> None:
    """Print the script or the completions that ``-sc`` requests, as in ``-sc install=bash`` or ``-sc query=fish``."""
    asked = [argument.split("=", 1) for argument in arguments if "=" in argument]
    action, shell = asked[-1] if asked else ("", "")
    if action not in _ACTIONS or shell not in _SHELLS:
        shown = "=".join(asked[-1]) if asked else "nothing"
        raise ValueError(
            f"-sc needs install, uninstall or query with one of {', '.join(_SHELLS)}, as in "
            f'eval "$(evorl -sc install=bash)"; got {shown}.'
        )
    if action != "query":
        print(_SHELLS[shell][action == "uninstall"], end="")
        return
    completions: list[str] = []
    # The shell shows all output: suppress notices of libraries, and errors of a half-typed line.
    nowhere = io.StringIO()
    silent = contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere)
    with silent[0], silent[1], contextlib.suppress(Exception, SystemExit):
        completions = candidates(os.environ.get("COMP_LINE", ""))
    sys.stdout.write("".join(f"{candidate}\n" for candidate in completions))


def candidates(line: str) -> list[str]:
    """Return the completions of the last word of a command line, as whole words; keys end in ``=`` or ``.``."""
    try:
        words = shlex.split(line)
    except ValueError:  # an unclosed quote
        words = line.split()
    last = "" if not line or line[-1].isspace() else words.pop()
    if not words:
        return []
    _, *before = words
    if not before:
        return _beginning(last, [*COMMANDS, "--help", "--version"])
    if before[0] not in COMMANDS:
        return []
    command = COMMANDS[before[0]]
    if not command.options:
        return sorted(_of_training(before[0], before[1:], last))
    if before[0] == "compare":  # agents, its own options, and settings of the runs
        settings = (word for word in _of_training(before[0], before[1:], last) if not word.startswith("--"))
        return sorted({*_of_options("compare", command.options, last), *settings})
    return sorted(_of_options(before[0], command.options, last))


def _of_options(name: str, options: Mapping[str, Option], last: str) -> Iterable[str]:
    key, equals, _ = last.partition("=")
    if not equals:
        named = {"run": APP_COMPONENTS, "compare": _names("agent"), "agents": _names("agent"), "envs": _names("env")}
        return _beginning(last, [*(f"{option}=" for option in options), *named.get(name, ()), "--help"])
    return _beginning(last, [f"{key}={value}" for value in _values_of(key, options.get(key))])


def _values_of(key: str, option: Option | None) -> Iterable[str]:
    """Return the known values of the option ``key``; empty if they are unknown or ``option`` is ``None``."""
    if option is None:
        return ()
    if isinstance(option.default, bool):
        return ("true", "false")
    if key in _OF_RUNS:
        return ("latest",)
    if key == "checkpoint":
        return ("best", "latest")
    if key == "library":
        return f"brax gymnax goal pettingzoo {_NAMES_OF_LIBRARIES}".split()
    if key in ("algorithm", "agent"):
        return _names("agent")
    return getattr(option.check, "keywords", {}).get("names", ())


def _names(group: str) -> list[str]:
    """Return the names of the files of a config group; for ``env``, also the libraries, as ``library/``."""
    return [*config_names(config_folder() / group), *(_LIBRARIES if group == "env" else ())]


def _of_training(name: str, before: Sequence[str], last: str) -> Iterable[str]:
    key, equals, value = last.partition("=")
    if equals:
        head, comma, _ = value.rpartition(",")  # earlier values of a sweep
        known: Iterable[str] = ()
        if key in _GROUPS:
            known = _names(key)
        elif key in _OF_RUNS:
            known = ("latest",)
        elif isinstance(dict(flat(_config(before))).get(key), bool):
            known = ("true", "false")
        return _beginning(last, [f"{key}={head}{comma}{choice}" for choice in known])
    if name in ("evaluate", "save-replay"):
        return _beginning(
            last, [*(f"{key}=" for key in ("run", "runs_folder", "trust", *changeable_settings(name))), "--help"]
        )
    flags = ["--help", "--cfg", "--multirun", "--config-dir", "--plan"]
    keys = [*(f"{group}=" for group in _GROUPS), *_next_parts(dict(flat(_config(before))), last)]
    return dict.fromkeys(_beginning(last, [*keys, *flags]))


def _next_parts(values: Mapping[str, Any], last: str) -> Iterator[str]:
    """Yield keys up to the first dot after the typed text, so that completions show one level of the config."""
    level = last.count(".") + 1
    for key in values:
        parts = key.split(".")
        if key not in _GROUPS:
            yield f"{'.'.join(parts[:level])}." if len(parts) > level else f"{key}="


def _config(before: Sequence[str]) -> Mapping[str, Any]:
    """Compose the config of the config groups typed so far; return the default config if that fails."""
    from evorl.cli.composition import compose_config  # imports JAX

    chosen = [word for word in before if word.partition("=")[0] in (*_GROUPS, "inner", "learner")]
    try:
        config = compose_config([word.split(",")[0] for word in chosen])
    except Exception:  # a choice that does not exist
        config = compose_config()
    return plain(config, resolve=False)


def _beginning(start: str, options: Iterable[str]) -> list[str]:
    return [option for option in options if option.startswith(start)]
