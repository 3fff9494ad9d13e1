"""A simulator with known outputs, as a client of servers and as an environment of bridges."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from evorl.envs.host.host_vector_env import HostVectorEnv
from evorl.envs.space import Space
from evorl.rollout import Acting
from evorl.sample_batch import SampleBatch
from evorl.serving.batched_inference import ActionRequest, BatchedInference
from evorl.workflows.workflow import Workflow
from tests.support.small_workflows import small

CONTINUOUS = {"obs_space": {"shape": [3]}, "action_space": {"shape": [2], "low": -2.0, "high": 1.0}}
PICTURE = {"shape": [8, 6], "dtype": "uint8", "low": 0, "high": 255}
DISCRETE = {"obs_space": {"shape": [3]}, "action_space": {"n": 4}}


def remote(algorithm: str, spaces: dict[str, Any], changes: dict[str, Any] | None = None, **options: Any) -> Workflow:
    """Create a small workflow for remote simulators; ``options`` configure its environment."""
    return small(algorithm, {"library": "remote", "name": "simulator", **spaces, **options}, **(changes or {}))


class Outcome(NamedTuple):
    """Result of a step."""

    obs: np.ndarray
    reward: float
    terminated: bool
    truncated: bool


class Script:
    """Observations and rewards depend on the seed, the episode, the step and the previous action.

    Args:
        seed: seed of the observations.
        lengths: steps of its episodes, cyclic. Every other episode is truncated; the first terminates.
    """

    def __init__(self, seed: int, lengths: Sequence[int] = (4, 3, 6)) -> None:
        self.seed, self.lengths = seed, lengths
        self.episode, self.step_number = -1, 0
        self.actions: list[np.ndarray] = []

    def start(self) -> np.ndarray:
        """Return the first observation of the next episode."""
        self.episode, self.step_number = self.episode + 1, 0
        return self._obs(0.0)

    def step(self, action: Any) -> Outcome:
        """Return the outcome of an action."""
        self.actions.append(np.asarray(action))
        self.step_number += 1
        total = float(np.asarray(action, np.float64).sum())
        over = self.step_number == self.lengths[self.episode % len(self.lengths)]
        cut = self.episode % 2 == 1
        return Outcome(self._obs(total), self.step_number + 0.5 * total, over and not cut, over and cut)

    def _obs(self, total: float) -> np.ndarray:
        place = 1.7321 * self.seed + 0.9173 * self.episode + 0.31419 * self.step_number  # all different
        return np.sin(place + np.arange(3) + 0.1 * total).astype(np.float32)


class PictureScript(Script):
    """A script with gray images, ``PICTURE``, all different."""

    def _obs(self, total: float) -> np.ndarray:
        shown = np.random.default_rng([self.seed, self.episode, self.step_number])
        return shown.integers(0, 256, PICTURE["shape"], np.uint8)


class ScriptedRow(HostVectorEnv):
    """One ``Script`` as a bridge steps it."""

    num_envs = 1

    def __init__(self, script: Script, obs_space: Space, action_space: Space) -> None:
        self.script, self.obs_space, self.action_space = script, obs_space, action_space

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.script.start()[None]

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, reward, terminated, truncated = self.script.step(actions[0])
        return obs[None], np.array([reward]), np.array([terminated]), np.array([truncated]), {}

    def partial_reset(self, mask: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        return self.script.start()[None]


class Player:
    """A ``Script`` that requests actions, as a session of a server does.

    Attributes:
        sent: the received actions.
        steps: the recorded steps, a ``SampleBatch`` without leading axes for each.
    """

    def __init__(self, script: Script, session: int, slot: int, exploit: bool = False) -> None:
        self.script, self.session, self.slot, self.exploit = script, session, slot, exploit
        self.sent: list[Any] = []
        self.steps: list[SampleBatch] = []
        self.num_asked = 0
        self._outcome: Outcome | None = None  # outcome of the last action; ``None`` before an episode

    def question(self) -> ActionRequest:
        """Return the current action request."""
        starts = self._outcome is None
        now = self._outcome or Outcome(self.script.start(), 0.0, False, False)
        obs, reward, *ends = now
        return ActionRequest(self.session, self.slot, self.num_asked, obs, reward, starts, *ends, self.exploit, None)

    def hear(self, question: ActionRequest, action: Any, step: SampleBatch) -> None:
        """Apply the response to a request."""
        self.num_asked += 1
        if not question.starts:
            self.steps.append(step)
        if question.terminated or question.truncated:
            self._outcome = None
        else:
            self.sent.append(action)
            self._outcome = self.script.step(action)


def play(inference: BatchedInference, rounds: Sequence[Sequence[Player]]) -> None:
    """Let the players of each round request actions in one call."""
    for together in rounds:
        questions = [player.question() for player in together]
        answered = inference.ask(questions)
        steps = unpacked(inference, answered.steps)
        for i, (player, question) in enumerate(zip(together, questions, strict=True)):
            player.hear(question, *jax.tree.map(lambda x, i=i: x[i], (answered.actions, steps)))


def unpacked(inference: BatchedInference, arrays: Any) -> SampleBatch:
    """Return unpacked steps as NumPy arrays."""
    treedef = jax.tree.structure(inference.step_template)
    return jax.tree.map(np.asarray, jax.tree.unflatten(treedef, arrays).unpack())


def answering_for(workflow: Workflow, num_slots: int = 4, seed: int = 0) -> BatchedInference:
    """Return inference with the workflow's first policy."""
    inference = BatchedInference(workflow, num_slots, records=True)
    inference.publish(first_policy(workflow, seed))
    return inference


@functools.lru_cache(maxsize=16)
def first_policy(workflow: Workflow, seed: int = 0) -> Acting:
    """Return the acting state of an untrained agent."""
    return jax.jit(workflow.acting)(workflow.init(seed))[0]
