"""Search spaces of hyperparameters: numbers of a workflow with bounds and a linear or logarithmic scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp

from evorl.config.names import no_such
from evorl.config.values import check_names, checked_mapping, checked_value, declared_ranges
from evorl.ops.schedules import ExponentialScheduleSpec, Schedule
from evorl.ops.trees import named_leaves
from evorl.types import Key, PyTreeNode, pytree_field

_BOUNDS = ("low", "high", "scale")


class SearchSpace(PyTreeNode):
    """Bounds and scales of D hyperparameters; a point of the space is an array ``[..., D]``.

    The unit coordinate of a hyperparameter, on its scale, is 0 at ``low`` and 1 at ``high``.

    Attributes:
        paths: paths in the workflow, such as ``agent.clip_epsilon``.
        low: lower bounds, ``[D]``.
        high: upper bounds, ``[D]``.
        logarithmic: True for logarithmic scales, bool ``[D]``.
    """

    paths: tuple[str, ...] = pytree_field(static=True)
    low: jax.Array
    high: jax.Array
    logarithmic: jax.Array

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, workflow: PyTreeNode, not_searched: tuple[str, ...]) -> Self:
        """Build the space from a mapping from paths to ``{low, high, scale}``.

        Args:
            config: mapping with dotted or nested paths; entries that are ``None`` are ignored.
            workflow: workflow whose numbers are searched.
            not_searched: settings that have no effect on a member, with all their entries.

        Raises:
            ValueError: the space is empty, a path is listed twice or is not a number to search, or bounds are invalid.
        """
        searched: dict[str, tuple[float, float, bool]] = {}
        leaves = named_leaves(workflow).items()
        numbers = [n for n, leaf in leaves if isinstance(leaf, float) and n.partition(".")[0] not in not_searched]
        for path, bounds in space_entries(checked_mapping(config, "search_space"), _BOUNDS[:2]):
            if path in searched:
                raise ValueError(f"search_space has {path} twice: remove one of them.")
            if path not in numbers:
                raise ValueError(f"search_space.{path}: {_explain_invalid(workflow, path, numbers)}")
            searched[path] = _checked_bounds(bounds, workflow, path)
        if not searched:
            raise ValueError(
                "search_space is empty: add the hyperparameters to search, for example "
                f"{{{numbers[0] if numbers else 'discount'}: {{low: 0.1, high: 0.9, scale: linear}}}}."
            )
        low, high, logarithmic = zip(*searched.values(), strict=True)
        return cls(
            paths=tuple(searched),
            low=jnp.asarray(low, jnp.float32),
            high=jnp.asarray(high, jnp.float32),
            logarithmic=jnp.asarray(logarithmic),
        )

    def named(self, points: jax.Array) -> dict[str, jax.Array]:
        """Split points ``[..., D]`` into one value ``[...]`` per path."""
        return {path: points[..., i] for i, path in enumerate(self.paths)}

    def from_unit(self, shares: jax.Array) -> jax.Array:
        """Return the points ``[..., D]`` with unit coordinates ``shares``, clipped to the bounds."""
        # The logarithmic formula is also evaluated for linear scales: substitute 1 to avoid NaN.
        low, high = (jnp.where(self.logarithmic, bound, 1.0) for bound in (self.low, self.high))
        along_log = low * jnp.exp(shares * jnp.log(high / low))
        values = jnp.where(self.logarithmic, along_log, self.low + shares * (self.high - self.low))
        return jnp.clip(values, self.low, self.high)

    def to_unit(self, points: jax.Array) -> jax.Array:
        """Return the unit coordinates ``[..., D]`` of points."""
        low, high, values = (jnp.where(self.logarithmic, x, 1.0) for x in (self.low, self.high, points))
        along_log = jnp.log(values / low) / jnp.where(self.logarithmic, jnp.log(high / low), 1.0)
        return jnp.where(self.logarithmic, along_log, (points - self.low) / (self.high - self.low))

    def sample(self, key: Key, num_points: int) -> jax.Array:
        """Sample points ``[num_points, D]`` uniformly in unit coordinates, independently for each entry."""
        return self.from_unit(jax.random.uniform(key, (num_points, len(self.paths))))

    def resample(self, key: Key, points: jax.Array, probability: jax.Array | float) -> jax.Array:
        """Resample each entry of points ``[P, D]`` with probability ``probability``."""
        choice_key, sample_key = jax.random.split(key)
        is_resampled = jax.random.bernoulli(choice_key, probability, points.shape)
        return jnp.where(is_resampled, self.sample(sample_key, len(points)), points)

    def perturb(self, key: Key, points: jax.Array, factor: jax.Array | float) -> jax.Array:
        """Move each entry of points ``[P, D]`` up or down at random, within the bounds.

        On a logarithmic scale an entry is multiplied or divided by ``factor``. On a linear scale it moves by the
        fraction ``factor - 1`` of the range, because multiplying is not useful for a discount near 1 or a value of 0.
        """
        up = jax.random.bernoulli(key, shape=points.shape)
        by_factor = jnp.where(up, points * factor, points / factor)
        by_step = points + jnp.where(up, 1.0, -1.0) * (factor - 1.0) * (self.high - self.low)
        return jnp.clip(jnp.where(self.logarithmic, by_factor, by_step), self.low, self.high)


def space_entries(node: Mapping[str, Any], marks: tuple[str, ...], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of the entries of nested mappings; a mapping with one of the keys ``marks`` is a value."""
    for name, value in node.items():
        if isinstance(value, Mapping) and not set(value) & set(marks):
            yield from space_entries(value, marks, f"{above}{name}.")
        elif value is not None:
            yield f"{above}{name}", value


