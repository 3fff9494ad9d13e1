"""Batched inference for simulators: one call of a compiled program answers all pending action requests.

The episode state of each simulator (wrappers, recurrent state, the action whose outcome is pending) is stored in one
slot of a table on the device. A call reads the slots of the requesting sessions, completes their steps, chooses actions
and writes the slots back. The random key of an action is folded from the session number and its step count, so actions
do not depend on the other requests of the batch.
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

MOST_TOGETHER = 64  # requests answered by one call


class Question(NamedTuple):
    """An action request: the outcome of the last action, and the current observation.

    Attributes:
        session: number of the session, unique over the server's life.
        slot: index of the session in the table.
        step: number of earlier requests of the session.
        obs: current observation, with the structure of the observation space; arrays without leading axes.
        reward: reward of the last action; 0 at the start of an episode.
        starts: whether this is the first observation of an episode.
        terminated: whether the task has ended the episode.
        truncated: whether the episode was ended from outside the task, such as by a time limit.
        exploit: whether to return the greedy action.
        answer: callback that receives the action, NumPy; ``None`` if no action is needed.
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
    """State of all simulators, one slot (row) each.

    Attributes:
        env_state: environment states of the episodes, including the state of wrappers.
        actions: last action sent to each simulator.
        policy_extras: policy extras of these actions.
    """

    env_state: Any
    actions: Any
    policy_extras: Any


class Answered(NamedTuple):
    """Result of one batch of requests.

    Attributes:
        actions: for the simulators, NumPy ``[N, ...]``.
        steps: packed transitions, one NumPy array ``[N, features]`` per dtype; meaningless for requests that start an
            episode. ``None`` if nothing is recorded.
    """

    actions: Any
    steps: list[np.ndarray] | None


