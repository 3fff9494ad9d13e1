"""User-defined parts: a config names a class or function as ``package.module:name``, with settings.

Where a config names a part of evorl, such as an optimizer, a layer or an activation, it may name a user's class or
function instead. ``load_named`` imports it, after a check that the source of the name is trusted.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evorl.config.names import USER_MODULES, describe_error, load_named, no_such


def custom_class(name: str, base: type, setting: str) -> Any:
    """Import the class that a config names.

    Args:
        name: ``"package.module:Class"``.
        base: class that it must inherit from.
        setting: path of the setting, for messages.

    Raises:
        ValueError: the class cannot be imported, or does not inherit from ``base``.
    """
    cls = load_named(name, setting)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{setting}={name} must be a class that inherits from {base.__module__}.{base.__qualname__}.")
    return cls


def describe_user_error(error: BaseException) -> str | None:
    """Describe an error raised by the code of a user-defined part, in one sentence with its module and line.

    Returns:
        The sentence; ``None`` if no user code is in the traceback, or if user code called evorl, which then failed.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == __name__.partition(".")[0]:
            return None
        if module in USER_MODULES:
            described = describe_error(error, frame.f_code.co_filename, line)
            return f"your module {module} failed in {frame.f_code.co_name}: {described}"
    return None


@dataclasses.dataclass(frozen=True)
class CustomPart:
    """A user-defined function or class with its settings; compared by value.

    Attributes:
        name: ``"package.module:name"``.
        function: function or class with this name.
        settings: keyword arguments, as pairs of name and value, sorted by name; see ``_hashable``.
    """

    name: str
    function: Callable[..., Any]
    settings: tuple[tuple[str, Any], ...] = ()

    @functools.cached_property
    def call(self) -> Callable[..., Any]:
        """The function with its settings bound.

        A ``TypeError`` or ``ValueError`` of a part from another library, such as a NumPy function on traced arrays,
        becomes a ``ValueError`` with the part's name. All other errors are re-raised, see ``describe_user_error``.
        """
        bound = functools.partial(self.function, **{name: _thawed(value) for name, value in self.settings})

        def call(*inputs: Any, **others: Any) -> Any:
            try:
                return bound(*inputs, **others)
            except (TypeError, ValueError) as error:
                if _is_outside(error):
                    reason = str(error).partition("\n")[0].removesuffix(".")
                    raise ValueError(
                        f"{self.name} failed: {reason}. Its inputs are arrays that JAX traces: use jax.numpy functions."
                    ) from error
                raise

        return call


def _is_outside(error: BaseException) -> bool:
    """Return True if neither evorl nor a user's module was called between the part and the error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    modules = {str(frame.f_globals.get("__name__", "")) for frame in frames}
    return not modules & set(USER_MODULES) and not any(name.partition(".")[0] == "evorl" for name in modules)


def custom_part(name: str, options: Mapping[str, Any], setting: str, num_inputs: int = 0) -> CustomPart:
    """Import a user-defined function or class, and check its settings.

    Args:
        name: ``"package.module:name"``.
        options: values of its settings.
        setting: path of the setting that names it, for messages.
        num_inputs: number of leading arguments that evorl passes; they are not settings.

    Raises:
        ValueError: the function cannot be imported, a setting is unknown, or a required setting is missing.
    """
    function = load_named(name, setting)
    parameters, takes_any = setting_names(function, num_inputs)
    for option in options:
        if option not in parameters and not takes_any:
            raise ValueError(f"{setting}: {no_such(f'setting of {name}', option, parameters or ('none',))}")
    for parameter, default in parameters.items():
        if default is inspect.Parameter.empty and parameter not in options:
            raise ValueError(f"{setting}: {name} needs {parameter!r}: set {setting}={{name: ..., {parameter}: ...}}.")
    settings = tuple((option, _hashable(value)) for option, value in sorted(options.items()))
    return CustomPart(name, function, settings)


def setting_names(function: Callable[..., Any], num_inputs: int = 0) -> tuple[dict[str, Any], bool]:
    """Return a function's settings with defaults (``Parameter.empty`` if required), and True if it takes ``**kwargs``.

    The first ``num_inputs`` parameters (or fields of a dataclass), and fields that Flax adds, are not settings.
    """
    of_flax = ("parent", "name") if isinstance(function, type) and dataclasses.is_dataclass(function) else ()
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in of_flax]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)][num_inputs:]
    return {parameter.name: parameter.default for parameter in named}, takes_any


@dataclasses.dataclass(frozen=True)
class _Frozen:
    """A mapping as pairs of key and value."""

    items: tuple[tuple[Any, Any], ...]


def _hashable(value: Any) -> Any:
    """Convert lists to tuples and mappings to ``_Frozen`` recursively, so that networks can be compared by value."""
    if isinstance(value, Mapping):
        return _Frozen(tuple((key, _hashable(each)) for key, each in value.items()))
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)  # also a list of OmegaConf
    return tuple(map(_hashable, value)) if is_list else value


def _thawed(value: Any) -> Any:
    """Return a result of ``_hashable`` with its mappings as new dicts; lists remain tuples."""
    if isinstance(value, _Frozen):
        return {key: _thawed(each) for key, each in value.items}
    return tuple(map(_thawed, value)) if isinstance(value, tuple) else value
