"""Iterations whose environments are simulators on the host: a loop steps them, between calls of compiled programs.

An iteration is ``begin``, a step of the simulators, ``advance`` and another step as often as a rollout needs, and
``end``, which learns. The numbers are those of the iteration that is one program (see
``evorl.rollout.collect_rollout``).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.execution.programs import over_seeds
from evorl.ops.trees import Packed, pack
from evorl.rollout import choose_actions, step_keys, transition_after, without_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeData, PyTreeDict, State


class Rollout(PyTreeData):
    """A rollout that is going on: the agent has acted, and the simulators are to answer.

    Attributes:
        acting: how the agent acts.
        env_state: of the environments.
        actions: of the agent, ``[B, ...]``.
        policy_extras: of its actions.
        told: what the simulators are told.
        trajectory: the steps so far, packed: rows ``[T, B, features]``.
    """

    acting: Any
    env_state: Any
    actions: Any
    policy_extras: Any
    told: Any
    trajectory: Packed[SampleBatch]


def iterate_on_host(workflow: Any, state: State, num_iterations: int) -> tuple[PyTreeDict, State]:
    """``(metrics [N, ...], state)`` after so many iterations; the state is donated.

    Raises:
        HostEnvError: a simulator failed.
    """
    rows = []
    for _ in range(num_iterations):
        rollout, state = _begin(workflow, state)
        rollout, answer = _step_to_the_last(workflow, rollout)
        metrics, state = _end(workflow, state, rollout, answer)
        rows.append(metrics)
    return stacked_rows(rows), state


def stacked_rows(rows: list[PyTreeDict]) -> PyTreeDict:
    """Metrics of iterations ``[N, ...]`` on the host."""
    return jax.tree.map(lambda *x: np.stack(x), *jax.device_get(rows))


def roll_on_host(workflow: Any, acting: Any, env_state: Any) -> tuple[SampleBatch, Any]:
    """A rollout of one seed by a loop on the host: what is learned from, and the state of the environments after."""
    rollout, answer = _step_to_the_last(workflow, _begin_rollout(workflow, acting, env_state))
    return _finish(workflow, rollout, answer)


def _step_to_the_last(workflow: Any, rollout: Rollout) -> tuple[Rollout, dict[str, Any]]:
    """The rollout before its last step, and what the simulators answer at that.

    Within the loop trees are lists of their leaves: to take them apart and put them together, in Python and at each
    step, would take longer than the step.
    """
    constant, of_constant = jax.tree.flatten((workflow, rollout.acting))
    carry, of_carry = jax.tree.flatten(rollout.replace(acting=None, told=None))
    told, of_told = jax.tree.flatten(rollout.told)
    advance: Any = None
    for step in range(workflow.rollout_length - 1):
        answer, of_answer = jax.tree.flatten(_answer(workflow, of_told.unflatten(told)))
        if advance is None:
            advance = _advance_program(of_constant, of_carry, of_answer)
        carry, told = advance(constant, carry, answer, step)
    rollout = of_carry.unflatten(carry).replace(acting=rollout.acting, told=None)
    return rollout, _answer(workflow, of_told.unflatten(told))


@functools.lru_cache(maxsize=64)
def _advance_program(of_constant: Any, of_carry: Any, of_answer: Any) -> Any:
    """A compiled function that adds what the simulators answered at a step to a rollout, and acts again."""

    @functools.partial(jax.jit, donate_argnums=1)
    def advance(constant: list, carry: list, answer: list, step: int) -> tuple[list, list]:
        workflow, acting = of_constant.unflatten(constant)

        def one_seed(acting: Any, rollout: Rollout, answer: dict[str, Any]) -> tuple[Rollout, Any]:
            rollout = _with_step(workflow, rollout, answer, step)
            actions, extras, told = _act(workflow, acting, rollout.env_state, step + 1)
            return rollout.replace(actions=actions, policy_extras=extras), told

        one_or_all = one_seed if workflow.execution.num_seeds is None else jax.vmap(one_seed)
        rollout, told = one_or_all(acting, of_carry.unflatten(carry), of_answer.unflatten(answer))
        return jax.tree.leaves(rollout), jax.tree.leaves(told)

    return advance


def _answer(workflow: Any, told: Any) -> dict[str, Any]:
    """What the simulators say; seeds side by side are more of them."""
    told = jax.tree.map(np.asarray, told)
    num_seeds = workflow.execution.num_seeds
    if num_seeds is None:
        return workflow.env.simulators.step(told)
    answer = workflow.env.simulators.step(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), told))
    return jax.tree.map(lambda x: x.reshape(num_seeds, -1, *x.shape[1:]), answer)


@functools.partial(jax.jit, donate_argnames="state")
def _begin(workflow: Any, state: State) -> tuple[Rollout, State]:
    """The first actions of a rollout, for every seed."""

    def one_seed(state: State) -> tuple[Rollout, State]:
        acting, state = workflow.acting(state)
        return _first_actions(workflow, acting, state.env_state), state

    return over_seeds(workflow.execution, one_seed, state, returns_state=True)


@jax.jit
def _begin_rollout(workflow: Any, acting: Any, env_state: Any) -> Rollout:
    return _first_actions(workflow, acting, env_state)


def _first_actions(workflow: Any, acting: Any, env_state: Any) -> Rollout:
    actions, extras, told = _act(workflow, acting, env_state, 0)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), workflow.env.answer_shapes("step", told.token.shape[0]))
    row = jax.eval_shape(lambda: pack(_transition(workflow, env_state, actions, extras, blank)[1]))
    room = jax.tree.map(lambda x: jnp.zeros((workflow.rollout_length, *x.shape), x.dtype), row)
    return Rollout(
        acting=acting, env_state=env_state, actions=actions, policy_extras=extras, told=told, trajectory=room
    )


@functools.partial(jax.jit, donate_argnames="state")
def _end(workflow: Any, state: State, rollout: Rollout, answer: dict[str, Any]) -> tuple[PyTreeDict, State]:
    """The last step of a rollout, and what is learned from it all; for every seed."""

    def one_seed(state: State) -> tuple[PyTreeDict, State]:
        trajectory, env_state = _finished(workflow, state.pop("rollout"), state.pop("answer"))
        metrics, state = workflow.learn_once(state.replace(env_state=env_state), trajectory)
        return metrics, state | dict.fromkeys(("rollout", "answer"))

    joined = state | {"rollout": rollout, "answer": answer}
    metrics, state = over_seeds(workflow.execution, one_seed, joined, returns_state=True)
    return metrics, State({name: entry for name, entry in state.items() if name not in ("rollout", "answer")})


@jax.jit
def _finish(workflow: Any, rollout: Rollout, answer: dict[str, Any]) -> tuple[SampleBatch, Any]:
    return _finished(workflow, rollout, answer)


def _finished(workflow: Any, rollout: Rollout, answer: dict[str, Any]) -> tuple[SampleBatch, Any]:
    rollout = _with_step(workflow, rollout, answer, workflow.rollout_length - 1)
    return workflow.collected(rollout.trajectory.unpack()), rollout.env_state


def _act(workflow: Any, acting: Any, env_state: Any, step: jax.Array | int) -> tuple[Any, Any, Any]:
    keys = jax.tree.map(lambda keys: keys[0], step_keys(acting.key, env_state, jnp.asarray(step)[None]))
    actions, extras = choose_actions(workflow.action_fn(acting), env_state, acting.agent_state, keys)
    return actions, extras, workflow.env.request(without_recurrent_state(env_state), actions)


def _transition(workflow: Any, env_state: Any, actions: Any, extras: Any, answer: Any) -> tuple[Any, SampleBatch]:
    next_state = workflow.env.complete(without_recurrent_state(env_state), actions, answer)
    return transition_after(env_state, actions, PyTreeDict(extras), next_state, workflow.env_fields)


def _with_step(workflow: Any, rollout: Rollout, answer: Any, step: jax.Array | int) -> Rollout:
    env_state, row = _transition(workflow, rollout.env_state, rollout.actions, rollout.policy_extras, answer)
    trajectory = jax.tree.map(lambda rows, x: rows.at[step].set(x), rollout.trajectory, pack(row))
    return rollout.replace(env_state=env_state, trajectory=trajectory)
