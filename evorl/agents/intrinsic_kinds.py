"""Kinds of intrinsic rewards by name, and their construction from configs."""

from __future__ import annotations

from typing import Any

from evorl.agents.episodic_bonus import E3B
from evorl.agents.intrinsic import DIAYN, ICM, RND, IntrinsicReward
from evorl.config.names import no_such
from evorl.config.nodes import node_from_config
from evorl.config.values import checked_mapping
from evorl.envs.vector import VectorEnv

KINDS: dict[str, type[IntrinsicReward]] = {"diayn": DIAYN, "e3b": E3B, "icm": ICM, "rnd": RND}


def make_intrinsic(config: Any, env: VectorEnv, *, on_policy: bool = True) -> IntrinsicReward:
    """Build the intrinsic reward from a name, or from a mapping with ``name`` and fields of its class.

    Args:
        config: name of a kind, such as ``icm``, or mapping.
        env: training environments.
        on_policy: true for an on-policy algorithm, which learns from consecutive steps of each environment.

    Raises:
        ValueError: the name or a field is unknown, a value is invalid, or the algorithm does not support the kind.
    """
    options = dict(checked_mapping({"name": config} if isinstance(config, str) else config, "intrinsic"))
    name = options.pop("name", None)
    if name not in KINDS:
        raise ValueError(no_such("value of intrinsic.name", name, KINDS))
    if KINDS[name].is_episodic and not on_policy:
        raise ValueError(
            f"intrinsic={name} needs an on-policy algorithm, such as agent=ppo: its bonuses depend on earlier steps "
            "of the episode. Use such an algorithm, or intrinsic=icm or rnd."
        )
    unset = {"model": None, "action_space": None}  # set by ``built``
    return node_from_config(KINDS[name], options, "intrinsic", **unset).built(env)
