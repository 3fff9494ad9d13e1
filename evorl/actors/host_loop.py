"""Training iterations with simulators on the host: a Python loop steps them between calls of compiled programs.

Between two steps of the simulators, the compiled program ``_advance`` chooses actions. After the last step, the program
``_end`` learns from the rollout and chooses the first actions of the next iteration. The results equal an iteration in
one compiled program (see ``evorl.rollout.collect_rollout``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evorl.execution.collector import ProgramCollector
from evorl.execution.programs import over_seeds
from evorl.execution.trainable import Collector
from evorl.ops.trees import Flat, Packed, pack
from evorl.rollout import choose_actions, step_keys, transition_after, without_recurrent_state
from evorl.sample_batch import SampleBatch
from evorl.types import PyTreeData, PyTreeDict, State


class Rollout(PyTreeData):
    """Rollout in progress: the agent has acted, and the response of the simulators is pending.

    Attributes:
        env_state: state of the environments.
        actions: actions of the agent, ``[B, ...]``.
        policy_extras: outputs of the policy for these actions, such as log probabilities.
        trajectory: transitions so far, packed ``[T, B, features]``; zeros for later steps.
    """

    env_state: Any
    actions: Any
    policy_extras: Any
    trajectory: Packed[SampleBatch]


class _Begun(NamedTuple):
    """Flattened policy inputs of a rollout, its state after the first actions, and the request to the simulators."""

    acting: Flat
    rollout: Flat
    request: Flat

    def with_leaves(self, *leaves: list[Any]) -> _Begun:
        return _Begun(*[part._replace(leaves=x) for part, x in zip(self, leaves, strict=True)])


def iterate_on_host(workflow: Any, state: State, num_iterations: int) -> tuple[PyTreeDict, State]:
    """Run N = ``num_iterations`` iterations; return ``(metrics [N, ...], state)``. The state is donated.

    Raises:
        HostEnvError: a simulator failed.
    """
    first, state = _begin(workflow, state)
    begun, constant, flat = _Begun(*map(Flat.of, first)), Flat.of(workflow), Flat.of(state)
    rows = []
    for _ in range(num_iterations):
        rollout, answer = _step_to_the_last(workflow, constant, begun)
        end = _program(_end, (constant.treedef, flat.treedef, rollout.treedef, answer.treedef), donated=(1,))
        metrics, leaves, *following = end(constant.leaves, flat.leaves, rollout.leaves, answer.leaves)
        begun, flat = begun.with_leaves(*following), flat._replace(leaves=leaves)
        rows.append(metrics)
    return stacked_rows(rows), flat.tree().replace(env_state=begun.rollout.tree().env_state)


class HostLoop(ProgramCollector):
    """Collects by a loop on the host that steps simulators between calls of compiled programs."""

    def iterate(
        self, workflow: Any, state: State, num_iterations: int, message: Callable[[str], None]
    ) -> tuple[PyTreeDict | None, State]:
        return iterate_on_host(workflow, state, num_iterations)


HOST_LOOP: Collector = HostLoop(is_one_program=False)


def stacked_rows(rows: list[PyTreeDict]) -> PyTreeDict:
    """Stack the metrics of N iterations to NumPy arrays ``[N, ...]``."""
    return jax.tree.map(lambda *x: np.stack(x), *jax.device_get(rows))


def roll_on_host(workflow: Any, acting: Any, env_state: Any) -> tuple[SampleBatch, Any]:
    """Run a rollout of one seed in a host loop; return the trajectory for ``update`` and the last environment state."""
    begun = _Begun(*map(Flat.of, _begin_rollout(workflow, acting, env_state)))
    rollout, answer = _step_to_the_last(workflow, Flat.of(workflow), begun)
    return _finish(workflow, rollout.tree(), answer.tree())


def _step_to_the_last(workflow: Any, constant: Flat, begun: _Begun) -> tuple[Flat, Flat]:
    """Return the rollout before its last step, and the simulators' response to the last step."""
    acting, rollout, request = begun
    advance: Any = None
    for step in range(workflow.rollout_length - 1):
        answer, number = Flat.of(_answer(workflow, request.tree())), Flat.of(step)
        if advance is None:  # looking up the program takes as long as a step of a fast simulator
            treedefs = tuple(flat.treedef for flat in (constant, acting, rollout, answer, number))
            advance = _program(_advance, treedefs, donated=(2,))
        leaves, request_leaves = advance(constant.leaves, acting.leaves, rollout.leaves, answer.leaves, number.leaves)
        rollout, request = rollout._replace(leaves=leaves), request._replace(leaves=request_leaves)
    return rollout, Flat.of(_answer(workflow, request.tree()))


