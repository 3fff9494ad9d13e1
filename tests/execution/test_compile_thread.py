"""Compilation in the background."""

from __future__ import annotations

import subprocess
import sys

FAILING = """
import time
from evorl.execution.programs import CompileThread

class Program:
    def compile(self):
        time.sleep(0.5)
        print("compiled")

CompileThread(Program(), 1).start()
raise SystemExit(3)
"""


def test_a_process_that_fails_meanwhile_keeps_its_status() -> None:
    """XLA would abort the process, with the status 134, if the compilation still ran at its exit."""
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "compiled\n")
