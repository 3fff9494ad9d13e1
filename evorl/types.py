"""Pytree containers, and the axis names used in the whole package.

Axis legend, used in comments at the end of lines that create arrays::

    T  time             B  parallel environments     N  batch of independent rows
    P  population       S  random seeds              A  actions     O  observation features
    K  members of an ensemble

Three containers are registered as JAX pytrees. ``PyTreeDict`` stores named data, ``PyTreeData`` is the base of frozen
dataclasses for data, and ``PyTreeNode`` is the base of logic classes (agents, evaluators, workflows). The leaves of a
node are numbers or arrays that only affect values; fields that affect shapes or control flow are static. A node is
therefore a valid argument of a jitted function, and changing one of its numbers does not recompile.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    dataclass_transform,
    get_type_hints,
)

import chex
import jax
import jax.core

from evorl.fields import mark_static_by_annotation, pytree_field

# Arrays or pytrees of arrays. The aliases document their content, which type checkers cannot verify.
Action: TypeAlias = Any
Observation: TypeAlias = Any
Params: TypeAlias = Any
PolicyExtras: TypeAlias = "PyTreeDict"
Reward: TypeAlias = jax.Array
Key: TypeAlias = chex.PRNGKey
T = TypeVar("T")


class PyTreeDict(dict):
    """A dict whose entries are also attributes, registered as a pytree with sorted keys.

    Nested dicts, also in lists or tuples, become ``PyTreeDict``, so ``d.a.b`` works. The structure ignores key order.

    Raises:
        AttributeError: a key is not a string, or is the name of an attribute of the class, such as ``items``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.update(*args, **kwargs)

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no entry {name!r}; available: {', '.join(sorted(self)) or 'none'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"no entry {name!r} to delete") from None

    def update(self, *args: Any, **kwargs: Any) -> None:
        entries = args[0] if len(args) == 1 and type(args[0]) is dict and not kwargs else dict(*args, **kwargs)
        for key in entries:
            if not isinstance(key, str):
                raise AttributeError(f"PyTreeDict keys must be strings, got {key!r} of type {type(key).__name__}.")
            if key in _METHODS:
                raise AttributeError(f"PyTreeDict key {key!r} is an attribute of PyTreeDict itself: rename the key.")
        if not _CONTAINERS.isdisjoint(map(type, entries.values())):
            entries = {key: _convert_mappings(value) for key, value in entries.items()}
        super().update(entries)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> Self:
        return type(self)(self)

    __copy__ = copy

    def __or__(self, other: Mapping) -> Self:
        return type(self)({**self, **other})

    def __ior__(self, other: Mapping) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.update(other)
        return self

    def replace(self, **changes: Any) -> Self:
        """Return a copy with existing entries replaced. Raises ``AttributeError`` for a name that is not an entry."""
        unknown = sorted(set(changes) - set(self))
        if unknown:
            raise AttributeError(f"cannot replace {', '.join(unknown)}; available: {', '.join(sorted(self))}")
        return type(self)({**self, **changes})

    def __reduce__(self) -> tuple:
        return (type(self), (dict(self),))


def is_entry_name(name: Any) -> bool:
    """Return True if ``name`` can be a key of a ``PyTreeDict``: a string that is not an attribute of the class."""
    return isinstance(name, str) and name not in _METHODS


def _convert_mappings(value: Any) -> Any:
    if type(value) is dict:
        return PyTreeDict(value)
    if type(value) in (list, tuple):
        return type(value)(_convert_mappings(item) for item in value)
    return value


def _register_dict(cls: type[PyTreeDict]) -> None:
    def flatten_with_keys(d: PyTreeDict) -> tuple[list, tuple]:
        names = tuple(sorted(d))
        return [(jax.tree_util.DictKey(name), d[name]) for name in names], names

    def flatten(d: PyTreeDict) -> tuple[list, tuple]:
        names = tuple(sorted(d))
        return [d[name] for name in names], names

    def unflatten(names: tuple, children: Iterable[Any]) -> PyTreeDict:
        d = cls.__new__(cls)
        dict.update(d, zip(names, children, strict=True))  # no conversion: JAX may pass placeholders
        return d

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


_METHODS, _CONTAINERS = frozenset(dir(PyTreeDict)), frozenset({dict, list, tuple})


