"""Domain randomisation: numbers of the physics, masses and frictions say, are other ones in each episode.

What is learned under many physics serves under one more, such as a robot's (Tobin et al. 2017,
https://arxiv.org/abs/1703.06907; Peng et al. 2018, https://arxiv.org/abs/1710.06537).
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
from evorl.types import Action, Key, PyTreeDict

IN_EVALUATION = "in_evaluation"
_KEYS = ("scale", "shift", "each", "entries")
# Words in the names of quantities that are nowhere negative.
_NEVER_NEGATIVE = (
    "mass",
    "inertia",
    "friction",
    "damping",
    "armature",
    "stiffness",
    "timestep",
    "density",
    "viscosity",
)
_POSITIVE = ("mass", "inertia", "timestep")  # of those, what is not zero in the model must not become zero


@dataclasses.dataclass(frozen=True)
class FieldRange:
    """How one field of a model is drawn: its values times a number of ``scale``, plus a number of ``shift``.

    Attributes:
        name: of the field, with dots where it is nested.
        scale: from where to where the factor is uniformly drawn.
        shift: from where to where the summand is uniformly drawn.
        each: every entry has draws of its own; else one factor and one summand are those of all entries.
        entries: which entries of the first axis are changed, ``None`` for all.
    """

    name: str
    scale: tuple[float, float] = (1.0, 1.0)
    shift: tuple[float, float] = (0.0, 0.0)
    each: bool = False
    entries: tuple[int, ...] | None = None

    def draw(self, value: jax.Array, key: Key) -> jax.Array:
        """The field's values in one episode, from those of the model."""
        chosen = value if self.entries is None else value[np.array(self.entries)]
        scale_key, shift_key = jax.random.split(key)
        shape = chosen.shape if self.each else ()
        drawn = chosen * _uniform(scale_key, shape, self.scale) + _uniform(shift_key, shape, self.shift)
        return drawn if self.entries is None else value.at[np.array(self.entries)].set(drawn)

    def limits(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries that are drawn, and the least that each can become."""
        chosen = value if self.entries is None else value[list(self.entries)]
        return chosen, np.minimum(chosen * self.scale[0], chosen * self.scale[1]) + self.shift[0]


class RandomizedPhysicsWrapper(Wrapper):
    """A ``PhysicsEnv`` in which numbers of the physics are drawn at the start of each episode. The innermost wrapper.

    They stay for the episode, in ``_internal.physics`` of the state: with it they are saved, and restored.

    Args:
        env: a ``PhysicsEnv``, or a user's environment that is one.
        ranges: how fields of its model are drawn, see ``ranges_from_config``.

    Raises:
        ValueError: the environment has no model, or its physics does not read such a field, or not in a program.
    """

    def __init__(self, env: Env, ranges: Sequence[FieldRange]) -> None:
        super().__init__(env)
        self.ranges = tuple(ranges)
        self._check_that_they_count(physics_of(env))

    @compiled
    def reset(self, key: Key) -> EnvState:
        """See ``Env.reset``."""
        physics, (reset_key, *keys) = physics_of(self.env), jax.random.split(as_typed_key(key), len(self.ranges) + 1)
        fields = dict(model_fields(physics.physics_model))
        drawn = PyTreeDict({r.name: r.draw(jnp.asarray(fields[r.name]), k) for r, k in zip(self.ranges, keys)})
        return self._remembering(physics.reset_in(with_fields(physics.physics_model, drawn), reset_key), drawn)

    @compiled
    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """See ``Env.step``."""
        physics, drawn = physics_of(self.env), env_state._internal.physics
        return self._remembering(physics.step_in(with_fields(physics.physics_model, drawn), env_state, action), drawn)

    def _remembering(self, state: EnvState, drawn: PyTreeDict) -> EnvState:
        return state.replace(_internal=state._internal | {"physics": drawn})

    def _check_that_they_count(self, physics: PhysicsEnv) -> None:
        """Raises ``ValueError`` for a field of which neither a start nor a step depends."""
        fields = dict(model_fields(physics.physics_model))
        values = {r.name: fields[r.name] for r in self.ranges}
        action = physics.action_space.zeros(())

        def episode(values: Mapping[str, jax.Array], key: Key) -> Any:
            model = with_fields(physics.physics_model, values)
            state = physics.reset_in(model, key)
            return state, physics.step_in(model, state, action)

        try:
            read = dict(zip(sorted(values), _which_count(jax.make_jaxpr(episode)(values, jax.random.key(0)).jaxpr)))
        except jax.errors.JAXTypeError as error:
            raise ValueError(
                f"env.randomization: {physics!r} computes with {', '.join(values)} before it is compiled, where they "
                f"cannot be drawn ({str(error).splitlines()[0]})"
            ) from error
        if unread := [name for name in values if not read[name]]:
            raise ValueError(
                f"env.randomization.{unread[0]}: the physics of {physics!r} does not read this field, so that drawing "
                "it would change nothing. Other backends have other fields: brax's own have link.inertia.mass for "
                "body_mass, and gravity for opt.gravity."
            )


def randomized(env: Env, config: Any) -> Env:
    """``env`` with what the option ``env.randomization`` asks for around it.

    Args:
        env: a bare adapter.
        config: see ``ranges_from_config``; of ``None``, and of no field, the environment as it is.

    Raises:
        ValueError: the environment has no model of its physics, or such a field, or a range is impossible; in words.
    """
    settings = {str(name): value for name, value in checked_mapping(config, "env.randomization").items()}
    checked_value(settings.pop(IN_EVALUATION, True), bool, f"env.randomization.{IN_EVALUATION}")
    return RandomizedPhysicsWrapper(env, ranges_from_config(settings, physics_of(env))) if settings else env


def physics_of(env: Env) -> PhysicsEnv:
    """``env``, or the environment that a user's is around, if it has a model of its physics.

    Raises:
        ValueError: it has none.
    """
    physics = env if isinstance(env, PhysicsEnv) else getattr(env, "env", env)
    if not isinstance(physics, PhysicsEnv) or physics.physics_model is None:
        raise ValueError(
            f"env.randomization draws numbers of a physics, and {type(physics).__name__} has no model of any: it is "
            "for brax, for mjx, and for environments of your own that are a PhysicsEnv."
        )
    return physics


def ranges_from_config(config: Mapping[str, Any], physics: PhysicsEnv) -> list[FieldRange]:
    """What is drawn of a model.

    Args:
        config: by the name of a field, dotted or nested where the field is: ``scale`` and ``shift``, each from where to
            where; ``each`` (false); ``entries``, whole numbers.
        physics: whose model it is.

    Raises:
        ValueError: no such field or setting, or a range that is none or leaves what the quantity can be; in words.
    """
    fields = dict(model_fields(physics.physics_model))
    return [
        _field_range(name, given, np.asarray(fields[name])) for name, given in _by_field(config, "", fields, physics)
    ]


def model_fields(model: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a model that hold numbers, by their dotted names; what the library keeps to itself is left out."""
    for path, value in jax.tree_util.tree_flatten_with_path(model)[0]:
        name = _dotted(path)
        if jnp.issubdtype(jnp.result_type(value), jnp.floating) and np.size(value) and "_" not in _initials(name):
            yield name, value


def with_fields(model: Any, values: Mapping[str, Any]) -> Any:
    """``model`` with other values in some of its fields."""
    return jax.tree_util.tree_map_with_path(lambda path, value: values.get(_dotted(path), value), model)


def _dotted(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _initials(name: str) -> list[str]:
    return [part[:1] for part in name.split(".")]


def _by_field(
    config: Mapping[str, Any], above: str, fields: Mapping[str, Any], physics: PhysicsEnv
) -> Iterator[tuple[str, Any]]:
    """The settings of each field, whether its name is dotted or nested."""
    for part, given in config.items():
        name = f"{above}{part}"
        if name in fields:
            yield name, given
        elif any(field.startswith(f"{name}.") for field in fields) and isinstance(given, Mapping):
            yield from _by_field(given, f"{name}.", fields, physics)
        else:
            raise ValueError(f"env.randomization: {no_such(f'field of the physics of {physics!r}', name, fields)}")


def _field_range(name: str, given: Any, value: np.ndarray) -> FieldRange:
    where = f"env.randomization.{name}"
    settings = checked_mapping(given, where)
    check_names(settings, _KEYS, f"setting of {where}")
    if not {"scale", "shift"} & set(settings):
        raise ValueError(f"{where} needs scale or shift, from where to where, such as {{scale: [0.8, 1.2]}}.")
    ranges = {kind: _range(settings[kind], f"{where}.{kind}") for kind in ("scale", "shift") if kind in settings}
    each = checked_value(settings.get("each", False), bool, f"{where}.each")
    field_range = FieldRange(name, **ranges, each=each, entries=_entries(settings.get("entries"), value, where))
    chosen, lowest = field_range.limits(value)
    if any(word in name for word in _NEVER_NEGATIVE):
        may_be_zero = not any(word in name for word in _POSITIVE)
        wrong = (chosen >= 0) & ((lowest < 0) | ((lowest == 0) & (chosen > 0) & (not may_be_zero)))
        if wrong.any():
            worst = np.argmin(np.where(wrong, lowest, np.inf))
            raise ValueError(
                f"{where} could become {lowest.flat[worst]:g}, where the model has {chosen.flat[worst]:g}: it is "
                f"{'not negative' if may_be_zero else 'positive'}. Take another range, or leave those entries out."
            )
    return field_range


def _range(given: Any, where: str) -> tuple[float, float]:
    is_pair = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2
    if not is_pair or not all(isinstance(x, int | float) and math.isfinite(x) for x in given) or given[0] > given[1]:
        raise ValueError(f"{where} must be two numbers, the lower one first, got {given!r}.")
    return float(given[0]), float(given[1])


def _entries(given: Any, value: np.ndarray, where: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    count = value.shape[0] if value.ndim else 0
    is_list = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 0
    if not is_list or not all(type(x) is int and 0 <= x < count for x in given) or len(set(given)) < len(given):
        expected = f"different whole numbers from 0 to {count - 1}" if count else "left out: the field is one number"
        raise ValueError(f"{where}.entries must be {expected}, got {given!r}.")
    return tuple(given)


def _uniform(key: Key, shape: tuple[int, ...], limits: tuple[float, float]) -> Any:
    return limits[0] if limits[0] == limits[1] else jax.random.uniform(key, shape, minval=limits[0], maxval=limits[1])


def _which_count(jaxpr: Any) -> list[bool]:
    """Of each argument of a program, whether its results depend on it; an equation is taken as a whole."""
    needed = {id(var) for var in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in needed for var in equation.outvars):
            needed |= {id(var) for var in equation.invars}
    return [id(var) in needed for var in jaxpr.invars]
