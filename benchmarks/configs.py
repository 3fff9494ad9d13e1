"""Configs as the command line composes them, and how large the state of their training is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def compose_config(overrides: Sequence[str]) -> Any:
    """What ``scripts/train.py`` composes from these overrides."""
    from hydra import compose, initialize_config_dir

    from evorl.cli.composition import config_folder

    with initialize_config_dir(version_base="1.3", config_dir=str(config_folder())):
        return compose("config", overrides=list(overrides))


def state_bytes(overrides: Sequence[str]) -> int:
    """Bytes of the whole state of a training: parameters, optimizers, environments, replay buffer."""
    import jax

    from evorl.cli.stored_run import build_workflow

    workflow = build_workflow(compose_config(overrides))
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
