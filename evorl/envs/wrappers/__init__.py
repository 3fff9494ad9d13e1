"""Wrappers: modify one environment (``Wrapper``), or step many of them together (``VectorEnv``)."""

from evorl.envs.vector import (
    VECTOR_ENVS,
    EnvPoolVmapAutoResetWrapper,
    FastVmapAutoResetWrapper,
    VectorEnv,
    VmapAutoResetWrapper,
    VmapWrapper,
)
from evorl.envs.wrappers.action import ActionConversionWrapper, ActionRepeatWrapper
from evorl.envs.wrappers.clock import EpisodeWrapper, OneEpisodeWrapper
from evorl.envs.wrappers.encoding import ObsOneHotWrapper
from evorl.envs.wrappers.observation import FrameStackWrapper, ObsFlattenWrapper, ObsSelectWrapper
from evorl.envs.wrappers.reward import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardTransformWrapper,
    SparseRewardWrapper,
)
from evorl.envs.wrappers.skill import SkillWrapper
from evorl.envs.wrappers.wrapper import Wrapper

__all__ = [
    "VECTOR_ENVS",
    "ActionConversionWrapper",
    "ActionRepeatWrapper",
    "EnvPoolVmapAutoResetWrapper",
    "EpisodeWrapper",
    "FastVmapAutoResetWrapper",
    "FrameStackWrapper",
    "ObsFlattenWrapper",
    "ObsOneHotWrapper",
    "ObsSelectWrapper",
    "OneEpisodeWrapper",
    "RewardClipWrapper",
    "RewardScaleWrapper",
    "RewardTransformWrapper",
    "SkillWrapper",
    "SparseRewardWrapper",
    "VectorEnv",
    "VmapAutoResetWrapper",
    "VmapWrapper",
    "Wrapper",
]
