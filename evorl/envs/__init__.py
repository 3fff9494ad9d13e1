"""Environments: one interface (``Env``, ``EnvState``), an adapter per library, wrappers, and vector environments.

Importing this package imports neither an environment library nor an adapter. The functions that create environments,
such as ``create_wrapped_brax_env``, can be imported from here, too: their modules are loaded on first access.
"""

from typing import TYPE_CHECKING

from evorl.envs.env import AutoresetMode as AutoresetMode
from evorl.envs.env import Env as Env
from evorl.envs.env import EnvState as EnvState
from evorl.envs.env import EnvWrapper as EnvWrapper
from evorl.envs.env_check import check_env as check_env
from evorl.envs.factory import create_env as create_env
from evorl.envs.libraries import available_envs as available_envs
from evorl.envs.multi_discrete import MultiDiscrete as MultiDiscrete
from evorl.envs.space import Box as Box
from evorl.envs.space import DictSpace as DictSpace
from evorl.envs.space import Discrete as Discrete
from evorl.envs.space import Space as Space
from evorl.envs.space import TupleSpace as TupleSpace
from evorl.exports import lazy_exports

if TYPE_CHECKING:
    from evorl.envs.brax import create_wrapped_brax_env as create_wrapped_brax_env
    from evorl.envs.craftax import create_wrapped_craftax_env as create_wrapped_craftax_env
    from evorl.envs.goals.goal_envs import create_wrapped_goal_env as create_wrapped_goal_env
    from evorl.envs.gymnax import create_wrapped_gymnax_env as create_wrapped_gymnax_env
    from evorl.envs.jaxmarl import create_wrapped_jaxmarl_env as create_wrapped_jaxmarl_env
    from evorl.envs.jumanji import create_wrapped_jumanji_env as create_wrapped_jumanji_env
    from evorl.envs.mjx import create_wrapped_mjx_env as create_wrapped_mjx_env
    from evorl.envs.playground import create_wrapped_playground_env as create_wrapped_playground_env
    from evorl.envs.vector import VectorEnv as VectorEnv
    from evorl.envs.xminigrid import create_wrapped_xminigrid_env as create_wrapped_xminigrid_env
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        **{
            "brax": "create_wrapped_brax_env",
            "craftax": "create_wrapped_craftax_env",
            "goals.goal_envs": "create_wrapped_goal_env",
            "gymnax": "create_wrapped_gymnax_env",
            "jaxmarl": "create_wrapped_jaxmarl_env",
            "jumanji": "create_wrapped_jumanji_env",
            "mjx": "create_wrapped_mjx_env",
            "playground": "create_wrapped_playground_env",
            "vector": "VectorEnv",
            "xminigrid": "create_wrapped_xminigrid_env",
        },
        others="AutoresetMode Box DictSpace Discrete Env EnvState EnvWrapper MultiDiscrete Space TupleSpace "
        "available_envs check_env create_env",
    )
