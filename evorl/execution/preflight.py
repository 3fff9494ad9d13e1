"""Estimates a run's number of parameters, memory and number of iterations from shapes, before compilation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from evorl.agent import AgentState
from evorl.execution import programs
from evorl.execution.live_bytes import num_equations, temporary_bytes
from evorl.execution.memory import MEMORY_SHARE, available_bytes, held_bytes, process_peak_bytes, shown_bytes
from evorl.execution.trainable import most_timesteps
from evorl.ops.platform import on_cpu
from evorl.replay_buffers.ring import ReplayState

# Fitted to measured runs on a CPU, see docs/guide/preflight.md: compiler memory per equation of a program, and constant
# memory of a training run for the compiler, recorders and checkpoint writer.
COMPILING_BYTES = 42_000
RUNNING_BYTES = 500_000_000
# Labels of the state's entries.
_LABELS = {
    "env_state": "environments",
    "replay_state": "replay",
    "recorded_state": "replay",
    "opt_state": "optimizers",
    "agent_state": "agent",
    "members": "population",
    "shared": "replay",
    "ec_state": "search",
    "best": "search",
}


@dataclasses.dataclass(frozen=True)
class Preflight:
    """Resource estimates of a run.

    Attributes:
        parameters: number of parameters of each part of an agent, by name; for one seed and one member.
        entries: bytes of the state on each device, by label, such as ``agent``, ``replay`` or ``others``.
        num_devices: number of devices that share the state.
        state_bytes: bytes of the whole state in this machine's memory, or of the share of one accelerator.
        step_bytes: estimated bytes that an iteration needs in addition to the state.
        process_bytes: bytes of the process and the compiler, without state and iteration; 0 for an accelerator.
        available: bytes of memory of this machine or of one accelerator; ``None`` if unknown.
        num_iterations: number of training iterations; ``None`` if iterations differ in length.
        steps_per_iteration: largest number of environment steps of an iteration, per seed.
    """

    parameters: dict[str, int]
    entries: dict[str, int]
    num_devices: int
    state_bytes: int
    step_bytes: int
    process_bytes: int
    available: int | None
    num_iterations: int | None
    steps_per_iteration: int

    @property
    def peak_bytes(self) -> int:
        """Estimated peak memory of the run, in bytes."""
        return self.process_bytes + self.state_bytes + self.step_bytes

    @property
    def fits(self) -> bool:
        """True if the estimated peak is at most ``MEMORY_SHARE`` of the memory, or the memory is unknown."""
        return self.available is None or self.peak_bytes <= MEMORY_SHARE * self.available

    def lines(self) -> list[str]:
        """Return the estimates as lines of text, which ``evorl train --plan`` prints."""
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parameters.items())
        where = f"each of {self.num_devices} devices" if self.num_devices > 1 else "the device"
        lines = [f"parameters    {sum(self.parameters.values()):,} ({parts})" if parts else "parameters    none"]
        lines += [f"{label:13s} {shown_bytes(size)} on {where}" for label, size in self.entries.items() if size]
        lines.append(
            f"an iteration  {self.steps_per_iteration:,} steps, {shown_bytes(self.step_bytes)} in addition to the state"
        )
        number = "of different lengths" if self.num_iterations is None else f"{self.num_iterations:,}"
        lines.append(f"iterations    {number}")
        available = "" if self.available is None else f" of {shown_bytes(self.available)}"
        sizes = {"process and compiler": self.process_bytes, "state": self.state_bytes, "iteration": self.step_bytes}
        total = ", ".join(f"{name} {shown_bytes(size)}" for name, size in sizes.items() if size)
        return [*lines, f"memory        about {shown_bytes(self.peak_bytes)} at most{available}: {total}"]


def preflight(workflow: Any) -> Preflight:
    """Return estimates for a training run, from its traced program; raise the errors of ``check_memory``."""
    state = programs.state_shapes(workflow, jax.random.key(0))
    execution = workflow.execution
    specs = programs.state_specs(execution, state)
    traced = programs.training_program(execution.in_order).trace(workflow, programs.laid_out(workflow, state), 1)
    devices = max(1, execution.num_devices // jax.process_count()) if on_cpu() else 1
    sizes = {name: held_bytes(state[name], specs[name], execution) for name in state}
    entries: dict[str, int] = {}
    for name, size in sizes.items():
        label = _LABELS.get(name, "others")
        entries[label] = entries.get(label, 0) + size // devices
    steps = workflow.timesteps_per_iteration
    process_bytes = 0
    if on_cpu():
        process_bytes = process_peak_bytes() + RUNNING_BYTES + COMPILING_BYTES * num_equations(traced.jaxpr)
    return Preflight(
        parameters=_parameters(state, execution.num_seeds),
        entries=entries,
        num_devices=execution.num_devices,
        state_bytes=sum(sizes.values()),
        step_bytes=temporary_bytes(traced.jaxpr) * devices,
        process_bytes=process_bytes,
        available=available_bytes(),
        num_iterations=max(1, int(workflow.total_timesteps) // steps) if steps else None,
        steps_per_iteration=most_timesteps(workflow),
    )


def _parameters(state: Any, num_seeds: int | None) -> dict[str, int]:
    """Return the number of parameters of each part of the agent; for a population, of its first member."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AgentState | ReplayState))
    agent = next((node for node in nodes if isinstance(node, AgentState)), None)
    if agent is None:
        return {}
    axes = (num_seeds is not None) + (agent is not getattr(state, "agent_state", None))
    parts = agent.params.items() if isinstance(agent.params, dict) else [("network", agent.params)]
    return {str(name): sum(math.prod(x.shape[axes:]) for x in jax.tree.leaves(part)) for name, part in parts}
