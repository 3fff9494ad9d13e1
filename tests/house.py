"""Code quality measures: ``python -m tests.house`` prints the table, and the tests enforce the bars."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import subprocess
import sys
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import house_measures
from tests.support.entered import EnteredFunctions
from tests.support.source_tree import circles, closure, import_graph, read_tree

ROOT = Path(__file__).resolve().parents[1]
# Measures with their bars: current values, to be tightened after each improvement. A step enters two more files than
# the first version: the check for non-finite environment results, and observations, formerly part of agent.py. An
# import also reads action conversion, observation encoding, their spaces, the gate, the session, the collector and the
# run's settings (94; 70 before them), and the 29 files that strings loaded late before this measure counted them:
# actors, goals, intrinsic rewards, synonyms. Options of SAC's family (categorical values, policy delay, projection,
# bounded rewards, resets, mixed batches) add to the lines of a step, XQC, BRO, RLPD, SimBa, SimbaV2 and FlashSAC to the
# settings that differ, which they partly share; residual blocks, the projection, and in an import the gated
# transformer, are further files. Options of PPO (adaptive rates, quantile values, drift functions, episodic bonuses)
# are four more files of an import, and lines of a step. The package grew from 71,635 lines by packed policies (1,000),
# typed Python functions and the lists of agents and environments (950), and launched sweeps, pruning of trials,
# stored compile times and the MLflow recorder (860), the panel of notebooks (130), by the rule of secrets, limits of
# downloads and advice for general defaults (480), and by silent faults of resumed sweeps, rewards of recorded and
# encoded steps, and last frames of simulators (54). Fixes of about 70 more silent faults in exports, sweeps,
# searches, commands, populations and environments added 350 lines. Docstrings lost 840 lines, because summaries now
# state results and errors. Two functions of a launcher receive a DictConfig from Hydra.
BARS: dict[str, float] = {
    "lines of the functions that a PPO step enters": 1209,
    "files of the functions that a PPO step enters": 26,
    "lines of the functions that a SAC step enters": 1451,
    "files of the functions that a SAC step enters": 31,
    "lines of the functions that evorl train enters before a step": 5468,
    "files of the functions that evorl train enters before a step": 102,
    "files that the import of algorithms/ppo.py reads": 126,
    "lines of configs/agent that stand in another of its files, %": 48.4,
    "lines of configs/env that stand in another of its files, %": 26.3,
    "settings in configs/agent that repeat the default of the class": 2,
    "settings in configs/agent that differ from it": 110,
    "circles of imports": 0,
    "classes of ours in the longest line of workflows": 4,
    "circles of imports, with names that strings load late": 0,
    "functions with a parameter config": 40,
    "functions with a parameter of type DictConfig": 5,
    "imports inside functions": 135,
    "strings that load a name late, in tables": 44,
    "strings that load a name late, outside of tables": 0,
    "functions with more than six positional parameters": 0,
    "methods of Workflow": 20,
    "fields of Workflow": 12,
    "class variables of Workflow": 7,
    "lines of the package": 74987,
    "breaches of the rules of English": 0,
}
# Target values of measures.
GOALS: dict[str, float] = {
    "lines of the functions that a PPO step enters": 1000,
    "files of the functions that a PPO step enters": 18,
    "lines of the functions that a SAC step enters": 1200,
    "files of the functions that a SAC step enters": 22,
    "lines of the functions that evorl train enters before a step": 2500,
    "files of the functions that evorl train enters before a step": 45,
    "circles of imports, with names that strings load late": 0,
    "functions with a parameter config": 40,
    "functions with a parameter of type DictConfig": 4,
    "imports inside functions": 150,
    "strings that load a name late, outside of tables": 0,
    "functions with more than six positional parameters": 0,
    "methods of Workflow": 20,
    "fields of Workflow": 12,
    "class variables of Workflow": 7,
    "lines of the package": 54000,
}
CONFIGS = {
    "ppo": {"env": "CartPole-v1", "num_envs": 4, "num_minibatches": 4},
    "sac": {"env": "CartPole-v1"},
}


def workflow_class(algorithm: str) -> type:
    """Return the main workflow class of a module of ``evorl.algorithms``."""
    module = importlib.import_module(f"evorl.algorithms.{algorithm}")
    return next(c for name, c in vars(module).items() if name.endswith("Workflow") and c.__module__ == module.__name__)


def entered(algorithm: str) -> tuple[int, int]:
    """Return lines and files of the package's functions that are entered while one step is traced in a new process."""
    import jax

    workflow: Any = workflow_class(algorithm)
    workflow = workflow.build_from_config(CONFIGS[algorithm])
    state = jax.eval_shape(workflow.setup, jax.random.key(0))
    jax.clear_caches()
    functions = EnteredFunctions()
    sys.setprofile(functions)
    try:
        jax.eval_shape(workflow.pure_step, state)
    finally:
        sys.setprofile(None)
    return functions.num_lines, functions.num_files