def _checked_bounds(bounds: Any, workflow: PyTreeNode, path: str) -> tuple[float, float, bool]:
    """Return low, high, and True for a logarithmic scale; raise ``ValueError`` if an entry is invalid."""
    where = f"search_space.{path}"
    if not isinstance(bounds, Mapping) or not {"low", "high"} <= set(bounds):
        raise ValueError(f"{where} must be a mapping such as {{low: 0.1, high: 0.9, scale: log}}, got {bounds!r}.")
    check_names(bounds, _BOUNDS, f"key of {where}")
    within = range_of_number(workflow, path)
    low, high = (checked_value(bounds[bound], float, f"{where}.{bound}", within) for bound in ("low", "high"))
    if low >= high:
        raise ValueError(f"{where}: low={low:g} must be below high={high:g}.")
    scale = checked_value(bounds.get("scale", "linear"), Literal["linear", "log"], f"{where}.scale")
    if scale == "log" and low <= 0:
        raise ValueError(f"{where}: low={low:g} must be above 0 for scale: log. Raise it, or use scale: linear.")
    return low, high, scale == "log"


def range_of_number(workflow: PyTreeNode, path: str) -> str | None:
    """Return the interval declared for a number, or for the schedule that contains it; ``None`` if undeclared.

    Raises:
        ValueError: the number is not a setting of its class, which may inherit it without using it.
    """
    above, _, name = path.rpartition(".")
    node = _follow(workflow, above)
    if isinstance(node, Schedule | ExponentialScheduleSpec) and name in ("start", "end", "init", "final"):
        return range_of_number(workflow, above)
    field = getattr(node, "__dataclass_fields__", {}).get(name)
    if field is not None and not field.metadata.get("setting", True):
        raise ValueError(f"{path} has no effect in {type(node).__name__}: remove it.")
    return declared_ranges(type(node)).get(name)


def _follow(node: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        node = getattr(node, name, None)
    return node


def _explain_invalid(workflow: PyTreeNode, path: str, numbers: list[str]) -> str:
    above, _, name = path.rpartition(".")
    node = _follow(workflow, above)
    fields = {field.name: field for field in dataclasses.fields(node)} if dataclasses.is_dataclass(node) else {}
    if name in fields and fields[name].metadata.get("static"):
        return (
            f"{name} determines shapes or control flow, so it must be equal for all members. Valid paths: "
            f"{', '.join(numbers)}."
        )
    if name in fields and getattr(node, name) is None:
        return f"it is disabled (null). Set inner.{path} to a number to search it."
    if name in fields and isinstance(getattr(node, name), Schedule):
        return f"it is a schedule. Search {path}.start instead, or set inner.{path} to a number."
    return no_such("numeric setting", path, numbers)
