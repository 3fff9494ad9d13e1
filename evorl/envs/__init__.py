"""Environments: one interface (``Env``, ``EnvState``), adapters for brax and gymnax, wrappers, vector envs.

Importing this package imports no environment library.
"""

from evorl.envs.brax import create_wrapped_brax_env
from evorl.envs.env import AutoresetMode, Env, EnvState
from evorl.envs.factory import available_envs, create_env
from evorl.envs.gymnax import create_wrapped_gymnax_env
from evorl.envs.space import Box, DictSpace, Discrete, Space, TupleSpace

__all__ = [
    "AutoresetMode",
    "Box",
    "DictSpace",
    "Discrete",
    "Env",
    "EnvState",
    "Space",
    "TupleSpace",
    "available_envs",
    "create_env",
    "create_wrapped_brax_env",
    "create_wrapped_gymnax_env",
]