def entered_by_training() -> tuple[int, int]:
    """Return lines and files of the functions that a training command enters before its first traced step."""
    command = [sys.executable, "-m", "tests.support.entered"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines, files = json.loads(done.stdout.splitlines()[-1])
    return lines, files


def repeated_share(folder: Path) -> float:
    """Return the percentage of lines of a folder's YAML files that also occur in another one; comments do not count."""
    texts = [[line.strip() for line in p.read_text("utf-8").splitlines()] for p in sorted(folder.rglob("*.yaml"))]
    texts = [[line for line in lines if line and not line.startswith("#")] for lines in texts]
    homes = Counter(line for lines in texts for line in set(lines))
    return round(100 * sum(homes[line] > 1 for lines in texts for line in lines) / max(1, sum(map(len, texts))), 1)


def defaults_said_twice() -> tuple[int, int]:
    """Return the numbers of settings in agent YAML files that repeat and that change the class default."""
    from omegaconf import OmegaConf

    same = other = 0
    for path in sorted((ROOT / "configs/agent").rglob("*.yaml")):
        config: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        if not isinstance(config.get("workflow"), str):
            continue
        module, _, name = config["workflow"].rpartition(".")
        for value, default in _with_defaults(getattr(importlib.import_module(module), name), config):
            same, other = same + (value == default), other + (value != default)
    return same, other


def _with_defaults(cls: type, config: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each setting for which the class, or the class of one of its fields, has a default, with that default."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name not in config:
            continue
        value, kind = config[field.name], hints[field.name]
        if isinstance(value, dict) and dataclasses.is_dataclass(kind):
            yield from _with_defaults(typing.cast(type, kind), value)
        elif field.default is not dataclasses.MISSING and not dataclasses.is_dataclass(field.default):
            yield (list(value) if isinstance(value, tuple) else value), field.default


def longest_line() -> int:
    """Return the longest inheritance chain from a workflow to its root, without the containers of ``evorl.types``."""
    algorithms = [p.stem for p in (ROOT / "evorl/algorithms").glob("[!_]*.py")]
    lines = [workflow_class(algorithm).__mro__ for algorithm in algorithms]
    return max(sum(c.__module__.startswith("evorl.") and c.__module__ != "evorl.types" for c in mro) for mro in lines)


def measure() -> dict[str, float]:
    """Return the table in the order of ``BARS``."""
    files = read_tree(ROOT)
    graph = import_graph(files)
    numbers: list[float] = [*entered("ppo"), *entered("sac"), *entered_by_training()]
    numbers += [len(closure(graph, "evorl/algorithms/ppo.py"))]
    numbers += [repeated_share(ROOT / "configs" / folder) for folder in ("agent", "env")]
    numbers += [*defaults_said_twice(), len(circles(graph)), longest_line()]
    numbers += [len(circles(import_graph(files, loads=True)))]
    numbers += [
        count(files)
        for count in (
            house_measures.functions_of_config,
            house_measures.functions_of_dict_config,
            house_measures.imports_in_functions,
            house_measures.load_strings_in_tables,
            house_measures.other_load_strings,
            house_measures.functions_of_many_positions,
        )
    ]
    numbers += house_measures.interface(files, "evorl/workflows/workflow.py", "Workflow")
    numbers += [house_measures.package_lines(files), house_measures.english_breaches(files)]
    return dict(zip(BARS, numbers, strict=True))


def main() -> None:
    """Print the table; with ``--json`` only the numbers."""
    measured = measure()
    if "--json" in sys.argv:
        print(json.dumps(measured))
        return
    width = max(map(len, BARS))
    print(f"{'measure':{width}}  {'is':>7}  {'at most':>7}  {'goal':>7}")
    for name, number in measured.items():
        goal = f"{GOALS[name]:7g}" if name in GOALS else " " * 7
        print(
            f"{name:{width}}  {number:7g}  {BARS[name]:7g}  {goal}{'' if number <= BARS[name] else '  above its bar'}"
        )
    suites = [p.stem for p in sorted((ROOT / "tests/conformance").glob("[!t_]*.py"))]
    inherited = Counter(
        name
        for p in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"\((\w+Contract)\):", p.read_text("utf-8"))
    )
    print(f"contract suites: {', '.join(suites)}; classes that inherit them: {dict(sorted(inherited.items()))}")
    print("files edited by adding an algorithm: 0, by tests/test_adding_an_algorithm.py")


if __name__ == "__main__":
    main()
