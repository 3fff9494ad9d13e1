"""Environments: one interface (``Env``, ``EnvState``), an adapter per library, wrappers, and vector environments.

Importing this package imports neither an environment library nor an adapter. Adapter functions, such as
``create_wrapped_brax_env``, can still be imported from here: their module is loaded on first access.
"""

from typing import TYPE_CHECKING, Any

from evorl.envs.env import AutoresetMode, Env, EnvState
from evorl.envs.env_check import check_env as check_env
from evorl.envs.factory import create_env
from evorl.envs.libraries import adapter_function, available_envs
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
    return adapter_function(name)
