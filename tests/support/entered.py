"""Functions of this package that a task enters: ``python -m tests.support.entered`` prints them for a training command.

They are counted until the first iteration is traced: composing the config, building the workflow, the run folder and
its recorders, the initial state, and the checks of the run.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import threading
from collections import defaultdict
from typing import Any


class StepIsTracedError(BaseException):
    """The first training step is about to be traced."""


class EnteredFunctions:
    """A profile function that records the lines of all entered functions of the package.

    Args:
        stop_at: name of a function that raises ``StepIsTracedError`` when it is entered.
    """

    def __init__(self, stop_at: str = "") -> None:
        self._stop_at = stop_at
        self._spans: dict[str, set[tuple[int, int]]] = defaultdict(set)

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        # Bodies of modules and classes run at import: they have no local variables.
        if event != "call" or "/evorl/" not in code.co_filename or not code.co_flags & inspect.CO_NEWLOCALS:
            return
        if code.co_name == self._stop_at:
            sys.setprofile(None)
            raise StepIsTracedError
        last = max(line for _, _, line in code.co_lines() if line)
        self._spans[code.co_filename].add((code.co_firstlineno, last))

    @property
    def num_lines(self) -> int:
        """Lines of these functions; nested functions are counted once."""
        return sum(len({n for first, last in spans for n in range(first, last + 1)}) for spans in self._spans.values())

    @property
    def num_files(self) -> int:
        """Files of these functions."""
        return len(self._spans)


def main() -> None:
    """Print the lines and files that ``evorl train agent=ppo env=cartpole`` enters before its first traced step."""
    entered = EnteredFunctions("pure_step")
    with tempfile.TemporaryDirectory() as folder:
        # Earlier runs on this machine and the folder of the tests' programs change which functions are entered.
        os.environ["XDG_CACHE_HOME"] = folder
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        from evorl.cli.commands import main as evorl

        arguments = ["train", "agent=ppo", "env=cartpole", f"runs_folder={folder}", "recorders.progress=false"]
        threading.setprofile(entered)
        sys.setprofile(entered)
        try:
            evorl(*arguments)
        except StepIsTracedError:
            pass
        finally:
            sys.setprofile(None)
    print(json.dumps([entered.num_lines, entered.num_files]), flush=True)
    os._exit(0)  # the interrupted training has threads


if __name__ == "__main__":
    main()
