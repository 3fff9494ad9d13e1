"""Batched inference for simulators: one call of a compiled program answers all pending action requests.

The episode state of each simulator (wrappers, recurrent state, the action whose outcome is pending) is stored in one
slot of a table on the device. A call reads the slots of the requesting sessions, completes their steps, chooses actions
and writes the slots back. The random key of an action is derived from the session number and the session's step count,
so actions do not depend on the other requests of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from evorl.ops.random import unrolled
from evorl.ops.trees import Flat, pack, stack_trees, tree_where
from evorl.rollout import Acting, choose_actions, transition_after, with_recurrent_state, without_recurrent_state
from evorl.types import PyTreeData, PyTreeDict

MAX_BATCH = 64  # requests answered by one call


class ActionRequest(NamedTuple):
    """An action request: the outcome of the last action, and the current observation.

    Attributes:
        session: number of the session, never reused by the server.
        slot: row of the session in the table of slots.
        step: number of earlier requests of the session.
        obs: current observation (the previous one if a terminal state was not sent), NumPy arrays without a batch axis.
        reward: reward of the last action; 0 at the start of an episode.
        starts: true if this is the first observation of an episode.
        terminated: true if the task ended the episode.
        truncated: true if the episode was ended from outside the task, such as by a time limit.
        exploit: true to request the greedy action.
        answer: callback that receives the action, see ``action_as_sent``; ``None`` if no action is needed.
    """

    session: int
    slot: int
    step: int
    obs: Any
    reward: float
    starts: bool
    terminated: bool
    truncated: bool
    exploit: bool
    answer: Callable[[Any], None] | None


class Slots(PyTreeData):
    """State of all simulators: one slot (row of every array) for each, and a last slot for padding.

    Attributes:
        env_state: environment states of the episodes, including the state of wrappers.
        actions: last action sent to each simulator.
        policy_extras: extra outputs of the policy for these actions, such as log-probabilities.
    """

    env_state: Any
    actions: Any
    policy_extras: Any


class ActionBatch(NamedTuple):
    """Result of one batch of requests.

    Attributes:
        actions: actions for the simulators, NumPy ``[N, ...]``; N includes padding, which follows the requests.
        steps: packed transitions, one NumPy array ``[N, features]`` per dtype; meaningless for requests that start an
            episode. ``None`` if nothing is recorded.
    """

    actions: Any
    steps: list[np.ndarray] | None


class BatchedInference:
    """Computes the actions of an agent for requests, with programs for batches of 1, 4, 16 and 64 requests.

    Args:
        workflow: provides the agent and the environment wrappers.
        num_slots: maximum number of simultaneous simulators.
        records: true to return the completed transitions as ``ActionBatch.steps``.

    Attributes:
        step_template: packed transition with shapes as leaves; ``None`` before ``publish``, or if ``records`` is False.
    """

    def __init__(self, workflow: Any, num_slots: int, records: bool) -> None:
        constant = Flat.of(workflow)
        self._constant = constant._replace(leaves=[jnp.asarray(leaf) for leaf in constant.leaves])
        self._num_slots, self._records = num_slots, records
        self._workflow = workflow
        self._acting: Flat | None = None
        self._slots: Flat | None = None
        self.step_template: Any = None

    def publish(self, acting: Acting) -> None:
        """Use the policy of ``acting``, which ``workflow.acting`` returned, for all later actions."""
        # The key is passed as a plain array: each array costs 1 to 2 microseconds per call, but a typed key costs 30.
        self._acting = Flat.of(acting.replace(key=pack(acting.key, num_axes=0)))
        if self._slots is None:
            blank = _blank_slots(self._workflow, acting, self._num_slots + 1)
            self._slots = Flat.of(pack(blank))
            if self._records:
                inputs = pack_requests([self._padding_request(exploit=False)], self._num_slots)
                before = jax.tree.map(lambda x: x[:1], blank)
                answer = functools.partial(_step_and_act, exploit=False)
                shapes = jax.eval_shape(answer, self._workflow, acting, before, unpack_requests(inputs))
                self.step_template = jax.eval_shape(pack, shapes[2])

    def compile_all(self) -> None:
        """Compile for every batch size and value of ``exploit``, so that no client waits; call ``publish`` before."""
        for exploit in (False, True):
            for size in bucket_sizes(min(self._num_slots, MAX_BATCH)):
                self.ask([self._padding_request(exploit)] * size)

    def _padding_request(self, exploit: bool) -> ActionRequest:
        spec = self._workflow.env.simulators.main.obs_space.spec
        obs = jax.tree.map(lambda of: np.zeros(of.shape, of.dtype), spec)
        return ActionRequest(0, self._num_slots, 0, obs, 0.0, True, False, False, exploit, None)

    def ask(self, requests: Sequence[ActionRequest]) -> ActionBatch:
        """Return the actions for 1 to ``MAX_BATCH`` requests of different sessions, all with the same ``exploit``."""
        return self.run(self.inputs(requests), requests[0].exploit)

    def inputs(self, requests: Sequence[ActionRequest]) -> Flat:
        """Return the input arrays of the program, padded to the next batch size."""
        return Flat.of(pack_requests(requests, self._num_slots))

    def run(self, inputs: Flat, exploit: bool) -> ActionBatch:
        """Run the program on ``inputs``. Raise ``RuntimeError`` if no agent was published yet."""
        if self._acting is None or self._slots is None:
            raise RuntimeError("no agent has been published: call publish before ask.")
        program = _inference_program(
            self._constant.treedef, self._acting.treedef, self._slots.treedef, inputs.treedef, exploit, self._records
        )
        leaves, actions, steps = program(self._constant.leaves, self._acting.leaves, self._slots.leaves, inputs.leaves)
        self._slots = self._slots._replace(leaves=leaves)
        return ActionBatch(*jax.tree.map(np.asarray, (actions, steps)))  # on a CPU this copies nothing


def bucket_sizes(limit: int) -> list[int]:
    """Return the powers of 4 up to the first >= ``limit``. Padding is cheap: 100 requests take twice as long as one."""
    sizes = [1]
    while sizes[-1] < limit:
        sizes.append(4 * sizes[-1])
    return sizes


def pack_requests(requests: Sequence[ActionRequest], padding_slot: int) -> PyTreeDict:
    """Return the requests as arrays, padded to the next batch size with dummy requests of the slot ``padding_slot``.

    Counts and flags share one array, ``[6, N]``.
    """
    missing = bucket_sizes(len(requests))[-1] - len(requests)
    rows = [*requests, *[requests[0]._replace(slot=padding_slot, starts=True)] * missing]
    sessions, slots, steps, observations, rewards, *truths = list(zip(*rows, strict=True))[:8]
    counts = np.array([sessions, slots, steps, *truths], np.uint32)
    return PyTreeDict(counts=counts, obs=_stacked(observations), rewards=np.array(rewards, np.float32))


def unpack_requests(inputs: PyTreeDict) -> PyTreeDict:
    """Return the arrays of ``pack_requests`` by name, each ``[N, ...]``."""
    sessions, slots, steps, *truths = inputs.counts
    starts, terminations, truncations = (row.astype(bool) for row in truths)
    return PyTreeDict(
        slots=slots.astype(jnp.int32),
        sessions=sessions,
        steps=steps,
        obs=inputs.obs,
        rewards=inputs.rewards,
        starts=starts,
        terminations=terminations,
        truncations=truncations,
    )


def _stacked(observations: Sequence[Any]) -> Any:
    """Stack observations along a new leading axis."""
    first = observations[0]
    if not isinstance(first, np.ndarray):
        return stack_trees(observations)
    return (
        np.concatenate(observations).reshape(len(observations), *first.shape) if first.ndim else np.array(observations)
    )


@functools.lru_cache(maxsize=128)
def _inference_program(constant: Any, acting: Any, slots: Any, inputs: Any, exploit: bool, records: bool) -> Any:
    @functools.partial(jax.jit, donate_argnums=2)
    def program(*leaves: list[Any]) -> tuple[list[Any], Any, list[Any] | None]:
        trees = [treedef.unflatten(x) for treedef, x in zip((constant, acting, slots, inputs), leaves, strict=True)]
        workflow, acts, table, packed = trees
        requests, acts = unpack_requests(packed), acts.replace(key=acts.key.unpack())
        before = jax.tree.map(lambda x: x[requests.slots], table).unpack()
        after, actions, step = _step_and_act(workflow, acts, before, requests, exploit=exploit)
        table = jax.tree.map(lambda x, rows: x.at[requests.slots].set(rows), table, pack(after))
        return jax.tree.leaves(table), actions, jax.tree.leaves(pack(step)) if records else None

    return program


def _step_and_act(
    workflow: Any, acting: Acting, before: Slots, inputs: PyTreeDict, exploit: bool
) -> tuple[Slots, Any, Any]:
    """Return the slots after the requests ``inputs``, the actions for the simulators, and the completed steps."""
    env = workflow.env
    answer = _simulator_response(env, inputs)
    stepped = env.complete(without_recurrent_state(before.env_state), before.actions, answer)
    stepped, step = transition_after(
        before.env_state, before.actions, PyTreeDict(before.policy_extras), stepped, workflow.env_fields
    )
    begun = with_recurrent_state(_begun(env, inputs, answer), acting.agent_state)
    now = tree_where(inputs.starts, begun, stepped)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(unrolled(acting.key), inputs.sessions)
    keys = jax.vmap(jax.random.fold_in)(keys, inputs.steps)
    action_fn = workflow.agent.evaluate_actions if exploit else workflow.action_fn(acting)
    actions, extras = choose_actions(action_fn, now, acting.agent_state, keys)
    sent = env.request(without_recurrent_state(now), actions).actions
    stored = _as_stored(extras, before.policy_extras)
    return Slots(env_state=now, actions=actions, policy_extras=stored), sent, step


def _as_stored(extras: Any, template: Any) -> PyTreeDict:
    """Return the extras that ``template`` contains; missing extras, as for greedy actions, become zeros."""
    zeros = {name: jax.tree.map(jnp.zeros_like, template[name]) for name in template if name not in extras}
    return PyTreeDict({name: zeros[name] if name in zeros else extras[name] for name in template})


def _simulator_response(env: Any, inputs: PyTreeDict) -> PyTreeDict:
    """Return the response that simulators stepped by this process would give for the outcome in ``inputs``."""
    answer = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), env.answer_shapes("step", inputs.slots.shape[0]))
    terminations = inputs.terminations
    ends = {"termination": terminations, "truncation": inputs.truncations & ~terminations}
    return answer | {"obs": inputs.obs, "start": inputs.obs, "reward": inputs.rewards, **ends}


def _begun(env: Any, inputs: PyTreeDict, answer: PyTreeDict) -> Any:
    """Return the states of episodes that start with the current observations."""
    keys = jax.vmap(jax.random.key)(inputs.sessions)
    return env.started(answer, keys, inputs.sessions.astype(jnp.int32), jnp.zeros_like(inputs.slots))


@functools.partial(jax.jit, static_argnames="num_rows")
def _blank_slots(workflow: Any, acting: Acting, num_rows: int) -> Slots:
    """Return ``num_rows`` valid slots that no session uses yet."""
    env = workflow.env
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    inputs = PyTreeDict(
        slots=rows,
        sessions=rows.astype(jnp.uint32),
        obs=env.simulators.main.obs_space.zeros((num_rows,)),
        rewards=jnp.zeros(num_rows, jnp.float32),
        terminations=rows < 0,
        truncations=rows < 0,
    )
    begun = _begun(env, inputs, _simulator_response(env, inputs))
    env_state = with_recurrent_state(begun, acting.agent_state)
    keys = jax.random.split(acting.key, num_rows)
    actions, extras = choose_actions(workflow.action_fn(acting), env_state, acting.agent_state, keys)
    return Slots(env_state=env_state, actions=actions, policy_extras=extras)
