"""Environments of MuJoCo Playground: dm_control, locomotion and manipulation on MJX, imported when they are used.

They have brax's interface. None has a clock: the library's ``episode_length`` is the time limit, and what it cuts is
told as truncation. Observations of some are a dict, of ``state`` and of ``privileged_state``, which only critics see.
"""

from __future__ import annotations

import contextlib
import functools
import io
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from evorl.config.names import missing_in_words, no_such
from evorl.envs.brax import BraxAdapter
from evorl.envs.env import EnvState
from evorl.envs.options import as_hashable, check_options, from_hashable, split_options
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.collectives import on_cpu
from evorl.types import PyTreeDict

# Those whose models come with the package: the dm_control suite. The others load robots of MuJoCo Menagerie.
ENV_NAMES = (
    "AcrobotSwingup",
    "AcrobotSwingupSparse",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleBalanceSparse",
    "CartpoleSwingup",
    "CartpoleSwingupSparse",
    "CheetahRun",
    "FingerSpin",
    "FingerTurnEasy",
    "FingerTurnHard",
    "FishSwim",
    "HopperHop",
    "HopperStand",
    "HumanoidRun",
    "HumanoidStand",
    "HumanoidWalk",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "ReacherHard",
    "SwimmerSwimmer6",
    "WalkerRun",
    "WalkerStand",
    "WalkerWalk",
)
IMPLEMENTATIONS = ("jax", "warp")


class PlaygroundAdapter(BraxAdapter):
    """An environment of MuJoCo Playground as an ``Env``, one and unwrapped: see ``BraxAdapter``.

    Actions are ``Box(-1, 1)``, which the library's policies give and its models take.

    Args:
        playground_env: an instance of the library's ``MjxEnv``, not wrapped by its training wrappers.
        spec: what it was built from, hashable: adapters of equal spec are equal. Without it, only those of the very
            same ``playground_env``.
    """

    def __init__(self, playground_env: Any, spec: Any = None) -> None:
        super().__init__(playground_env, spec)

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """``qpos`` and ``qvel``."""
        data = env_state.env_state.data
        return PyTreeDict(qpos=data.qpos, qvel=data.qvel)

    @property
    def mujoco_model(self) -> Any:
        """The model that the library loaded."""
        return self.brax_env.mj_model

    def __repr__(self) -> str:
        return f"PlaygroundAdapter({type(self.brax_env).__name__})"


def create_wrapped_playground_env(env_name: str, *, impl: str | None = None, **options: Any) -> VectorEnv:
    """A vector env of MuJoCo Playground.

    Args:
        env_name: a name of its registry, of which ``ENV_NAMES`` need nothing but the package.
        impl: physics: ``"jax"`` (default), or ``"warp"``, which needs a GPU and gives other numbers in every run.
        **options: the fields of ``EnvOptions``, of which ``max_episode_steps`` is the library's ``episode_length`` and
            ``action_repeat`` its ``action_repeat`` by default; every other one is an entry of the environment's config
            in the library, mappings for those of its parts (``reward_config={"scales": {...}}``).

    Raises:
        ValueError: unknown environment or option, physics that cannot run here, or robots that cannot be loaded.
        ImportError: the package is not installed.
    """
    shared, arguments = split_options(options)
    clock = {"max_episode_steps": "episode_length", "action_repeat": "action_repeat"}
    for option, entry in clock.items():  # some environments look at their own clock: it says the same
        if shared.get(option) is not None:
            arguments[entry] = shared[option]
    env, config = _make_adapter(env_name, _checked_impl(impl), as_hashable(arguments))
    return wrap_env(env, **{**shared, **{option: config[entry] for option, entry in clock.items()}})


def _checked_impl(impl: str | None) -> str:
    impl = impl or "jax"
    if impl not in IMPLEMENTATIONS:
        raise ValueError(no_such("implementation of the physics (env.impl)", impl, IMPLEMENTATIONS))
    if impl == "warp" and on_cpu():
        raise ValueError("env.impl=warp is physics for GPUs, and JAX runs on the CPU here: take env.impl=jax.")
    return impl


@functools.lru_cache(maxsize=16)
def _make_adapter(env_name: str, impl: str, arguments: tuple) -> tuple[PlaygroundAdapter, dict[str, int]]:
    """The environment, and of the library's config the time limit and the action repeat."""
    playground = _playground()
    registry = playground.registry
    if env_name not in registry.ALL_ENVS and env_name not in playground.dm_control_suite.ALL_ENVS:
        raise ValueError(no_such("environment of MuJoCo Playground", env_name, registry.ALL_ENVS))
    config, options = registry.get_default_config(env_name).lock(), from_hashable(arguments)
    check_options(f"playground {env_name}", options, config.keys())
    changes = dict(_flat(options)) | {"impl": impl}
    try:
        config.update_from_flattened_dict(changes)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"playground {env_name} has no such config as {options}: {error}") from error
    clock = {"episode_length": int(config.episode_length), "action_repeat": int(config.action_repeat)}
    with jax.ensure_compile_time_eval(), _words_of_missing_robots(env_name, playground):
        env = registry.load(env_name, config=config)
    return PlaygroundAdapter(env, ("playground", env_name, impl, arguments)), clock


@contextlib.contextmanager
def _words_of_missing_robots(env_name: str, playground: Any) -> Iterator[None]:
    try:
        yield
    except (subprocess.CalledProcessError, OSError) as error:
        folder = playground.registry.mjx_env.MENAGERIE_PATH
        raise ValueError(
            f"playground {env_name} needs robots of MuJoCo Menagerie, which the library clones with git when they are "
            f"first used, and it could not ({error}): clone the repository mujoco_menagerie into {folder}, or take one "
            f"of {', '.join(ENV_NAMES)}."
        ) from error


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of nested mappings by their joined names, ``reward_config.scales.pose``."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@functools.cache
def _playground() -> Any:
    """The package. What its first import prints, of optional parts that are missing, is not of interest here."""
    what = ("environments of MuJoCo Playground", "mujoco_playground", "playground")
    with missing_in_words(*what), contextlib.redirect_stdout(io.StringIO()):
        import mujoco_playground
    return mujoco_playground
