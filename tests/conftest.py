"""Configure JAX before any import: CPU, four virtual devices, and a separate compilation cache."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.metadata
import inspect
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Child processes (mostly the command line) inherit the environment variables.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
# Most programs run for moments and need no optimization; ``tests/support/compilation.py`` excepts the others, which are
# as fast at level 2 and compile in two thirds of the time. The older emitters, with which evorl compiles initial states
# (``evorl.execution.programs``), have the same purpose, and small programs are not worth dividing among threads.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# XLA ends the process at a flag that it does not know: jaxlib 0.11 has only the newer emitters, and no flag for them.
# Set each flag once: workers inherit the flags of their parent process, and the flags are part of the cache key.
os.environ["XLA_FLAGS"] = " ".join(
    dict.fromkeys(
        (
            *os.environ.get("XLA_FLAGS", "").split(),
            *["--xla_cpu_use_fusion_emitters=false"] * importlib.metadata.version("jaxlib").startswith("0.10."),
            "--xla_backend_optimization_level=2",
            "--xla_cpu_parallel_codegen_split_count=1",
        )
    )
)

import hypothesis
import jax
import pytest

from evorl.execution.runtime import prepare_runtime, reduce_gc_frequency, release_programs
from evorl.recorders.screen import announced
from tests.lanes import Part, reason_for_long, unused_patterns

NUM_DEVICES = 4

# Rewrite the asserts of contracts as in test files, for detailed failures.
pytest.register_assert_rewrite("tests.conformance", "tests.support")

# Hypothesis tries few examples, the same in every run, without a deadline because of compilation.
hypothesis.settings.register_profile("evorl", max_examples=25, deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("evorl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane", choices=("short", "long", "all"), default="all", help="run only this lane, see tests/lanes.py"
    )
    parser.addoption(
        "--part",
        type=Part,
        default=Part("1/1"),
        help="run only the files of a part: 1/3, 2/3 and 3/3 are the whole suite",
    )


_skipped: list[str] = []


def _is_whole_suite(config: pytest.Config) -> bool:
    return config.args == config.getini("testpaths")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of other parts, and those whose tests are all in the long lane: imports take 10 s per worker."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    if path.endswith(".py") and path not in config.getoption("--part"):
        return True
    if config.getoption("--lane") != "short" or not _is_whole_suite(config):
        return None
    beginning = f"{path}::"
    if reason_for_long(beginning) is None:
        return None
    _skipped.append(beginning)
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the lane.

    Raises:
        UsageError: a pattern of the long lane matches no test of the whole suite.
    """
    lane = config.getoption("--lane")
    if lane == "all":
        return
    is_whole = _is_whole_suite(config) and config.getoption("--part").count == 1
    if is_whole and (unused := unused_patterns([*_skipped, *(item.nodeid for item in items)])):
        raise pytest.UsageError(f"tests/lanes.py: no test matches {', '.join(unused)}: correct or remove the pattern.")
    in_lane = [(reason_for_long(item.nodeid) is not None) == (lane == "long") for item in items]
    config.hook.pytest_deselected(items=[item for item, keep in zip(items, in_lane, strict=True) if not keep])
    items[:] = [item for item, keep in zip(items, in_lane, strict=True) if keep]


def pytest_configure(config: pytest.Config) -> None:
    """Prepare 4 devices: tests run on 1, 2 and 4 of them, and arrays are on the first unless a test places them."""
    from tests.support.compilation import keep_programs  # imported here so that its asserts are rewritten

    reduce_gc_frequency()
    if config.getoption("--lane") == "long":
        from tests.support.jax_internals import lower_in_one_context

        lower_in_one_context()
    # Objects that survive two collections mostly belong to JAX's caches: millions, which take 5 s to traverse, until
    # ``release_programs`` frees them.
    gc.set_threshold(*gc.get_threshold()[:2], 10_000)
    prepare_runtime(NUM_DEVICES, compilation_cache=False)
    if os.environ.get("EVORL_TEST_CACHE", "on") != "off":
        keep_programs()
    # The backend starts here, where output is shown: XLA ends the process at a wrong flag and prints the reason.
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        jax.devices()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Exit workers at once after their report: freeing thousands of programs takes 9 seconds."""
    if hasattr(config, "workerinput"):
        os._exit(0)


_tests = itertools.count(1)


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Release programs before a process reaches the system's limit of memory maps; checked at every 40th test.

    The check takes 34 ms with 30,000 maps, and 40 tests add at most 11,000 (of 65,530).
    """
    yield
    if next(_tests) % 40 == 0:
        release_programs()


@pytest.fixture(scope="session", autouse=True)
def flags() -> str:
    """Return the compiler flags before any test, once the number of devices is fixed."""
    jax.devices()
    return os.environ["XLA_FLAGS"]


@pytest.fixture(scope="session", autouse=True)
def silent_commands() -> Iterator[None]:
    """Disable the line that a command prints after a second: its presence depends on the load of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect.unwrap(announced), "__defaults__", (3600.0,))
        yield


@pytest.fixture(scope="session")
def train_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Train by ``evorl train`` with the given arguments; return its ``RunFolder``.

    Equal arguments return the same run, so tests must not change it.
    """
    from evorl.cli import main as cli
    from evorl.runs.folder import RunFolder

    @functools.cache
    def train(*arguments: str) -> RunFolder:
        root = tmp_path_factory.mktemp("runs")
        # Discard the output, which does not belong to the first test that calls this.
        with pytest.MonkeyPatch.context() as context, contextlib.redirect_stdout(io.StringIO()):
            context.setattr(sys, "argv", ["evorl", *arguments, f"runs_folder={root}"])
            cli.train()
        return RunFolder.latest(root)

    return train


@pytest.fixture(autouse=True)
def same_settings(flags: str) -> Iterator[None]:
    """Assert that no test changes JAX's settings for later tests, such as the compilation cache.

    Flags that commands add are reset. Otherwise child processes would compile differently after such a test, and the
    cache would store programs twice.
    """
    before = dict(jax.config.values)
    yield
    os.environ["XLA_FLAGS"] = flags
    changed = {name: value for name, value in jax.config.values.items() if value != before.get(name, value)}
    assert not changed, "put JAX's settings back where the test ends"


@pytest.fixture
def few_objects() -> Iterator[None]:
    """Exclude existing objects from garbage collection, which takes seconds in a process that has traced
    many programs.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a command in this process and returns its output and error text."""

    def run(command, *arguments: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["evorl", *arguments])
        try:
            command()
        except SystemExit as end:
            if end.code != 1:
                raise
        printed = capsys.readouterr()
        return printed.out, printed.err

    return run
