"""Error messages of the command line: one sentence with the closest valid name, and a non-zero exit status."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evorl.cli.config_tree import AGENT_PARTS, config_folder, config_names, long_names
from evorl.config.custom_parts import describe_user_error
from evorl.config.names import listed, no_such
from evorl.execution.multiprocess import LOST_STATUS, describe_lost_process
from evorl.ops.terminal_text import TerminalStream, escaped, raw_stream, sentence

TRACEBACK_VARIABLE = "EVORL_TRACEBACK"
_NO_PLATFORM = re.compile(
    r"(?s)(?:Unable to initialize|Unknown) backend:? '(.*?)'(?::| requested, but) (.*?)\.?(?: \((?:set|you)|$)"
)
_NO_NAME = re.compile(r"Config group override must be a string or a list. Got (\w+)")


@contextmanager
def explained_errors(folder: Path) -> Iterator[None]:
    """Print an expected error and exit with status 1, ``LOST_STATUS`` (lost process) or 128 + SIGPIPE (closed output).

    Unexpected errors, and with ``EVORL_TRACEBACK=1`` all errors, are re-raised. ``folder`` is the config tree.
    """
    try:
        yield
    except BrokenPipeError:
        if not _output_is_closed():
            raise
        # The reader, such as ``head``, has closed the pipe: print nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:
        if text := describe_lost_process(error):
            _exit(error, text, LOST_STATUS)
        # Checked first, because some Hydra errors are also ValueErrors or OSErrors.
        if is_of_config(error):
            _exit(error, describe_config_error(error, folder))
        if isinstance(error, RuntimeError | AssertionError) and (text := _describe_machine_error(error)):
            _exit(error, text)
        if text := describe_user_error(error):
            _exit(error, f"{text} {TRACEBACK_VARIABLE}=1 shows the traceback.")
        if not isinstance(error, (ValueError, ArithmeticError, OSError, ImportError)):
            raise
        _exit(error, str(error))


def _output_is_closed() -> bool:
    """Return True if the reader of standard output has closed it."""
    try:
        sys.stdout.flush()
        # Without a buffer (PYTHONUNBUFFERED) the flush writes nothing: poll the pipe.
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in pipe.poll(0))
    except BrokenPipeError:
        return True
    except (OSError, ValueError, AttributeError):  # AttributeError: Windows has no poll
        return False


def print_any_character() -> None:
    """Make standard output and error, even if closed, accept any text: escape control and unencodable characters."""
    # Names and titles in the messages of any library may come from untrusted files.
    for name in ("stdout", "stderr"):
        stream = raw_stream(getattr(sys, name) or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, TerminalStream(stream))


def _exit(error: Exception, text: str, status: int = 1) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    print(escaped(f"Error: {text}"), file=sys.stderr)
    sys.exit(status)


def _describe_machine_error(error: RuntimeError | AssertionError) -> str | None:
    """Return an error of JAX about its platform or memory as a short text; ``None`` for other errors (bugs)."""
    text = str(error)
    if not text and traceback.extract_tb(error.__traceback__)[-1].filename.endswith("xla_bridge.py"):
        text = "Unknown backend: 'cuda' requested, but no NVIDIA GPU is visible"  # JAX asserts that it has a platform
    if platform := _NO_PLATFORM.match(text):
        return f"JAX cannot run on {platform[1]!r}: {platform[2]}. Set JAX_PLATFORMS=cpu and unset JAX_PLATFORM_NAME."
    if "RESOURCE_EXHAUSTED" in text:
        first_line = text.strip().splitlines()[0]
        return f"This machine does not have enough memory ({first_line}). Use fewer environments, members or episodes."
    return None


def is_of_config(error: Exception) -> bool:
    """Return True if the error comes from Hydra or a library that Hydra uses to read configs."""
    is_own_class = type(error).__module__.startswith(("hydra.", "omegaconf.", "antlr4."))
    return is_own_class or _NO_NAME.match(str(error)) is not None  # Hydra raises a plain ValueError for agent=null


def describe_config_error(error: Exception, folder: Path) -> str:
    """Return a Hydra error as one sentence, with the closest valid name in the config tree ``folder``."""
    text = str(error)
    missing = re.search(r"Could not find '([^'/]+)/([^']*)'", text)
    if missing:
        group, name = missing.groups()
        group = "agent" if group in AGENT_PARTS else group
        if not name:
            names = config_names(folder / group)
            return f"{group} has no value.{f' Available: {listed(names)}.' if names else ''}"
        if group == "env":
            return _unknown_env(name, folder)
        return sentence(no_such(group, name, config_names(folder / group)))
    key = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' is not in struct", text)
    if key:
        # If a whole mapping is given, the unknown key is one of its entries.
        entry = str(getattr(error.__cause__, "full_key", None) or "")
        name = entry if entry.startswith(f"{key.group(1)}.") else key.group(1)
        from evorl.cli.unknown_keys import describe_unknown_key  # imports JAX

        return sentence(describe_unknown_key(name, error, folder))
    if absent := re.search(r"Could not delete '([^'=]+)'. No match", text):
        return f"there is no {absent[1]} to leave out: remove {absent[1]}=null, or ~{absent[1]}."
    if kind := _NO_NAME.match(text):
        got = kind[1].replace("NoneType", "null")
        return f"a config group such as agent, env or optimizer needs a name, got {got}: for example agent=ppo."
    twice = re.search(r"Multiple values for (\w+)\. To override a value use 'override \w+: ([^']+)'", text)
    if twice:
        group, name = twice.groups()
        return f"The defaults of config files choose {group} twice. The second must be '- override /{group}: {name}'."
    return " ".join(text.split())


@contextmanager
def config_errors() -> Iterator[None]:
    """Context manager that re-raises Hydra errors as ``ValueError``, with the closest valid name."""
    try:
        yield
    except Exception as error:
        if is_of_config(error):
            raise ValueError(describe_config_error(error, config_folder())) from error
        raise


def failure_text(error: Exception) -> str:
    """Return the reason of a failed run in one line; print the traceback of an unexpected error."""
    if is_of_config(error):
        return describe_config_error(error, config_folder())
    if text := describe_user_error(error):
        return text
    if not isinstance(error, ValueError | ArithmeticError | OSError | ImportError):
        traceback.print_exception(error)
    return " ".join(str(error).split()) or type(error).__name__


def _unknown_env(name: str, folder: Path) -> str:
    """Return the message for an unknown environment, with suggestions from all libraries."""
    from evorl.envs.catalog import describe_library, describe_suggestions, suggest_envs  # imports JAX

    if ":" in name:
        return f"Unknown env {name!r}. To use your own environment: env=user env.factory={name}."
    names = config_names(folder / "env")
    suggestions = suggest_envs(name, long_names(folder), names)
    if suggestions:
        return f"Unknown env {name!r}.{describe_suggestions(suggestions)}"
    if library := describe_library(name):
        return f"Unknown env {name!r}.{library}"
    by_library = "Others by their library: env=gymnasium/<id>, env=envpool/<id>, env=playground/<name> ..."
    return f"{sentence(no_such('env', name, names))} {by_library}"
