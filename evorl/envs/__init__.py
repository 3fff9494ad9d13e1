"""Environments: one interface (``Env``, ``EnvState``), an adapter per library, wrappers, and vector environments.

Importing this package imports neither an environment library nor an adapter. Adapter functions, such as
``create_wrapped_brax_env``, can still be imported from here: their module is loaded on first access. So can
``check_env``.
"""

from typing import TYPE_CHECKING, Any

from evorl.config.names import load
from evorl.envs.env import AutoresetMode, Env, EnvState
from evorl.envs.factory import adapter_function, available_envs, create_env
from evorl.envs.multi_discrete import MultiDiscrete
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace

if TYPE_CHECKING:
    from evorl.envs.brax import create_wrapped_brax_env as create_wrapped_brax_env
    from evorl.envs.gymnax import create_wrapped_gymnax_env as create_wrapped_gymnax_env

__all__ = [
    "AutoresetMode",
    "Box",
    "DictSpace",
    "Discrete",
    "Env",
    "EnvState",
    "MultiDiscrete",
    "Space",
    "TupleSpace",
    "available_envs",
    "create_env",
    "create_wrapped_brax_env",
    "create_wrapped_gymnax_env",
]


def __getattr__(name: str) -> Any:
    return load("evorl.envs.env_check:check_env") if name == "check_env" else adapter_function(name)
