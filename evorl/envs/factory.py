"""Creates vector environments from a name or a config; the adapter of a library is imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evorl.config.gate import distrusting
from evorl.config.names import listed, load, no_such
from evorl.envs import libraries as tables
from evorl.envs.catalog import describe_library, describe_suggestions, suggest_envs

if TYPE_CHECKING:
    from evorl.envs.vector import VectorEnv


def create_env(
    config: Mapping[str, Any] | str | None = None,
    *,
    library: str | None = None,
    name: str | None = None,
    **options: Any,
) -> VectorEnv:
    """Create a vector environment. JAX environments with equal arguments are equal and share compiled programs.

    Args:
        config: a mapping with ``library``, ``name`` and any option below, or a name such as ``"brax/hopper"``. Keyword
            arguments other than ``None`` take precedence. Instead of ``library`` and ``name``, a mapping may have
            ``factory``, ``"package.module:function"``, see ``create_wrapped_user_env``.
        library: name of a library; by default the prefix of ``name`` (``brax/...``), or the first that lists ``name``.
        name: name of the environment in its library.
        **options: the fields of ``EnvOptions`` (``parallel``, ``autoreset_mode``, ``history`` ...), and the options of
            the library, such as ``backend`` of brax. ``None`` means the default.

    Raises:
        ValueError: a name or value is invalid; for an unknown name, the message suggests the closest valid name.
        ImportError: a package that the environment needs is not installed.
    """
    named: Any = config if hasattr(config, "items") else {"name": config}
    explicit = {"library": library, "name": name, **options}
    entries = [*named.items(), *explicit.items()]
    settings = {str(key): value for key, value in entries if value is not None}
    with distrusting(config):
        env, env.title = _made_as_configured(settings)
    return env


def _made_as_configured(settings: dict[str, Any]) -> tuple[VectorEnv, str]:
    if "factory" in settings:
        if "library" in settings or "name" in settings:
            names = ", ".join(f"env.{key}={settings[key]}" for key in ("factory", "library", "name") if key in settings)
            raise ValueError(f"An environment needs either a factory or a library and a name, got {names}: remove one.")
        factory = settings.pop("factory")
        return load(tables.USER_FACTORY)(factory, **settings), factory
    library, name = _resolve(settings.pop("library", None), settings.pop("name", None))
    return _create(library, name, settings), f"{library}/{name}"


def _create(library: str, name: str, settings: dict[str, Any]) -> VectorEnv:
    if settings.get("host") == "compiled":
        if library not in tables.COMPILED_LIBRARIES:
            raise ValueError(
                f"env.host=compiled is available only for {', '.join(tables.COMPILED_LIBRARIES)}, not for {library}: "
                f"{'use env.host=loop or callback' if library in tables.HOST_LIBRARIES else 'remove env.host'}."
            )
        del settings["host"]
        return load(tables.COMPILED_LIBRARIES[library])(name, **settings)
    if library in tables.HOST_LIBRARIES:
        return load(tables.HOST_FACTORY)(load(tables.HOST_LIBRARIES[library]), f"{library} {name}", name, **settings)
    return load(tables.LIBRARIES[library])(name, **settings)


def _resolve(library: str | None, name: str | None) -> tuple[str, str]:
    """Return library and name of an environment; ``name`` may be ``library/name`` if ``library`` is ``None``."""
    libraries = tables.LIBRARIES | tables.HOST_LIBRARIES
    if library is not None and str(library) not in libraries:
        raise ValueError(no_such("environment library", library, libraries))
    if name in (None, ""):
        raise ValueError("The name of the environment is missing: add it, for example create_env('brax/hopper').")
    if not isinstance(name, str):
        raise ValueError(f"env must be a name or a mapping, e.g. brax/hopper, got {type(name).__name__}: {name!r:.80}.")
    prefix, _, rest = name.partition("/")
    if library is None and rest and prefix in libraries:
        return prefix, rest
    if library is not None:
        return library, name
    known = tables.available_envs()
    for candidate, names in known.items():
        if name in names:
            return candidate, name
    paths = [f"{candidate}/{env_name}" for candidate, names in known.items() for env_name in names]
    nearest = describe_suggestions(suggest_envs(name)) or describe_library(name)
    raise ValueError(f"unknown environment {name!r}.{nearest} Available: {listed(paths)}.")
