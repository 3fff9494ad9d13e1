"""The documentation is correct: its Python runs, its commands use existing options, its tables match the YAML."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from evorl.cli.app_words import without_flags
from evorl.cli.arguments import overrides_first
from evorl.cli.combinations import combinations
from evorl.cli.command_options import read_options
from evorl.cli.command_table import COMMANDS
from evorl.cli.composition import compose_config, initialize_configs
from evorl.cli.training import check_training
from evorl.config.names import load
from evorl.runs.spec import RunSpec
from tests.support.compilation import compiled_to_run_long
from tests.support.doc_pages import ROOT, Block, blocks, pages, settings, with_tables
from tests.support.physics_shapes import let_bodies_be_still

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages()]
PYTHON_PAGES = [p for p in PAGES if any(b.language == "python" for b in blocks(p.values[0]))]
TRAIN = (
    "python scripts/train.py",
    "evorl-train",
    "evorl train",
    "python -m evorl.launch",
    "srun python -m evorl.launch",
)
EVALUATE = ("python scripts/evaluate.py", "evorl-evaluate", "evorl evaluate", "evorl save-replay")


def run_python(block: Block, page: Path, module: types.ModuleType) -> str:
    """Run a block like a notebook cell; tracebacks refer to lines of the page."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    output = io.StringIO()
    with redirect_stdout(output):
        exec(code, vars(module))
    return output.getvalue()


