"""Actions do not depend on other requests in the batch, and recorded data equal the simulators' steps."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from evorl.envs.host.bridge import HostBackedEnv
from evorl.envs.options import EnvOptions
from evorl.envs.space import Box
from evorl.sample_batch import SampleBatch
from evorl.serving import batched_inference as answering_module
from evorl.serving.batched_inference import BatchedInference, bucket_sizes
from evorl.workflows.workflow import Workflow
from tests.support.errors import raises_naming
from tests.support.scripted_simulator import (
    CONTINUOUS,
    DISCRETE,
    Player,
    Script,
    ScriptedRow,
    answering_for,
    first_policy,
    play,
    remote,
)
from tests.support.small_workflows import arrays, assert_close

GRU = {"agent": {"network": {"torso": [8], "recurrent": {"name": "gru", "size": 8}}}}
CASES: dict[str, tuple[Any, ...]] = {
    "ppo on a bounded Box": ("ppo", CONTINUOUS),
    "dqn": ("dqn", DISCRETE, {"learning_starts": 0}),
    "ppo with a GRU": ("ppo", CONTINUOUS, GRU),
}
TOLERANCE = 1e-5  # programs for more rows may round differently


@pytest.fixture(scope="module", params=CASES)
def workflow(request: pytest.FixtureRequest) -> Workflow:
    return made(request.param)


@functools.cache
def made(case: str) -> Workflow:
    return remote(*CASES[case])


def players(count: int = 4, exploit: bool = False) -> list[Player]:
    return [Player(Script(seed=i), session=10 + i, slot=(3 * i + 1) % 4, exploit=exploit) for i in range(count)]


def one_by_one(some: list[Player], rounds: int = 12) -> list[list[Player]]:
    return [[player] for _ in range(rounds) for player in some]


@pytest.mark.parametrize("exploit", [False, True], ids=["learning", "exploiting"])
def test_nobody_sees_who_else_asks(workflow: Workflow, exploit: bool) -> None:
    alone = players(exploit=exploit)[:1]
    play(answering_for(workflow), one_by_one(alone))
    crowd = players(exploit=exploit)
    # With all requests, with one more (padded from two to four rows), alone, and in another order.
    first, *others = crowd
    rounds = [crowd, [first, others[0]], [first], [others[2], first, others[1]]] * 3
    inference = answering_for(workflow)
    play(inference, rounds)
    assert len(alone[0].sent) == len(first.sent) >= 9
    np.testing.assert_allclose(np.array(first.sent), np.array(alone[0].sent), atol=TOLERANCE)
    assert_close(first.steps, alone[0].steps, TOLERANCE)


def test_sessions_and_steps_draw_numbers_of_their_own(workflow: Workflow) -> None:
    """Equal observations of two simulators, or at two steps, get different random numbers."""
    twins = [Player(Script(seed=0, lengths=(50,)), session, slot=session) for session in (0, 1)]
    play(answering_for(workflow), [twins] * 20)
    assert not np.allclose(*[np.array(twin.sent, np.float64) for twin in twins])
    assert len({np.asarray(action).tobytes() for action in twins[0].sent}) > 1


def rows_of(inference: Any) -> dict[str, np.ndarray]:
    return arrays(inference._slots.tree())


def test_rows_of_others_are_left_alone(workflow: Workflow) -> None:
    inference = answering_for(workflow)
    some = players()
    play(inference, [some] * 3)
    before = rows_of(inference)
    play(inference, [[some[0]], [some[0], some[2]]])
    after = rows_of(inference)
    touched = [some[0].slot, some[2].slot]
    quiet = [some[1].slot, some[3].slot]
    before = {path: rows.copy() for path, rows in before.items()}
    for path, rows in before.items():
        np.testing.assert_array_equal(after[path][quiet], rows[quiet], err_msg=path)
    assert any((after[path][touched] != rows[touched]).any() for path, rows in before.items())


@pytest.mark.parametrize(
    "options", [{}, {"history": 2, "reward_scale": 0.5, "observed": [0, 2]}], ids=["plain", "with wrappers"]
)
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_what_is_recorded_is_what_the_simulator_did(algorithm: str, options: dict[str, Any]) -> None:
    """Recorded steps equal the bridge's with equal episodes and actions."""
    plain = made("dqn") if algorithm == "dqn" else made("ppo on a bounded Box")
    spaces = CONTINUOUS if algorithm == "ppo" else DISCRETE
    workflow = remote(algorithm, spaces, **options) if options else plain
    asking = players(count=2)
    play(answering_for(workflow), [asking, *one_by_one(asking, 16)])
    simulators = workflow.env.simulators.main
    for player in asking:
        script = Script(player.script.seed)
        row = ScriptedRow(script, simulators.obs_space, simulators.action_space)
        bridge = HostBackedEnv(lambda _, row=row: row, EnvOptions(parallel=1, **options))
        state = bridge.reset(jax.random.key(0))
        for step in player.steps:
            obs, state = state.obs, bridge.step(state, step.actions[None])
            bridged = {"obs": obs, "rewards": state.reward, "next_obs": state.info.next_obs, "dones": state.done}
            bridged |= {name: state.info[name] for name in workflow.env_fields}
            message = {
                name: getattr(step, name) for name in ("obs", "rewards", "next_obs", "dones")
            } | step.extras.env_extras
            assert_close({name: x[None] for name, x in message.items()}, bridged, 1e-6)
        np.testing.assert_allclose(script.actions, player.sent[: len(script.actions)], atol=1e-6)
        bridge.close()
    ends = [(step.extras.env_extras.termination.item(), step.dones.item()) for step in asking[0].steps]
    assert (1, 1) in ends
    assert (0, 1) in ends
    assert (0, 0) in ends