class Answering:
    """Answers action requests with an agent; its programs are compiled for batches of 1, 4, 16 and 64 requests.

    Args:
        workflow: provides the agent and the environment wrappers.
        num_slots: maximum number of simultaneous simulators.
        records: whether to return transitions.

    Attributes:
        step_template: tree of the packed transitions, with shapes as leaves; ``None`` if nothing is recorded.
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
        """Set the policy of all later actions."""
        # The program takes a few plain arrays: each costs 1 to 2 microseconds per call, a typed key 30.
        self._acting = Flat.of(acting.replace(key=pack(acting.key, num_axes=0)))
        if self._slots is None:
            blank = _blank_slots(self._workflow, acting, self._num_slots + 1)
            self._slots = Flat.of(pack(blank))
            if self._records:
                told = _as_told([self._nobody(exploit=False)], self._num_slots)
                before = jax.tree.map(lambda x: x[:1], blank)
                answer = functools.partial(_answer, exploit=False)
                shapes = jax.eval_shape(answer, self._workflow, acting, before, _told_apart(told))
                self.step_template = jax.eval_shape(pack, shapes[2])

    def compile_all(self, exploit: Sequence[bool] = (False, True)) -> None:
        """Compile for every batch size now, so that no client waits for a compilation."""
        for greedy in exploit:
            for size in bucket_sizes(min(self._num_slots, MOST_TOGETHER)):
                self.ask([self._nobody(greedy)] * size)

    def _nobody(self, exploit: bool) -> Question:
        spec = self._workflow.env.simulators.main.obs_space.spec
        obs = jax.tree.map(lambda of: np.zeros(of.shape, of.dtype), spec)
        return Question(0, self._num_slots, 0, obs, 0.0, True, False, False, exploit, None)

    def ask(self, questions: Sequence[Question]) -> Answered:
        """Answer at most ``MOST_TOGETHER`` requests of different sessions; ``exploit`` is the same in all of them."""
        return self.run(self.told(questions), questions[0].exploit)

    def told(self, questions: Sequence[Question]) -> Flat:
        """Return the input arrays of the program, padded to the next batch size."""
        return Flat.of(_as_told(questions, self._num_slots))

    def run(self, told: Flat, exploit: bool) -> Answered:
        """Run the program. Raise ``RuntimeError`` if no agent was published yet."""
        if self._acting is None or self._slots is None:
            raise RuntimeError("there is no agent yet: publish one before questions are answered.")
        program = _answering_program(
            self._constant.treedef, self._acting.treedef, self._slots.treedef, told.treedef, exploit, self._records
        )
        leaves, actions, steps = program(self._constant.leaves, self._acting.leaves, self._slots.leaves, told.leaves)
        self._slots = self._slots._replace(leaves=leaves)
        return Answered(*jax.tree.map(np.asarray, (actions, steps)))  # on a CPU this copies nothing


def bucket_sizes(most: int) -> list[int]:
    """Return the powers of 4 up to the first that is at least ``most``: a call costs as much as 100 rows."""
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(4 * sizes[-1])
    return sizes


def _as_told(questions: Sequence[Question], nobody: int) -> PyTreeDict:
    """Return the requests as arrays, padded to the next batch size with dummy requests of the slot ``nobody``.

    Counts and flags share one array, ``[6, N]``.
    """
    missing = bucket_sizes(len(questions))[-1] - len(questions)
    rows = [*questions, *[questions[0]._replace(slot=nobody, starts=True)] * missing]
    sessions, slots, steps, shown, rewards, *truths = list(zip(*rows, strict=True))[:8]
    counts = np.array([sessions, slots, steps, *truths], np.uint32)
    return PyTreeDict(counts=counts, obs=_stacked(shown), rewards=np.array(rewards, np.float32))


def _told_apart(told: PyTreeDict) -> PyTreeDict:
    sessions, slots, steps, *truths = told.counts
    starts, terminations, truncations = (row.astype(bool) for row in truths)
    return PyTreeDict(
        slots=slots.astype(jnp.int32),
        sessions=sessions,
        steps=steps,
        obs=told.obs,
        rewards=told.rewards,
        starts=starts,
        terminations=terminations,
        truncations=truncations,
    )


def _stacked(shown: Sequence[Any]) -> Any:
    """Stack observations along a new leading axis."""
    if not isinstance(shown[0], np.ndarray):
        return stack_trees(shown)
    return np.concatenate(shown).reshape(len(shown), *shown[0].shape) if shown[0].ndim else np.array(shown)


@functools.lru_cache(maxsize=128)
def _answering_program(constant: Any, acting: Any, slots: Any, told: Any, exploit: bool, records: bool) -> Any:
    @functools.partial(jax.jit, donate_argnums=2)
    def program(*leaves: list[Any]) -> tuple[list[Any], Any, list[Any] | None]:
        trees = [treedef.unflatten(x) for treedef, x in zip((constant, acting, slots, told), leaves, strict=True)]
        workflow, acts, table, asked = trees
        asked, acts = _told_apart(asked), acts.replace(key=acts.key.unpack())
        before = jax.tree.map(lambda x: x[asked.slots], table).unpack()
        after, actions, step = _answer(workflow, acts, before, asked, exploit=exploit)
        table = jax.tree.map(lambda x, rows: x.at[asked.slots].set(rows), table, pack(after))
        return jax.tree.leaves(table), actions, jax.tree.leaves(pack(step)) if records else None

    return program


def _answer(workflow: Any, acting: Acting, before: Slots, told: PyTreeDict, exploit: bool) -> tuple[Slots, Any, Any]:
    """Return the slots after the requests ``told``, the actions for the simulators, and the completed steps."""
    env = workflow.env
    answer = _simulators_answer(env, told)
    stepped = env.complete(without_recurrent_state(before.env_state), before.actions, answer)
    stepped, step = transition_after(
        before.env_state, before.actions, PyTreeDict(before.policy_extras), stepped, workflow.env_fields
    )
    begun = with_recurrent_state(_begun(env, told, answer), acting.agent_state)
    now = tree_where(told.starts, begun, stepped)
    keys = jax.vmap(_question_key, (None, 0, 0))(unrolled(acting.key), told.sessions, told.steps)
    action_fn = workflow.agent.evaluate_actions if exploit else workflow.action_fn(acting)
    actions, extras = choose_actions(action_fn, now, acting.agent_state, keys)
    asked = env.request(without_recurrent_state(now), actions).actions
    stored = _as_stored(extras, before.policy_extras)
    return Slots(env_state=now, actions=actions, policy_extras=stored), asked, step


def _as_stored(extras: Any, usual: Any) -> PyTreeDict:
    """Return extras with the names of ``usual``; missing ones of greedy actions, which are not learned from, are 0."""
    zeros = {name: jax.tree.map(jnp.zeros_like, usual[name]) for name in usual if name not in extras}
    return PyTreeDict({name: zeros[name] if name in zeros else extras[name] for name in usual})


def _question_key(key: jax.Array, session: jax.Array, step: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, session), step)


def _simulators_answer(env: Any, told: PyTreeDict) -> PyTreeDict:
    """Return the response that simulators on the host would give in the state that ``told`` describes."""
    answer = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), env.answer_shapes("step", told.slots.shape[0]))
    terminations = told.terminations
    told_ends = {"termination": terminations, "truncation": told.truncations & ~terminations}
    return answer | {"obs": told.obs, "start": told.obs, "reward": told.rewards, **told_ends}


def _begun(env: Any, told: PyTreeDict, answer: PyTreeDict) -> Any:
    """Return the states of episodes that start with the current observations."""
    keys = jax.vmap(jax.random.key)(told.sessions)
    return env.started(answer, keys, told.sessions.astype(jnp.int32), jnp.zeros_like(told.slots))


@functools.partial(jax.jit, static_argnames="num_rows")
def _blank_slots(workflow: Any, acting: Acting, num_rows: int) -> Slots:
    """Return slots without sessions."""
    env = workflow.env
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    told = PyTreeDict(
        slots=rows,
        sessions=rows.astype(jnp.uint32),
        obs=env.simulators.main.obs_space.zeros((num_rows,)),
        rewards=jnp.zeros(num_rows, jnp.float32),
        terminations=rows < 0,
        truncations=rows < 0,
    )
    begun = _begun(env, told, _simulators_answer(env, told))
    env_state = with_recurrent_state(begun, acting.agent_state)
    keys = jax.random.split(acting.key, num_rows)
    actions, extras = choose_actions(workflow.action_fn(acting), env_state, acting.agent_state, keys)
    return Slots(env_state=env_state, actions=actions, policy_extras=extras)
