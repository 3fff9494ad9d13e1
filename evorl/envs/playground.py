"""Adapter for MuJoCo Playground: dm_control, locomotion and manipulation on MJX. Imports the package on first use.

The environments have brax's interface and no time limit: evorl truncates their episodes after the ``episode_length`` of
the library's config. Some observations are dicts of ``state`` and ``privileged_state``, the latter only for critics.
"""

from __future__ import annotations

import contextlib
import functools
import io
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax

from evorl.config.names import explain_missing_package, no_such
from evorl.config.values import flat
from evorl.envs.brax import BraxAdapter
from evorl.envs.env import EnvState
from evorl.envs.options import as_hashable, check_options, from_hashable, move_option, split_options
from evorl.envs.stack import wrap_env
from evorl.envs.vector import VectorEnv
from evorl.ops.platform import on_cpu
from evorl.types import PyTreeDict

# The dm_control suite: its models are part of the package. Other environments load robots of MuJoCo Menagerie.
ENV_NAMES = (
    *("AcrobotSwingup", "AcrobotSwingupSparse", "BallInCup", "CartpoleBalance", "CartpoleBalanceSparse"),
    *("CartpoleSwingup", "CartpoleSwingupSparse", "CheetahRun", "FingerSpin", "FingerTurnEasy"),
    *("FingerTurnHard", "FishSwim", "HopperHop", "HopperStand", "HumanoidRun", "HumanoidStand"),
    *("HumanoidWalk", "PendulumSwingup", "PointMass", "ReacherEasy", "ReacherHard", "SwimmerSwimmer6"),
    *("WalkerRun", "WalkerStand", "WalkerWalk"),
)
IMPLEMENTATIONS = ("jax", "warp")


class PlaygroundAdapter(BraxAdapter):
    """A MuJoCo Playground environment as an ``Env``; see ``BraxAdapter``.

    Actions are ``Box(-1, 1)``, as the library's own policies assume.

    Args:
        playground_env: an instance of the library's ``MjxEnv``, not wrapped by its training wrappers.
        spec: hashable description of ``playground_env``; adapters with equal ``spec`` are equal. Without ``spec``,
            adapters are equal only if they share the same ``playground_env`` object.
    """

    joins_batches: ClassVar[bool] = True  # XLA for CPUs does not compile MJX's touch sensors under two ``vmap``

    def __init__(self, playground_env: Any, spec: Any = None) -> None:
        super().__init__(playground_env, spec)

    def physics(self, env_state: EnvState) -> PyTreeDict:
        """Return the generalized positions ``qpos`` and velocities ``qvel``."""
        data = env_state.env_state.data
        return PyTreeDict(qpos=data.qpos, qvel=data.qvel)

    @property
    def mujoco_model(self) -> Any:
        """The ``mujoco.MjModel`` that the library loaded."""
        return self.brax_env.mj_model

    def __repr__(self) -> str:
        return f"PlaygroundAdapter({type(self.brax_env).__name__})"


def create_wrapped_playground_env(env_name: str, *, impl: str | None = None, **options: Any) -> VectorEnv:
    """Create a vectorized MuJoCo Playground environment.

    Args:
        env_name: a name in the library's registry; ``ENV_NAMES`` need no download.
        impl: physics implementation: ``"jax"`` (default), or ``"warp"``, which needs a GPU and is not deterministic.
        **options: the fields of ``EnvOptions``, where ``max_episode_steps`` is the library's ``episode_length`` and
            ``action_repeat`` its ``action_repeat`` by default; all others are entries of the environment's config in
            the library, with mappings for nested entries (``reward_config={"scales": {...}}``).

    Raises:
        ValueError: the environment or an option is unknown, ``impl`` cannot run here, or robots cannot be loaded.
        ImportError: the package is not installed.
    """
    shared, arguments = split_options(options)
    clock = {"max_episode_steps": "episode_length", "action_repeat": "action_repeat"}
    for option, entry in clock.items():  # some environments read these entries of their config: keep them equal
        move_option(shared, arguments, option, entry)
    env, config = _make_adapter(env_name, _checked_impl(impl), as_hashable(arguments))
    return wrap_env(env, **{**shared, **{option: config[entry] for option, entry in clock.items()}})


def _checked_impl(impl: str | None) -> str:
    impl = impl or "jax"
    if impl not in IMPLEMENTATIONS:
        raise ValueError(no_such("value of env.impl", impl, IMPLEMENTATIONS))
    if impl == "warp" and on_cpu():
        raise ValueError("env.impl=warp needs a GPU, but JAX runs on the CPU here: use env.impl=jax.")
    return impl


@functools.lru_cache(maxsize=16)
def _make_adapter(env_name: str, impl: str, arguments: tuple) -> tuple[PlaygroundAdapter, dict[str, int]]:
    """Return the adapter, and ``episode_length`` and ``action_repeat`` of the environment's config, by name."""
    playground = _playground()
    registry = playground.registry
    if env_name not in registry.ALL_ENVS and env_name not in playground.dm_control_suite.ALL_ENVS:
        raise ValueError(no_such("MuJoCo Playground environment", env_name, registry.ALL_ENVS))
    config, options = registry.get_default_config(env_name).lock(), from_hashable(arguments)
    check_options(f"playground {env_name}", options, config.keys())
    changes = {name: x for name, x in flat(options) if not isinstance(x, Mapping)} | {"impl": impl}
    try:
        config.update_from_flattened_dict(changes)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the config of playground {env_name} does not accept {options}: {error}") from error
    clock = {"episode_length": int(config.episode_length), "action_repeat": int(config.action_repeat)}
    with jax.ensure_compile_time_eval(), _missing_robots_explained(env_name, playground):
        env = registry.load(env_name, config=config)
    return PlaygroundAdapter(env, ("playground", env_name, impl, arguments)), clock


@contextlib.contextmanager
def _missing_robots_explained(env_name: str, playground: Any) -> Iterator[None]:
    try:
        yield
    except (subprocess.CalledProcessError, OSError) as error:
        folder = playground.registry.mjx_env.MENAGERIE_PATH
        raise ValueError(
            f"playground {env_name} needs robots of MuJoCo Menagerie, which the library clones with git on first use; "
            f"this failed ({error}): clone the repository mujoco_menagerie into {folder}, or use one of "
            f"{', '.join(ENV_NAMES)}."
        ) from error


@functools.cache
def _playground() -> Any:
    """Import and return the package; suppress its printed messages about missing optional parts."""
    requirement = ("MuJoCo Playground environments", "mujoco_playground", "playground")
    with explain_missing_package(*requirement), contextlib.redirect_stdout(io.StringIO()):
        import mujoco_playground
    return mujoco_playground