def _register(cls: type) -> None:
    fields = dataclasses.fields(cls)
    data_names = tuple(f.name for f in fields if not f.metadata.get("static"))
    static_names = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten_with_keys(node: Any) -> tuple[list, tuple]:
        children = [(jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in data_names]
        return children, tuple(getattr(node, name) for name in static_names)

    def flatten(node: Any) -> tuple[list, tuple]:
        return [getattr(node, name) for name in data_names], tuple(getattr(node, name) for name in static_names)

    def unflatten(static: tuple, children: Any) -> Any:
        # Bypasses __init__ and __post_init__: JAX may pass tracers, None or placeholders instead of arrays.
        node = object.__new__(cls)
        for name, value in zip(static_names, static, strict=True):
            object.__setattr__(node, name, value)
        for name, value in zip(data_names, children, strict=True):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


@dataclass_transform(field_specifiers=(pytree_field, dataclasses.field), frozen_default=True)
class PyTreeData:
    """Base of frozen dataclasses that are registered as pytrees; a subclass annotates its fields.

    Every field is data unless it is declared ``pytree_field(static=True)``. ``replace`` returns a changed copy.
    """

    if TYPE_CHECKING:  # type checkers do not see that every subclass is made a dataclass
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__dataclass_fields__" not in cls.__dict__:
            dataclasses.dataclass(frozen=True, eq=False)(cls)
            _register(cls)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed. Raises ``TypeError`` for an unknown field."""
        return dataclasses.replace(self, **changes)


def _describe_illegal_leaf(leaf: Any) -> str | None:
    if isinstance(leaf, int | float | complex | jax.core.Tracer) or hasattr(leaf, "__jax_array__"):
        return None
    if hasattr(leaf, "dtype"):  # arrays, NumPy scalars, abstract values
        return None
    return f"{type(leaf).__name__} ({str(leaf)[:60]})"


def _as_hashable(value: Any) -> Any:
    """Convert nested lists, as read from YAML, to tuples, so that static values can be compared and hashed by value."""
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return tuple(_as_hashable(item) for item in value)
    return value


@dataclass_transform(field_specifiers=(pytree_field, dataclasses.field), frozen_default=True)
class PyTreeNode:
    """Base of logic classes: a dataclass registered as a pytree, immutable after ``__post_init__``.

    A field is static if declared so, or if its annotation only allows structure: ``int``, ``bool``, ``str``, ``bytes``,
    enums, dtypes, types, callables, literals, and unions or tuples of these. Others (``float``, arrays, nodes) are
    data, with arrays or numbers as leaves. Static fields are hashable: equal structures share one compiled program.

    Raises:
        TypeError: a data field contains objects other than arrays and numbers, or a static field is not hashable.
        dataclasses.FrozenInstanceError: a field is set or deleted after construction; use ``replace``.
    """

    if TYPE_CHECKING:  # type checkers do not see that every subclass is made a dataclass
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        mark_static_by_annotation(cls)
        dataclasses.dataclass(eq=False)(cls)
        _register(cls)
        cls.__init__ = _freeze_after(cls.__init__)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; runs ``__post_init__``. Raises ``TypeError`` for unknown fields."""
        return dataclasses.replace(self, **changes)

    def __setattr__(self, name: str, value: Any) -> None:
        if not self.__dict__.get("_constructing", False):
            raise dataclasses.FrozenInstanceError(
                f"{type(self).__name__} is immutable: use node.replace({name}=...) and keep the result."
            )
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is immutable: {name!r} cannot be deleted.")


def _freeze_after(init: Callable) -> Callable:
    """Wrap ``__init__`` so that fields can be set only inside it and in ``__post_init__``."""

    def __init__(self: PyTreeNode, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "_constructing", True)
        try:
            init(self, *args, **kwargs)
            _check_fields(self)
        finally:
            object.__delattr__(self, "_constructing")

    __init__.__wrapped__ = init  # pyright: ignore[reportFunctionMemberAccess]
    return __init__


def _check_fields(node: PyTreeNode) -> None:
    for field in dataclasses.fields(node):
        where = f"{type(node).__name__}.{field.name}"
        value = getattr(node, field.name)
        if field.metadata.get("static"):
            value = _as_hashable(value)
            object.__setattr__(node, field.name, value)
            try:
                hash(value)
            except TypeError:
                raise TypeError(f"{where} is static and must be hashable, got {type(value).__name__}.") from None
            continue
        for leaf in jax.tree.leaves(value):
            problem = _describe_illegal_leaf(leaf)
            if problem:
                raise TypeError(
                    f"{where} holds {problem}; data fields hold only arrays or numbers. Declare the field with "
                    "pytree_field(static=True) if it affects shapes or control flow."
                )


class ByValue:
    """Base of immutable objects that compare and hash by value, so that equal objects share compiled programs."""

    def _identity(self) -> Any:
        """Return a hashable value that is the same for equal objects; by default, an object equals only itself."""
        return id(self)

    def __eq__(self, other: Any) -> bool:
        return self is other or (type(self) is type(other) and self._identity() == other._identity())

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:
            self.__dict__["_hash"] = hash((type(self), self._identity()))
        return self.__dict__["_hash"]


class Entry(NamedTuple):
    """Properties of a declared entry of a state, as in ``env_state: Annotated[EnvState, Entry(axis=0)]``.

    Attributes:
        axis: axis of the entry's leaves that indexes environments or population members; ``None`` for other entries.
        optional: True if the entry may be absent.
    """

    axis: int | None = None
    optional: bool = False


class State(PyTreeDict):
    """State of a workflow: everything that a step changes, by name.

    A subclass declares its entries as annotations, for readers and type checkers; see ``declared_entries``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register_dict(cls)


@functools.cache
def declared_entries(cls: type[State]) -> Mapping[str, Entry]:
    """Return the entries that a subclass of ``State`` declares, by name; an empty dict for ``State`` itself."""
    hints = get_type_hints(cls, include_extras=True)
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: next((x for x in marks if isinstance(x, Entry)), Entry()) for name, marks in metadata.items()}


def check_entries(state: State) -> State:
    """Return the state, after checking that it has exactly the entries that its class declares.

    Raises:
        TypeError: an entry is missing, or not declared. A class without declarations accepts any entries.
    """
    declared = declared_entries(type(state))
    missing = sorted(name for name, entry in declared.items() if not entry.optional and name not in state)
    undeclared = sorted(set(state) - set(declared)) if declared else []
    for names, problem in ((missing, "lacks"), (undeclared, "does not declare")):
        if names:
            raise TypeError(
                f"{type(state).__name__} {problem} {', '.join(names)}: it declares {', '.join(sorted(declared))}. "
                "setup must return exactly these entries; declare additional entries in a subclass of the state."
            )
    return state


_register_dict(PyTreeDict)
_register_dict(State)
