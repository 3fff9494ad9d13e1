"""Iterations whose environments are simulators on the host: a loop steps them, between calls of compiled programs.

An iteration is ``begin``, a step of the simulators, ``advance`` and another step as often as a rollout needs, and
``end``, which learns. The numbers are those of the iteration that is one program (``evorl.workflows.acting``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.execution.programs import over_seeds
from evorl.rollout import choose_actions, step_keys, transition_after, without_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeData, PyTreeDict, State

ANSWER_OF_A_STEP = "step"


class Rollout(PyTreeData):
    """A rollout that is going on: the agent has acted, and the simulators are to answer.

    Attributes:
        acting: how the agent acts.
        env_state: of the environments.
        actions: of the agent, ``[B, ...]``.
        policy_extras: of its actions.
        told: what the simulators are told.
        trajectory: rows ``[T, B, ...]`` of the steps so far.
    """

    acting: Any
    env_state: Any
    actions: Any
    policy_extras: Any
    told: Any
    trajectory: SampleBatch


def steps_in_a_loop(workflow: Any) -> bool:
    """Whether a workflow's iterations are stepped by a loop on the host.

    Its environments want that, and it collects as its family does: whatever comes before a rollout, or stands in its
    place, is a compiled program, which calls the simulators by itself.
    """
    if getattr(workflow.env, "host", None) != "loop":
        return False
    family = next((cls for cls in type(workflow).__mro__ if "acting" in vars(cls)), None)
    return family is not None and type(workflow).collect is vars(family).get("collect")


def iterate_on_host(workflow: Any, state: State, num_iterations: int) -> tuple[PyTreeDict, State]:
    """``(metrics [N, ...], state)`` after so many iterations; the state is donated.

    Raises:
        HostEnvError: a simulator failed.
    """
    rows = []
    for _ in range(num_iterations):
        rollout, state = _begin(workflow, state)
        for step in range(workflow.rollout_length - 1):
            rollout = _advance(workflow, rollout, _answer(workflow, rollout.told), step)
        metrics, state = _end(workflow, state, rollout, _answer(workflow, rollout.told))
        rows.append(metrics)
    rows = jax.device_get(rows)
    return jax.tree.map(lambda *x: np.stack(x), *rows), state


def _answer(workflow: Any, told: Any) -> dict[str, Any]:
    """What the simulators say; seeds side by side are more of them."""
    told = jax.device_get(told)
    num_seeds = workflow.execution.num_seeds
    if num_seeds is None:
        return workflow.env.simulators.step(told)
    answer = workflow.env.simulators.step(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), told))
    return jax.tree.map(lambda x: x.reshape(num_seeds, -1, *x.shape[1:]), answer)


@functools.partial(jax.jit, donate_argnames="state")
def _begin(workflow: Any, state: State) -> tuple[Rollout, State]:
    """The first actions of a rollout."""

    def one_seed(state: State) -> tuple[Rollout, State]:
        acting, state = workflow.acting(state)
        actions, extras, told = _act(workflow, acting, state.env_state, 0)
        blank = jax.eval_shape(lambda: _transition(workflow, state.env_state, actions, extras, _blank_answer(told))[1])
        room = jax.tree.map(lambda x: jnp.zeros((workflow.rollout_length, *x.shape), x.dtype), blank)
        rollout = Rollout(
            acting=acting, env_state=state.env_state, actions=actions, policy_extras=extras, told=told, trajectory=room
        )
        return rollout, state

    def _blank_answer(told: Any) -> PyTreeDict:
        shapes = workflow.env.answer_shapes(ANSWER_OF_A_STEP, told.token.shape[0])
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    return over_seeds(workflow.execution, one_seed, state, returns_state=True)


@functools.partial(jax.jit, donate_argnames="rollout")
def _advance(workflow: Any, rollout: Rollout, answer: dict[str, Any], step: int) -> Rollout:
    """The rollout with what the simulators answered at this step, and the next actions."""

    def one_seed(rollout: Rollout, answer: dict[str, Any]) -> Rollout:
        rollout = _with_step(workflow, rollout, answer, step)
        actions, extras, told = _act(workflow, rollout.acting, rollout.env_state, step + 1)
        return rollout.replace(actions=actions, policy_extras=extras, told=told)

    return _each_seed(workflow, one_seed)(rollout, answer)


@functools.partial(jax.jit, donate_argnames="state")
def _end(workflow: Any, state: State, rollout: Rollout, answer: dict[str, Any]) -> tuple[PyTreeDict, State]:
    """The last step of a rollout, and what is learned from it all."""

    def one_seed(joined: State) -> tuple[PyTreeDict, State]:
        rollout = joined.pop("rollout")
        rollout = _with_step(workflow, rollout, joined.pop("answer"), workflow.rollout_length - 1)
        metrics, state = workflow.learn_once(
            joined.replace(env_state=rollout.env_state), workflow.collected(rollout.trajectory)
        )
        return metrics, state

    execution, joined = workflow.execution, state | {"rollout": rollout, "answer": answer}
    if execution.num_seeds is None:
        return one_seed(joined)
    axes = State({name: None if name == "iterations" else 0 for name in joined})
    out = State({name: axis for name, axis in axes.items() if name in state})
    return jax.vmap(one_seed, in_axes=(axes,), out_axes=(0, out))(joined)


def _each_seed(workflow: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn if workflow.execution.num_seeds is None else jax.vmap(fn)


def _act(workflow: Any, acting: Any, env_state: Any, step: jax.Array | int) -> tuple[Any, Any, Any]:
    keys = jax.tree.map(lambda keys: keys[0], step_keys(acting.key, env_state, jnp.asarray(step)[None]))
    actions, extras = choose_actions(workflow.action_fn(acting), env_state, acting.agent_state, keys)
    return actions, extras, workflow.env.request(without_recurrent_state(env_state), actions)


def _transition(workflow: Any, env_state: Any, actions: Any, extras: Any, answer: Any) -> tuple[Any, SampleBatch]:
    next_state = workflow.env.complete(without_recurrent_state(env_state), actions, answer)
    return transition_after(env_state, actions, PyTreeDict(extras), next_state, workflow.env_fields)


def _with_step(workflow: Any, rollout: Rollout, answer: Any, step: jax.Array | int) -> Rollout:
    env_state, row = _transition(workflow, rollout.env_state, rollout.actions, rollout.policy_extras, answer)
    trajectory = jax.tree.map(lambda rows, x: rows.at[step].set(x), rollout.trajectory, row)
    return rollout.replace(env_state=env_state, trajectory=trajectory)
