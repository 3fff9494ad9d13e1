"""Environment libraries: for each library, the function that creates its environments, imported on first use."""

from __future__ import annotations

import importlib

# Library -> function that creates its vector environments, "module:function". The module is the adapter: it imports the
# library only when an environment is created, and lists the library's environments in ``ENV_NAMES``.
LIBRARIES = {
    "brax": "evorl.envs.brax:create_wrapped_brax_env",
    "gymnax": "evorl.envs.gymnax:create_wrapped_gymnax_env",
    "mjx": "evorl.envs.mjx:create_wrapped_mjx_env",
    "goal": "evorl.envs.goals.goal_envs:create_wrapped_goal_env",
    "playground": "evorl.envs.playground:create_wrapped_playground_env",
    "jumanji": "evorl.envs.jumanji:create_wrapped_jumanji_env",
    "craftax": "evorl.envs.craftax:create_wrapped_craftax_env",
    "xminigrid": "evorl.envs.xminigrid:create_wrapped_xminigrid_env",
    "jaxmarl": "evorl.envs.jaxmarl:create_wrapped_jaxmarl_env",
}
# Library -> function that creates its simulators on the host, from which ``HOST_FACTORY`` makes a vector environment.
HOST_LIBRARIES = {
    "gymnasium": "evorl.envs.gymnasium:make_gymnasium_simulators",
    "envpool": "evorl.envs.envpool:make_envpool_simulators",
    "host": "evorl.envs.mujoco:make_mujoco_simulators",
    "pettingzoo": "evorl.envs.pettingzoo:make_pettingzoo_simulators",
    "remote": "evorl.envs.remote:make_remote_simulators",
}
# Library -> function that creates vector environments whose simulators run inside the compiled program.
COMPILED_LIBRARIES = {"envpool": "evorl.envs.envpool_compiled:create_compiled_envpool_env"}
HOST_FACTORY = "evorl.envs.host.create:create_host_env"
USER_FACTORY = "evorl.envs.user:create_wrapped_user_env"


def available_envs() -> dict[str, tuple[str, ...]]:
    """Return the environments that each adapter lists, by library (``()`` without a list); imports no library."""
    modules = {library: path.partition(":")[0] for library, path in (LIBRARIES | HOST_LIBRARIES).items()}
    return {library: importlib.import_module(module).ENV_NAMES for library, module in modules.items()}


def short_title(title: str) -> str:
    """Return the name of an environment for the title of a run, with its library only if the name is ambiguous.

    Environments of brax and gymnax keep their name. The library is appended to names that brax or gymnax also lists, as
    in ``Pendulum-v1 (gymnasium)``, and to all names of EnvPool, because Gymnasium has many of these names, too.

    Args:
        title: ``gymnax/Pendulum-v1``, or ``package.module:function`` of a user's environment.
    """
    library, _, name = title.partition("/")
    if not name or library in ("brax", "gymnax"):
        return name or library
    modules = (LIBRARIES[other].partition(":")[0] for other in ("brax", "gymnax"))
    is_shared = library == "envpool" or any(name in importlib.import_module(module).ENV_NAMES for module in modules)
    return f"{name} ({library})" if is_shared else name