def matches(expected: str, actual: str) -> bool:
    """Return True if an output matches, where ``...`` matches anything and white space is ignored."""
    pattern = r".*?".join(re.escape(" ".join(part.split())) for part in expected.split("..."))
    return re.fullmatch(pattern.replace(r"\ ", r"\s*"), " ".join(actual.split()), re.DOTALL) is not None


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_python_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    module = types.ModuleType("docs_notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    page_blocks = blocks(page)
    trains_for_long = page.parent.name == "notebooks"
    for block, following in zip(page_blocks, [*page_blocks[1:], None], strict=True):
        if block.language != "python":
            continue
        with compiled_to_run_long() if trains_for_long else contextlib.nullcontext():
            output = run_python(block, page, module)
        if following is not None and following.language == "text":
            assert matches(following.text, output), (
                f"{page}:{following.line} shows\n{following.text}\nand the code prints\n{output}"
            )


SCRIPTS = [
    pytest.param(block, following, id=f"{page.id}:{block.line}")
    for page in PAGES
    for block, following in itertools.pairwise(blocks(page.values[0]))
    if block.language == "python3"
]


@pytest.mark.parametrize(("block", "following"), SCRIPTS)
def test_a_script_runs_in_a_process_of_its_own(block: Block, following: Block, tmp_path: Path) -> None:
    """Blocks fenced as ``python3``, such as one that starts a cluster, run in a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert following.language == "text"
    assert matches(following.text, done.stdout), f"the page shows\n{following.text}\nand prints\n{done.stdout}"


def commands(page: Path) -> list[tuple[int, str]]:
    """Return the command lines in a page's shell blocks with line numbers; continuations are joined,
    comments removed.
    """
    found = []
    for block in blocks(page):
        if block.language in ("bash", "console"):
            text = block.text.replace("\\\n", "  ")
            for offset, line in enumerate(text.splitlines()):
                line = line.removeprefix("$ ").split("  #")[0].strip()
                if line and not line.startswith("#"):
                    found.append((block.line + offset, line))
    return found


def compose(overrides: list[str]):
    """Return the composed configs, one for every combination of a sweep over these overrides."""
    from hydra import compose
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    jobs = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(overrides), max_batch_size=None)
    with initialize_configs():
        return [compose("config", overrides=list(job)) for batch in jobs for job in batch]


def overrides_of(command: str, starts: tuple[str, ...]) -> list[str] | None:
    start = next((s for s in starts if command.startswith(s)), None)
    if start is None:
        return None
    return [word for word in shlex.split(command[len(start) :]) if "=" in word and not word.startswith("--")]


@pytest.mark.parametrize("page", PAGES)
def test_commands_name_options_that_exist(page):
    for line, command in commands(page):
        where = f"{page}:{line}: {command}"
        overrides = overrides_of(command, TRAIN)
        if overrides is None:
            overrides = overrides_of(command, EVALUATE)
        if overrides is not None and "--config-dir" not in command:  # the others run below
            try:
                assert compose(overrides), where
            except Exception as error:
                pytest.fail(f"{where}\n{error}")
        if command.startswith("make "):
            target = re.sub(r"\w+=(\"[^\"]*\"|\S+)", "", command).split()[1]
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), where


# Settings whose values are files of the reader.
_READERS = ("resume", "init_from", "replay.load", "parameters.cert", "parameters.key", "serve.cert", "serve.key")


def trainings(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the configs that a page's commands would train, with their lines; of sweeps all except for seeds."""
    for line, command in commands(page):
        overrides = overrides_of(command, (*TRAIN, "evorl serve "))
        if overrides is None or "--config-dir" in command:
            continue
        if command.startswith("evorl serve "):
            overrides = ["env=remote", *overrides]
        in_sweep = ["-m"] if {"-m", "--multirun"} & set(command.split()) else []
        overrides = [word for word in overrides_first([*overrides, *in_sweep]) if not word.startswith("-")]
        # Runs of the reader; randomized physics, which still bodies do not have.
        if any(word.startswith(("resume=", "hydra", "init_from", "env.randomization")) for word in overrides):
            continue
        overrides = [word for word in overrides if not word.startswith(tuple(f"{name}=" for name in _READERS))]
        for job, _ in combinations(overrides):
            yield f"{page}:{line}: {command}", [word for word in job if not word.startswith("seed=")]


@pytest.mark.parametrize("page", PAGES)
def test_trainings_are_built_as_they_are_printed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of a page build their workflows up to the shapes of the initial state."""
    let_bodies_be_still(monkeypatch)  # avoids tracing hundreds of physics equations repeatedly
    monkeypatch.setenv("TOKEN", "x" * 40)
    for where, job in trainings(page):
        if str(job) in BUILT:
            continue
        BUILT.add(str(job))
        try:
            config = compose_config([*job, "compilation_cache=false"])
            if config.get("offline"):  # with data of the reader
                config.offline = False
            check_training(RunSpec.from_config(config))
        except ImportError:
            continue  # requires an extra that is not installed here
        except Exception as error:
            if "Python cannot find a module" not in str(error):  # module of the reader
                pytest.fail(f"{where}\n{error}")


BUILT: set[str] = set()

# Options that shorten any training run of a page.
SHORT = (
    "total_timesteps=64 num_envs=4 rollout_length=16 eval_interval=0 devices=1 compilation_cache=false "
    "recorders.tensorboard=false recorders.learning_curve=false recorders.progress=false"
).split()
WITH_OWN_CONFIGS = [
    pytest.param(page.values[0], command, id=f"{page.id}:{line}")
    for page in PAGES
    for line, command in commands(page.values[0])
    if "--config-dir" in command
]


def write_files_of(page: Path, folder: Path) -> list[str]:
    """Write the YAML files that a page shows, and the modules that they name: its classes and functions.

    Returns the names of the modules.
    """
    named = re.findall(
        r"`(mine/[\w/]+\.yaml)`[^`]*?```yaml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert named, f"{page} shows no file of the folder of configs"
    modules = []
    nodes = [
        node
        for block in blocks(page)
        if block.language == "python"
        for node in ast.parse(block.text).body
        if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef)
    ]
    for name, text in named:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        modules += [m for m in re.findall(r"(?:factory|workflow|name): (\w+)[.:]", text) if m != "evorl"]
    for module in modules:
        code = ast.unparse(ast.Module(nodes, []))
        (folder / f"{module}.py").write_text(f"from __future__ import annotations\n{code}\n", encoding="utf-8")
    return modules


def test_pages_train_with_configs_of_their_own() -> None:
    assert len(WITH_OWN_CONFIGS) >= 2


@pytest.mark.parametrize(("page", "command"), WITH_OWN_CONFIGS)
def test_a_command_with_configs_of_its_own_trains(
    page: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands with configs shown on the page train, shortened by additional options."""
    from evorl.cli import main as cli

    for module in write_files_of(page, tmp_path):
        monkeypatch.delitem(sys.modules, module, raising=False)
    path, *words = shlex.split(command)
    assert (path, words[:2]) == ("PYTHONPATH=.", ["evorl", "train"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shared = ("total_timesteps", "eval", "recorders", "compilation_cache", "devices", "seed")
    short = [word for word in SHORT if "optimizer.step_size" not in command or word.startswith(shared)]
    monkeypatch.setattr(sys, "argv", ["train.py", *words[2:], *short])
    cli.train()
    (metrics,) = tmp_path.glob("runs/*/*/metrics.csv")
    assert metrics.read_text().count("\n") >= 2
    files = [file.read_text("utf-8") for file in (tmp_path / "mine").rglob("*.yaml")]
    named = re.findall(r"(?:workflow|factory): (\S+)", "".join(files))
    assert named
    assert all(name in metrics.with_name("config.yaml").read_text("utf-8") for name in named)


# Commands whose arguments are their own options, not training settings.
OWN_OPTIONS = {name: command for name, command in COMMANDS.items() if command.options}


@pytest.mark.parametrize("page", PAGES)
def test_commands_with_options_of_their_own_name_those(page: Path) -> None:
    for line, command in commands(page):
        words = shlex.split(command.removeprefix("PYTHONPATH=. "))
        program, name, *arguments = [*words, "", ""][:2] + words[2:]
        if program != "evorl" or name not in OWN_OPTIONS:
            continue
        flags = load({"run": "evorl.cli.app_run:_FLAGS"}.get(name, "evorl.cli.app_commands:_FLAGS"))
        words = without_flags(arguments, flags)
        options = OWN_OPTIONS[name].options
        if name in ("run", "compare"):  # the others are settings of a training
            words = [word for word in words if "=" not in word or word.partition("=")[0] in options]
        read_options(words, options, f"{page}:{line}: evorl {name}", unnamed="name")


@pytest.mark.parametrize("page", PAGES)
def test_tables_follow_the_configs_and_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert text == with_tables(text), "a table is out of date: python -m tests.support.doc_pages"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page} links to {target}"


def test_every_setting_is_told():
    """Each key of the run's and the algorithms' configs is in a settings table, with a description."""
    text = "".join(page.read_text(encoding="utf-8") for page in pages())
    for file in [ROOT / "configs/config.yaml", *sorted((ROOT / "configs/agent").glob("*.yaml"))]:
        assert f"<!-- settings: {file.relative_to(ROOT).as_posix()} -->" in text, f"no page tells of {file.name}"
        for name, value, comment in settings(file):
            assert comment or not value, f"{file.name}: {name} has no comment"


def test_every_command_is_told():
    assert sum("<!-- commands -->" in page.read_text(encoding="utf-8") for page in pages()) == 1


def test_reference_has_every_module():
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages())
    named = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    for path in sorted((ROOT / "evorl").rglob("[!_]*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert named.count(module) == 1, f"add a line '::: {module}' to the page of its room in docs/reference"


def test_the_conda_environment_installs_what_pip_does():
    environment = yaml.safe_load((ROOT / "environment.yaml").read_text(encoding="utf-8"))
    *_, with_pip = environment["dependencies"]
    assert with_pip == {"pip": ["-c constraints.txt", "-e ."]}
    assert "pip install -c constraints.txt -e ." in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_dependency_is_pinned_to_a_version_that_it_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    extras = project["optional-dependencies"]
    of_tests = [text for name, texts in extras.items() if name not in ("cuda", "cuda13") for text in texts]
    for text in [*project["dependencies"], *of_tests]:
        needed = Requirement(text)
        if needed.name != project["name"]:
            assert needed.specifier.contains(pins[canonicalize_name(needed.name)]), text


def test_this_test_bites(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nprint(1 + 1)\n1 / 0\n```\n\n```bash\nmake nothing\n```\n", encoding="utf-8")
    first, _ = blocks(page)
    assert (first.language, first.line) == ("python", 4)
    with pytest.raises(ZeroDivisionError) as raised:
        run_python(first, page, types.ModuleType("notebook"))
    assert raised.traceback[-1].lineno == 4  # zero-based: line 5 of the page
    assert matches("a ... c", "a b\n c")
    assert not matches("a ... d", "a b c")
    with pytest.raises(AssertionError):
        test_commands_name_options_that_exist(page)