def test_actions_are_sent_within_their_bounds(workflow: Workflow) -> None:
    """Actions are sent scaled from [-1, 1] to ``low`` and ``high``."""
    some = players()
    play(answering_for(workflow), [some] * 10)
    space = workflow.env.simulators.main.action_space
    pairs = [pair for player in some for pair in zip(player.sent, player.steps, strict=False)]
    sent, own = np.array([action for action, _ in pairs]), np.array([step.actions for _, step in pairs])
    assert len(pairs) >= 28
    assert all(bool(space.contains(action)) for action in sent)
    if isinstance(space, Box):
        np.testing.assert_allclose(sent, space.low + (own + 1) / 2 * (space.high - space.low), atol=1e-5)
    else:
        np.testing.assert_array_equal(sent, own)


def test_memory_ends_with_the_episode() -> None:
    workflow = made("ppo with a GRU")
    inference = answering_for(workflow)
    old = Player(Script(0, lengths=(3, 3)), session=0, slot=0, exploit=True)
    play(inference, [[old]] * 4)  # one episode and its end
    assert old.question().starts
    old.script.episode = -1
    play(inference, [[old]])
    new = Player(Script(0, lengths=(3, 3)), session=7, slot=2, exploit=True)
    play(inference, [[new]])
    np.testing.assert_array_equal(old.sent[-1], new.sent[0])
    play(inference, [[new], [new]])
    remembered = [step.extras.recurrent_state for step in new.steps]
    assert not np.any(jax.tree.leaves(remembered[0])[0])
    assert np.all(jax.tree.leaves(remembered[1])[0])


def test_a_session_that_takes_over_a_row_starts_anew() -> None:
    workflow = made("ppo with a GRU")
    inference = answering_for(workflow)
    first = Player(Script(3), session=0, slot=1, exploit=True)
    play(inference, [[first]] * 3)
    second, fresh = (Player(Script(5), session, slot, exploit=True) for session, slot in ((1, 1), (2, 2)))
    play(inference, [[second, fresh]] * 4)
    np.testing.assert_array_equal(second.sent, fresh.sent)
    assert_close(second.steps, fresh.steps, 0.0)


def test_greedy_answers_are_those_of_the_evaluation() -> None:
    workflow = made("ppo on a bounded Box")
    acting = first_policy(workflow)
    player = Player(Script(0), session=0, slot=0, exploit=True)
    play(answering_for(workflow), [[player]])
    keys = jax.random.split(jax.random.key(3), 1)
    seen = SampleBatch(obs=Script(0).start()[None])
    action, _ = jax.jit(workflow.agent.evaluate_actions)(acting.agent_state, seen, keys)
    space: Any = workflow.env.simulators.main.action_space
    np.testing.assert_allclose(
        player.sent[0], space.low + (np.asarray(action[0]) + 1) / 2 * (space.high - space.low), atol=1e-5
    )


def test_programs_are_compiled_before_anybody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program per batch size and mode is compiled in advance; clients and new policies add none."""
    programs: dict[Any, Any] = {}
    make = answering_module._inference_program.__wrapped__

    def noted(*key: Any) -> Any:
        if key not in programs:
            programs[key] = make(*key)
        return programs[key]

    monkeypatch.setattr(answering_module, "_inference_program", noted)
    workflow = made("dqn")
    inference = answering_for(workflow, num_slots=4)
    inference.compile_all()

    def compiled() -> dict[bool, int]:
        sizes = {greedy: [programs[key]._cache_size() for key in programs if key[4] == greedy] for greedy in (0, 1)}
        return {bool(greedy): sum(counts) for greedy, counts in sizes.items()}

    sizes = len(bucket_sizes(4))
    assert compiled() == {False: sizes, True: sizes}
    some = players()
    play(inference, [[some[0]], some[:2], some[:3], some, some[1:], *one_by_one(some, 6)])
    acting = first_policy(workflow, 1)
    inference.publish(acting)
    greedy = players(exploit=True)
    play(inference, [some, greedy, greedy[:1]])
    assert compiled() == {False: sizes, True: sizes}


def test_a_new_policy_acts_at_once() -> None:
    workflow = made("ppo on a bounded Box")
    inference = answering_for(workflow)
    old, new = (Player(Script(0), session=0, slot=0, exploit=True) for _ in range(2))
    play(inference, [[old]])
    acting = first_policy(workflow, 5)
    inference.publish(acting)
    play(inference, [[new]])
    assert not np.allclose(old.sent[0], new.sent[0])


def test_bucket_sizes_are_powers_of_four() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(2) == bucket_sizes(4) == [1, 4]
    assert bucket_sizes(64) == [1, 4, 16, 64]


def test_nothing_is_recorded_where_nobody_learns() -> None:
    workflow = made("dqn")
    inference = BatchedInference(workflow, 2, records=False)
    with raises_naming(RuntimeError, "publish"):
        inference.ask([Player(Script(0), 0, 0).question()])
    inference.publish(first_policy(workflow))
    answered = inference.ask([Player(Script(0), 0, 0).question()])
    assert answered.steps is None
    assert inference.step_template is None
    assert answered.actions.shape == (1,)
