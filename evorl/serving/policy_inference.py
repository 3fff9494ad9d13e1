"""Batched inference with an exported policy, including the recurrent memory of each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from evorl.serving.batched_inference import MAX_BATCH, ActionBatch, ActionRequest, bucket_sizes


class PolicyInference:
    """Answers requests with a portable policy (``evorl.export.portable_policy``) and keeps the memory of each client.

    Args:
        policy: portable policy.
        num_slots: maximum number of simultaneous clients.
        seed: seed of a stochastic policy; the random numbers of a request depend on seed, session and step.
    """

    def __init__(self, policy: Any, num_slots: int, seed: int = 0) -> None:
        self._num_slots, self._seed = num_slots, seed
        self._memory = policy.initial_memory(num_slots + 1)
        self._policy, self._rows = policy, policy.runnable()

    def compile_all(self) -> None:
        """Compile for every batch size in advance, so that no client waits for a compilation."""
        self._compile(self._policy, self._rows)

    def _compile(self, policy: Any, rows: Any) -> None:
        for size in bucket_sizes(min(self._num_slots, MAX_BATCH)):
            zeros = {port.name: np.zeros((size, *port.shape), port.dtype) for port in policy.inputs}
            jax.block_until_ready(rows(zeros))

    def swap(self, policy: Any) -> None:
        """Compile a new policy, then replace the old one; the memory of the clients is kept.

        Raises:
            ValueError: the inputs, outputs or spaces of the new policy differ.
        """
        names = ("inputs", "outputs", "obs_space", "action_space")
        if differing := [name for name in names if getattr(policy, name) != getattr(self._policy, name)]:
            raise ValueError(
                f"the new policy differs from the served one in its {', '.join(differing)}: restart the server to "
                "serve it."
            )
        rows = policy.runnable()
        self._compile(policy, rows)
        self._policy, self._rows = policy, rows

    def ask(self, requests: Sequence[ActionRequest]) -> ActionBatch:
        """Return the actions for requests of different clients; ``ActionBatch.steps`` is ``None``."""
        policy, rows = self._policy, self._rows
        size = next(size for size in bucket_sizes(len(requests)) if size >= len(requests))
        padded = [*requests, *[requests[0]._replace(slot=self._num_slots, starts=True)] * (size - len(requests))]
        slots = np.array([request.slot for request in padded])
        starts = np.flatnonzero([request.starts for request in padded])
        for memory in self._memory.values():
            memory[slots[starts]] = 0
        observed = [policy.arrays_of(request.obs) for request in padded]
        inputs = {
            port.name: np.stack([np.asarray(each[port.name], port.dtype) for each in observed])
            for port in policy.observations
        }
        inputs |= {name: memory[slots] for name, memory in self._memory.items()}
        if policy.draws:
            seeds = [[self._seed, request.session, request.step] for request in padded]
            drawn = [policy.drawn(np.random.default_rng(seed), 1) for seed in seeds]
            inputs |= {name: np.concatenate([each[name] for each in drawn]) for name in drawn[0]}
        outputs = jax.device_get(rows(inputs))
        for name, memory in self._memory.items():
            memory[slots] = outputs[f"next_{name}"]
        return ActionBatch(policy.action_of(outputs), None)