@functools.lru_cache(maxsize=64)
def _program(fn: Callable[..., Any], treedefs: tuple[Any, ...], donated: tuple[int, ...]) -> Any:
    """Return ``fn`` compiled as a function of the leaves of trees with these structures."""

    @functools.partial(jax.jit, donate_argnums=donated)
    def program(*leaves: list[Any]) -> Any:
        return fn(*[treedef.unflatten(x) for treedef, x in zip(treedefs, leaves, strict=True)])

    return program


def _advance(workflow: Any, acting: Any, rollout: Rollout, answer: dict[str, Any], step: Any) -> tuple[list, list]:
    """Add the simulators' response at ``step``, and act again; return the leaves of the rollout and the request."""

    def one_seed(acting: Any, rollout: Rollout, answer: dict[str, Any]) -> tuple[Rollout, Any]:
        rollout = _with_step(workflow, rollout, answer, step)
        actions, extras, request = _act(workflow, acting, rollout.env_state, step + 1)
        return rollout.replace(actions=actions, policy_extras=extras), request

    one_or_all = one_seed if workflow.execution.num_seeds is None else jax.vmap(one_seed)
    rollout, request = one_or_all(acting, rollout, answer)
    return jax.tree.leaves(rollout), jax.tree.leaves(request)


def _end(workflow: Any, state: State, rollout: Rollout, answer: dict[str, Any]) -> tuple[PyTreeDict, *tuple[list, ...]]:
    """Finish a rollout, learn from it, and begin the next one, for every seed.

    This is a single program, because each call of a program has overhead. Returns the metrics, the leaves of the state
    without ``env_state``, and the leaves of the three parts of ``_Begun``.
    """

    def one_seed(state: State) -> tuple[Any, State]:
        trajectory, env_state = _finished(workflow, state.pop("rollout"), state.pop("answer"))
        _, state = workflow.acting(state.replace(env_state=env_state))
        metrics, state = workflow.pure_step(state, trajectory)
        return (metrics, _first_of(workflow, state)), state | dict.fromkeys(("rollout", "answer", "env_state"))

    joined = state | {"rollout": rollout, "answer": answer}
    (metrics, following), state = over_seeds(workflow.execution, one_seed, joined, returns_state=True)
    return metrics, jax.tree.leaves(state), *map(jax.tree.leaves, following)


def _answer(workflow: Any, request: Any) -> dict[str, Any]:
    """Return the response of the simulators; all seeds are stepped as one batch."""
    request = jax.tree.map(np.asarray, request)
    num_seeds = workflow.execution.num_seeds
    if num_seeds is None:
        return workflow.env.simulators.step(request)
    answer = workflow.env.simulators.step(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), request))
    return jax.tree.map(lambda x: x.reshape(num_seeds, -1, *x.shape[1:]), answer)


@functools.partial(jax.jit, donate_argnames="state")
def _begin(workflow: Any, state: State) -> tuple[Any, State]:
    """Return the start of a rollout, for every seed, and the state without ``env_state``, which the rollout contains.

    The key of the returned state is the one before acting: training resumes from it if no iteration follows.
    """

    def one_seed(state: State) -> tuple[Any, State]:
        return _first_of(workflow, state), state.replace(env_state=None)

    return over_seeds(workflow.execution, one_seed, state, returns_state=True)


def _first_of(workflow: Any, state: State) -> tuple[Any, Rollout, Any]:
    acting, _ = workflow.acting(state)
    return _first_actions(workflow, acting, state.env_state)


def _first_actions(workflow: Any, acting: Any, env_state: Any) -> tuple[Any, Rollout, Any]:
    actions, extras, request = _act(workflow, acting, env_state, 0)
    blank = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), workflow.env.answer_shapes("step", request.token.shape[0])
    )
    row = jax.eval_shape(lambda: pack(_transition(workflow, env_state, actions, extras, blank)[1]))
    room = jax.tree.map(lambda x: jnp.zeros((workflow.rollout_length, *x.shape), x.dtype), row)
    rollout = Rollout(env_state=env_state, actions=actions, policy_extras=extras, trajectory=room)
    # In a rollout of one step, the agent does not act again: no copy of the parameters is needed.
    return acting if workflow.rollout_length > 1 else None, rollout, request


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


_begin_rollout, _finish = jax.jit(_first_actions), jax.jit(_finished)
