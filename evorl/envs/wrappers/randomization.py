"""Domain randomization: each episode samples physics parameters, such as masses and frictions.

A policy trained under many physics parameters can transfer to unseen ones, such as a real robot's (Tobin et al.
2017, https://arxiv.org/abs/1703.06907; Peng et al. 2018, https://arxiv.org/abs/1710.06537).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import no_such
from evorl.config.values import check_names, checked_mapping, checked_value
from evorl.envs.env import Env, EnvState, PhysicsEnv, compiled
from evorl.envs.wrappers.wrapper import Wrapper
from evorl.ops.random import as_typed_key
from evorl.ops.trees import named_leaves, with_leaves
from evorl.types import Action, Key, PyTreeDict

IN_EVALUATION = "in_evaluation"
_KEYS = ("scale", "shift", "each", "entries")
# Parts of the names of quantities that are never negative.
_NEVER_NEGATIVE = "mass inertia friction damping armature stiffness timestep density viscosity".split()
# Fields of brax and MuJoCo with such a name that may be negative: exponents, coefficients, solver parameters, and
# positions (link.inertia.transform).
_SIGNED = "vel_damping ang_damping spring_mass_scale spring_inertia_scale jnt_stiffnesspoly dof_dampingpoly".split()
_SIGNED += "tendon_stiffnesspoly tendon_dampingpoly pair_solreffriction transform".split()
_POSITIVE = ("mass", "inertia", "timestep")  # values of these fields must stay positive, unless the model has 0


@dataclasses.dataclass(frozen=True)
class FieldRange:
    """Distribution of one field of a physics model: its value times a random factor plus a random summand.

    Attributes:
        name: name of the field, with dots if it is nested, such as ``opt.gravity``.
        scale: bounds of the uniformly distributed factor.
        shift: bounds of the uniformly distributed summand.
        each: true samples a factor and a summand for every number of the array; otherwise all numbers share one pair.
        entries: indices along the first axis of the entries to randomize; ``None`` for all.
    """

    name: str
    scale: tuple[float, float] = (1.0, 1.0)
    shift: tuple[float, float] = (0.0, 0.0)
    each: bool = False
    entries: tuple[int, ...] | None = None

    def draw(self, value: jax.Array, key: Key) -> jax.Array:
        """Return the field's values for one episode, sampled with ``key``; ``value`` is the array in the model."""
        chosen = value if self.entries is None else value[np.array(self.entries)]
        scale_key, shift_key = jax.random.split(key)
        shape = chosen.shape if self.each else ()
        drawn = chosen * _uniform(scale_key, shape, self.scale) + _uniform(shift_key, shape, self.shift)
        return drawn if self.entries is None else value.at[np.array(self.entries)].set(drawn)

    def limits(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the randomized entries of the model's array ``value``, and the minimum that each can have.

        For inertia matrices, only the diagonals are returned: products of inertia may be negative.
        """
        chosen = value if self.entries is None else value[list(self.entries)]
        if self.name.endswith("inertia.i"):
            chosen = np.diagonal(chosen, axis1=-2, axis2=-1)
        return chosen, np.minimum(chosen * self.scale[0], chosen * self.scale[1]) + self.shift[0]


class RandomizedPhysicsWrapper(Wrapper):
    """Samples the physics parameters of a ``PhysicsEnv`` at the start of each episode. Must be the innermost wrapper.

    The parameters are constant during an episode. They are part of the state, as ``_internal.physics``.

    Args:
        env: a ``PhysicsEnv``, or a user's environment that wraps one.
        ranges: distributions of the fields of its model, see ``range_of_field``.

    Raises:
        ValueError: the environment has no model; or a field has no effect in its physics, or is read by Python code.
    """

    def __init__(self, env: Env, ranges: Sequence[FieldRange]) -> None:
        super().__init__(env)
        self.ranges = tuple(ranges)
        self._check_fields_are_read(physics_of(env))

    @compiled
    def reset(self, key: Key) -> EnvState:
        physics, (reset_key, *keys) = physics_of(self.env), jax.random.split(as_typed_key(key), len(self.ranges) + 1)
        fields = dict(model_fields(physics.physics_model))
        drawn = PyTreeDict({r.name: r.draw(jnp.asarray(fields[r.name]), k) for r, k in zip(self.ranges, keys)})
        return self._remembering(physics.reset_in(with_leaves(physics.physics_model, drawn), reset_key), drawn)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        physics, drawn = physics_of(self.env), env_state._internal.physics
        return self._remembering(physics.step_in(with_leaves(physics.physics_model, drawn), env_state, action), drawn)

    def _remembering(self, state: EnvState, drawn: PyTreeDict) -> EnvState:
        return state.replace(_internal=state._internal | {"physics": drawn})

    def _check_fields_are_read(self, physics: PhysicsEnv) -> None:
        """Raise ``ValueError`` for a field that affects neither resets nor steps, or that uncompiled code reads."""
        fields = dict(model_fields(physics.physics_model))
        values = {r.name: fields[r.name] for r in self.ranges}
        action = physics.action_space.zeros(())

        def episode(values: Mapping[str, jax.Array], key: Key) -> Any:
            model = with_leaves(physics.physics_model, values)
            state = physics.reset_in(model, key)
            return state, physics.step_in(model, state, action)

        try:
            read = dict(zip(sorted(values), _used_arguments(jax.make_jaxpr(episode)(values, jax.random.key(0)).jaxpr)))
        except jax.errors.JAXTypeError as error:
            raise ValueError(
                f"env.randomization: Python code of {physics!r} needs the value of a randomized field (one of "
                f"{', '.join(values)}), which varies at runtime: do not randomize it. {str(error).splitlines()[0]}"
            ) from error
        if unread := [name for name in values if not read[name]]:
            raise ValueError(
                f"env.randomization.{unread[0]}: the physics of {physics!r} does not read this field, so that "
                "randomizing it would have no effect. Field names depend on the backend: brax's own backends use "
                "link.inertia.mass for body_mass, and gravity for opt.gravity."
            )


def randomized(env: Env, config: Any) -> Env:
    """Wrap ``env`` to randomize its physics as ``config`` requests; return ``env`` unchanged if no field is named.

    Args:
        env: an environment without wrappers.
        config: settings of each field by its dotted or nested name, see ``range_of_field``; or ``None``. The entry
            ``in_evaluation``, a bool, has no effect here.

    Raises:
        ValueError: the environment has no physics model or no such field, or a range is invalid.
    """
    settings = {str(name): value for name, value in checked_mapping(config, "env.randomization").items()}
    checked_value(settings.pop(IN_EVALUATION, True), bool, f"env.randomization.{IN_EVALUATION}")
    if not settings:
        return env
    physics = physics_of(env)
    fields = dict(model_fields(physics.physics_model))
    by_field = _by_field(settings, "", fields, physics)
    return RandomizedPhysicsWrapper(
        env, [range_of_field(name, setting, np.asarray(fields[name])) for name, setting in by_field]
    )


def physics_of(env: Env) -> PhysicsEnv:
    """Return the environment with a physics model: ``env``, or its inner environment if it only forwards calls.

    Raises:
        ValueError: neither of them has a physics model.
    """
    physics = env
    if isinstance(env, Wrapper) and (type(env).reset, type(env).step) == (Wrapper.reset, Wrapper.step):
        physics = env.env
    if not isinstance(physics, PhysicsEnv) or physics.physics_model is None:
        raise ValueError(
            f"env.randomization needs a physics model, but {type(physics).__name__} lacks one: use brax or mjx, "
            "or define your environment as a PhysicsEnv."
        )
    return physics


def model_fields(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of each floating-point array of a model, except fields named ``_...``."""
    for name, value in named_leaves(model).items():
        is_private = any(part.startswith("_") for part in name.split("."))
        if jnp.issubdtype(jnp.result_type(value), jnp.floating) and np.size(value) and not is_private:
            yield name, value


def _by_field(
    node: Mapping[str, Any], above: str, fields: Mapping[str, Any], physics: PhysicsEnv
) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the settings of each field of ``node``; ``above`` is the prefix of its names."""
    for part, setting in node.items():
        name = f"{above}{part}"
        if name in fields:
            yield name, setting
        elif any(field.startswith(f"{name}.") for field in fields) and isinstance(setting, Mapping):
            yield from _by_field(setting, f"{name}.", fields, physics)
        else:
            raise ValueError(f"env.randomization: {no_such(f'field of the physics of {physics!r}', name, fields)}")


def range_of_field(name: str, setting: Any, value: np.ndarray) -> FieldRange:
    """Return the distribution of a field of a physics model.

    Args:
        name: dotted name of the field.
        setting: mapping with ``scale``, ``shift`` or both (pairs of bounds), and optionally ``each`` (false) and
            ``entries`` (a list of indices); see ``FieldRange``.
        value: value of the field in the model, of any shape.

    Raises:
        ValueError: a setting is unknown, or a range is invalid or allows values that the quantity cannot have.
    """
    where = f"env.randomization.{name}"
    settings = checked_mapping(setting, where)
    check_names(settings, _KEYS, f"setting of {where}")
    if not {"scale", "shift"} & set(settings):
        raise ValueError(f"{where} needs scale or shift, each a pair of bounds, such as {{scale: [0.8, 1.2]}}.")
    ranges = {kind: _range(settings[kind], f"{where}.{kind}") for kind in ("scale", "shift") if kind in settings}
    each = checked_value(settings.get("each", False), bool, f"{where}.each")
    field_range = FieldRange(name, **ranges, each=each, entries=_entries(settings.get("entries"), value, where))
    chosen, lowest = field_range.limits(value)
    is_signed = any(part in _SIGNED for part in name.split("."))
    if not is_signed and any(word in name for word in _NEVER_NEGATIVE):
        may_be_zero = not any(word in name for word in _POSITIVE)
        wrong = (chosen >= 0) & ((lowest < 0) | ((lowest == 0) & (chosen > 0) & (not may_be_zero)))
        if wrong.any():
            worst, sign = np.argmin(np.where(wrong, lowest, np.inf)), "non-negative" if may_be_zero else "positive"
            raise ValueError(
                f"{where} could become {lowest.flat[worst]:g}, where the model has {chosen.flat[worst]:g}, but must be "
                f"{sign}: use another range{f', or only other indices in {where}.entries' if value.ndim else ''}."
            )
    return field_range


def _range(setting: Any, where: str) -> tuple[float, float]:
    bounds = setting if isinstance(setting, Sequence) else ()
    are_finite = all(isinstance(x, int | float) and math.isfinite(x) for x in bounds)
    if len(bounds) != 2 or not are_finite or bounds[0] > bounds[1]:
        raise ValueError(f"{where} must be two numbers, the lower one first, such as [0.8, 1.2]; got {setting!r}.")
    return float(bounds[0]), float(bounds[1])


def _entries(setting: Any, value: np.ndarray, where: str) -> tuple[int, ...] | None:
    if setting is None:
        return None
    count = value.shape[0] if value.ndim else 0
    is_list = isinstance(setting, Sequence) and not isinstance(setting, str) and len(setting) > 0
    if not is_list or not all(type(x) is int and 0 <= x < count for x in setting) or len(set(setting)) < len(setting):
        expected = f"a list of distinct integers from 0 to {count - 1}" if count else "omitted for a scalar field"
        raise ValueError(f"{where}.entries must be {expected}, got {setting!r}.")
    return tuple(setting)


def _uniform(key: Key, shape: tuple[int, ...], limits: tuple[float, float]) -> Any:
    return limits[0] if limits[0] == limits[1] else jax.random.uniform(key, shape, minval=limits[0], maxval=limits[1])


def _used_arguments(jaxpr: Any) -> list[bool]:
    """Return one bool per argument of a program: True if a result depends on the argument.

    Every output of an equation is assumed to depend on all of its inputs.
    """
    needed = {id(var) for var in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in needed for var in equation.outvars):
            needed |= {id(var) for var in equation.invars}
    return [id(var) in needed for var in jaxpr.invars]
