"""Registry of the MuJoCo tasks, and loading of their models, for ``evorl.envs.mujoco`` and ``evorl.envs.mjx``."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evorl.config.names import no_such
from evorl.config.values import check_names, checked_value, declared_ranges, field_types
from evorl.envs.mujoco_runners import Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, Swimmer, Walker2d
from evorl.envs.mujoco_task import InvertedDoublePendulum, InvertedPendulum, Pusher, Range, Reacher, Task

TASKS: dict[str, type[Task]] = {
    "ant": Ant,
    "halfcheetah": HalfCheetah,
    "hopper": Hopper,
    "humanoid": Humanoid,
    "humanoidstandup": HumanoidStandup,
    "inverted_double_pendulum": InvertedDoublePendulum,
    "inverted_pendulum": InvertedPendulum,
    "pusher": Pusher,
    "reacher": Reacher,
    "swimmer": Swimmer,
    "walker2d": Walker2d,
}


def make_task(library: str, name: str, options: Mapping[str, Any], names: Iterable[str], others: Iterable[str]) -> Task:
    """Create a task.

    Args:
        library: name of the environment library, ``host`` or ``mjx``, for messages.
        name: name of the task.
        options: fields of the task's class; they have the names of the arguments of Gymnasium's environment.
        names: names of the tasks that the library supports.
        others: names of other options of the library, which messages suggest; not allowed in ``options``.

    Raises:
        ValueError: the task or an option is unknown, or a value has the wrong type or is out of range.
    """
    if name not in names:
        raise ValueError(no_such(f"task of {library}", name, names))
    task_class = TASKS[name]
    annotations = field_types(task_class)
    fields = [field.name for field in dataclasses.fields(task_class)]
    check_names(options, [*fields, *others], f"option of {library}/{name}")
    ranges = declared_ranges(task_class)
    return task_class(**{x: _checked(value, annotations[x], f"env.{x}", ranges.get(x)) for x, value in options.items()})


def load_model(task: Task) -> Any:
    """Load the ``mujoco.MjModel`` of a task from Gymnasium's files. Gymnasium itself is not imported.

    Raises:
        ImportError: MuJoCo, or Gymnasium, which contains the models, is not installed.
    """
    import mujoco as engine

    mujoco: Any = engine  # its names come from compiled modules, which type checkers cannot see
    return mujoco.MjModel.from_xml_path(str(_model_path(task.model_file)))


def numbers_of_bodies(model: Any) -> dict[str, int]:
    """Return the ids of the bodies of a ``mujoco.MjModel`` by name."""
    return {model.body(number).name: number for number in range(model.nbody)}


def _checked(value: Any, annotation: Any, name: str, within: str | None) -> Any:
    if annotation != Range:
        return checked_value(value, annotation, name, within)
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(x, int | float) for x in value)
    if not is_pair or not value[0] < value[1]:
        raise ValueError(f"{name} must be two numbers, the lower one first, got {value!r}.")
    return float(value[0]), float(value[1])


def _model_path(file_name: str) -> Path:
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("The models of the MuJoCo tasks are part of Gymnasium: pip install gymnasium")
    path = Path(spec.submodule_search_locations[0], "envs", "mujoco", "assets", file_name)
    if not path.exists():
        raise ImportError(f"The installed Gymnasium has no model {file_name}: pip install -U 'gymnasium>=1.1'")
    return path
