"""One session: the response to each message, and the data that reaches the agent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evorl.envs.space import Box, Discrete, Space
from evorl.serving.batched_inference import ActionRequest
from evorl.serving.session import COMMANDS, Refused, Session, SessionError, reward_from
from tests.support.errors import assert_names, missing_parts, raises_naming
from tests.support.odd_values import ODD, label

OBS = [0.5, -0.5]
TOKEN = "a good long token"


class FakeHost:
    """Host that records calls and responds when the test requests it."""

    def __init__(self, obs_space: Space | None = None, token: str | None = None, room: int = 3) -> None:
        self.obs_space = obs_space or Box(-1.0, 1.0, (2,))
        self.action_space, self.token = Discrete(3), token
        self.room, self.entered = room, 0
        self.questions: list[ActionRequest] = []
        self.events: list[Any] = []
        self.metrics: list[Any] = []

    def enter(self, exploit: bool) -> tuple[int, int]:
        if self.entered == self.room:
            raise Refused("no room")
        self.entered += 1
        return 100 + self.entered, self.entered

    def leave(self, number: int, slot: int) -> None:
        self.events.append(("leave", number, slot))

    def cut(self, number: int) -> None:
        self.events.append(("cut", number))

    def ask(self, question: ActionRequest) -> None:
        self.questions.append(question)

    def episode(self, number: int, exploit: bool, episode_return: float, length: int) -> None:
        self.events.append(("episode", exploit, episode_return, length))

    def store_metric(self, *metric: Any) -> None:
        self.metrics.append(metric)


class Talk:
    """A session and its replies."""

    def __init__(self, host: FakeHost | None = None, begun: bool = True, **settings: Any) -> None:
        self.host = host or FakeHost()
        self.replies: list[dict[str, Any]] = []
        self.session = Session(self.host, self.replies.append, **settings)
        if begun:
            assert self.say("init") == {"response": "ready"}

    def say(self, command: Any, **more: Any) -> dict[str, Any] | None:
        """Send a message; return the reply, or ``None`` without a reply so far."""
        before = len(self.replies)
        self.session.receive({"command": command, **more})
        assert len(self.replies) <= before + 1
        return self.replies[-1] if len(self.replies) > before else None

    def update(self, reward: Any = None, state: Any = OBS, action: Any = 1, **more: Any) -> dict[str, Any] | None:
        """Send an update and answer its action request, if any, immediately."""
        before = len(self.host.questions)
        reply = self.say("update", reward=reward, state=state, **more)
        answer = self.host.questions[-1].answer if len(self.host.questions) > before else None
        if answer is None:
            return reply
        assert reply is None
        answer(action)
        return self.replies[-1]

    def error(self, command: Any, **more: Any) -> str:
        reply = self.say(command, **more)
        assert reply is not None
        assert reply["response"] == "error"
        return reply["message"]


def test_an_episode_from_its_start_to_its_end() -> None:
    talk = Talk()
    assert talk.update(action=2) == {"response": "action", "data": 2}
    assert talk.update(1.5, action=0) == {"response": "action", "data": 0}
    assert talk.update(2.0, terminal=True) == {"response": "action", "data": None}
    assert talk.update(action=1) == {"response": "action", "data": 1}
    first, second, last, next_first = talk.host.questions
    assert (first.session, first.slot, first.step, first.reward) == (101, 1, 0, 0.0)
    assert [question.step for question in talk.host.questions] == [0, 1, 2, 3]
    assert [question.starts for question in talk.host.questions] == [True, False, False, True]
    assert [question.reward for question in talk.host.questions] == [0.0, 1.5, 2.0, 0.0]
    assert [question.terminated for question in talk.host.questions] == [False, False, True, False]
    assert not any(question.truncated for question in talk.host.questions)
    assert last.answer is None
    np.testing.assert_array_equal(second.obs, np.array(OBS, np.float32))
    assert next_first.starts
    assert talk.host.events == [("episode", False, 3.5, 2)]


@pytest.mark.parametrize("more", [{"terminal": True, "truncated": True}, {"truncated": True}], ids=["both", "alone"])
def test_an_episode_that_is_cut_by_time(more: dict[str, bool]) -> None:
    talk = Talk()
    talk.update()
    assert talk.update(1, state=[0.0, 0.25], **more) == {"response": "action", "data": None}
    last = talk.host.questions[-1]
    assert (last.terminated, last.truncated) == (False, True)
    np.testing.assert_array_equal(last.obs, np.array([0.0, 0.25], np.float32))


def test_the_end_of_a_task_needs_no_state_and_a_cut_does() -> None:
    talk = Talk()
    talk.update(state=[0.1, 0.2])
    assert "state is missing" in talk.error("update", reward=1, terminal=True, truncated=True)
    assert "an update needs it" in talk.error("update", reward=1)
    assert talk.update(1, state=None, terminal=True) == {"response": "action", "data": None}
    np.testing.assert_array_equal(talk.host.questions[-1].obs, np.array([0.1, 0.2], np.float32))
    assert len(talk.host.questions) == 2


def test_an_episode_that_is_over_before_it_began_is_none() -> None:
    talk = Talk()
    assert talk.update(terminal=True) == {"response": "action", "data": None}
    assert talk.update(None, state=None, terminal=True) == {"response": "action", "data": None}
    assert talk.host.questions == []
    assert talk.host.events == []


def test_a_reset_breaks_the_episode_off() -> None:
    talk = Talk()
    assert talk.say("reset") == {"response": "done"}
    assert talk.host.events == []  # no episode had started
    talk.update()
    talk.update(1.0)
    assert talk.say("reset") == {"response": "done"}
    assert talk.host.events == [("cut", 101)]
    talk.update()
    assert talk.host.questions[-1].starts
    talk.update(5.0, terminal=True)
    assert talk.host.events[-1] == ("episode", False, 5.0, 1)  # only the later steps


def test_another_init_is_another_session() -> None:
    talk = Talk()
    talk.update()
    assert talk.say("init", exploit=True) == {"response": "ready"}
    assert talk.host.events == [("leave", 101, 1)]
    talk.update()
    question = talk.host.questions[-1]
    assert (question.session, question.slot, question.step) == (102, 2, 0)
    assert question.starts
    assert question.exploit
    talk.update(1, terminal=True)
    assert talk.host.events[-1] == ("episode", True, 1.0, 1)


def test_what_comes_before_its_time_is_refused_and_the_conversation_goes_on() -> None:
    talk = Talk(begun=False)
    assert not talk.session.has_begun
    for command in ("update", "reset"):
        assert talk.error(command) == f"received {command} before init: send init first."
    talk.say("init")
    assert talk.session.has_begun
    assert talk.say("update", state=OBS) is None
    assert talk.session.is_waiting
    for command in ("update", "reset", "init"):
        message = talk.error(command, state=OBS)
        assert message == f"received {command} before the response to the last update: wait for the action."
    answer = talk.host.questions[-1].answer
    assert answer is not None
    answer(2)
    assert talk.replies[-1] == {"response": "action", "data": 2}
    assert talk.update(1.0) == {"response": "action", "data": 1}
    assert [question.reward for question in talk.host.questions] == [0.0, 1.0]


def test_unknown_commands_and_values_in_words() -> None:
    talk = Talk()
    assert_names(talk.error(None), "command", "init, update", "got none")
    assert "upd" in talk.error("upd")
    assert all(name in talk.error("fly") for name in COMMANDS)
    assert "__init__" in talk.error("__init__")
    for command in (["init"], np.array(["init", "update"]), np.zeros(3), {"init": 1}, 5, b"init"):
        assert_names(talk.error(command), "command", f"got {type(command).__name__}")
    assert talk.error("init", exploit=1) == "exploit must be true or false, got 1."
    assert talk.error("update", state=OBS, terminal="yes") == "terminal must be true or false, got 'yes'."
    assert talk.error("update", state=OBS, truncated=0) == "truncated must be true or false, got 0."
    assert "shape [2], got [3]" in talk.error("update", state=[1.0, 2.0, 3.0])
    assert "not finite" in talk.error("update", state=[math.nan, 0.0])
    assert "must contain numbers" in talk.error("update", state=["a", "b"])
    assert talk.host.questions == []


@pytest.mark.parametrize("reward", [1, 1.0, [1], [1.0], np.float32(1), np.int64(1)], ids=repr)
def test_rewards_in_all_their_forms(reward: Any) -> None:
    talk = Talk()
    talk.update()
    talk.update(reward)
    assert talk.host.questions[-1].reward == 1.0


@pytest.mark.parametrize(
    ("reward", "parts"),
    [
        (None, ("reward", "missing")),
        (math.nan, ("1e+15", "got nan")),
        (-math.inf, ("1e+15", "got -inf")),
        (1e39, ("finite", "got 1e+39")),
        (10**400, ("finite", "got 1000")),
        (True, ("number", "got bool")),
        ("1", ("number", "got str")),
        ([1.0, 2.0], ("number", "got list")),
        ([], ("number", "got list")),
        ([None], ("reward", "missing")),
    ],
    ids=["none", "nan", "inf", "float64", "vast", "bool", "text", "two", "empty", "list of none"],
)
def test_rewards_that_are_none(reward: Any, parts: tuple[str, ...]) -> None:
    talk = Talk()
    talk.update()
    assert not missing_parts(talk.error("update", state=OBS, reward=reward), *parts)
    with raises_naming(SessionError, "x "):
        reward_from(reward, "x")
    assert talk.update(1.0) == {"response": "action", "data": 1}  # the same step in valid form
    assert talk.host.questions[-1].step == 1


@pytest.mark.parametrize("value", ODD, ids=label)
@pytest.mark.parametrize(
    ("command", "name"),
    [
        *(("init", name) for name in ("exploit", "obs_space", "action_space", "token")),
        *(("update", name) for name in ("reward", "state", "terminal", "truncated")),
        *(("update_metrics", name) for name in ("name", "y", "x", "method", "data")),
        ("reset", "command"),
    ],
)
def test_any_value_of_any_field_is_answered(command: str, name: str, value: Any) -> None:
    """Any value in any field is answered, and the session continues with finite numbers."""
    talk = Talk()
    talk.update()
    usual = {"update": {"reward": 1.0, "state": OBS}, "update_metrics": {"name": "a", "y": 1.0}}.get(command, {})
    before, num_questions = len(talk.replies), len(talk.host.questions)
    talk.session.receive({"command": command, **usual, name: value})
    for question in talk.host.questions[num_questions:]:
        if question.answer is not None:
            question.answer(1)
    assert len(talk.replies) > before
    if talk.replies[-1]["response"] == "error":
        assert len(talk.replies[-1]["message"]) < 1000
    for question in talk.host.questions:
        with np.errstate(over="raise"):
            assert np.isfinite(np.square(np.float32(question.reward)))
            assert np.isfinite(np.square(question.obs)).all()


def test_a_bandit_shows_nothing() -> None:
    talk = Talk(FakeHost(obs_space=Box(1.0, 1.0, (1,))))
    talk.update(state=[])
    talk.update(1, state=np.zeros((0,)))
    for question in talk.host.questions:
        np.testing.assert_array_equal(question.obs, np.ones(1, np.float32))


def test_metrics_alone_and_in_lists() -> None:
    talk = Talk()
    assert talk.say("update_metrics", name="score", y=3, x=7) == {"response": "done"}
    several = [{"method": "scalar", "name": "a", "y": 1.5}, {"method": "histogram", "name": "b", "y": [1, 2], "x": 4.0}]
    assert talk.say("update_metrics", data=several) == {"response": "done"}
    assert talk.host.metrics == [
        ("scalar", "score", 3, 7.0),
        ("scalar", "a", 1.5, None),
        ("histogram", "b", [1, 2], 4.0),
    ]


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ({}, ("name", "value y")),
        ({"name": "a"}, ("name", "value y")),
        ({"data": [{"name": 3, "y": 1}]}, ("name", "value y")),
        ({"data": "a"}, ("data", "list", "1000")),
        ({"data": [{"name": "a", "y": 1}] * 1001}, ("data", "list", "1000")),
        ({"name": "a", "y": 1, "x": "now"}, ("x must", "number")),
    ],
)
def test_metrics_that_are_none(message: dict[str, Any], parts: tuple[str, ...]) -> None:
    talk = Talk()
    assert not missing_parts(talk.error("update_metrics", **message), *parts)
    assert talk.host.metrics == []


class TestToken:
    @pytest.mark.parametrize(
        ("given", "got"), [({}, "no token"), *[({"token": other}, "another token") for other in ("x", 5, "\ud800")]]
    )
    def test_who_has_it_not_is_refused(self, given: dict[str, Any], got: str) -> None:
        talk = Talk(FakeHost(token=TOKEN), begun=False)
        with pytest.raises(Refused):
            talk.say("init", **given)
        message = talk.replies[-1]["message"]
        assert "init" in message
        assert got in message
        assert TOKEN not in str(talk.replies)
        assert talk.host.entered == 0

    @pytest.mark.parametrize("command", ["update", "reset", "update_metrics"])
    def test_nothing_is_said_before_it(self, command: str) -> None:
        talk = Talk(FakeHost(token=TOKEN), begun=False)
        with raises_naming(Refused, "first message", "init"):
            talk.say(command, name="a", y=1, state=OBS)
        assert talk.host.metrics == []

    def test_who_has_it_may_begin(self) -> None:
        talk = Talk(FakeHost(token=TOKEN), begun=False)
        assert talk.say("init", token=TOKEN) == {"response": "ready"}
        assert talk.say("init") == {"response": "ready"}  # declaring the spaces once is enough

    def test_a_connection_may_have_shown_it_before(self) -> None:
        talk = Talk(FakeHost(token=TOKEN), begun=False, trusted=True)
        assert talk.say("init") == {"response": "ready"}


def test_no_room_ends_the_conversation() -> None:
    host = FakeHost(room=1)
    Talk(host)
    other = Talk(host, begun=False)
    with raises_naming(Refused, "no room"):
        other.say("init")
    assert other.replies == [{"response": "error", "message": "no room"}]


def test_who_is_gone_is_told_nothing() -> None:
    talk = Talk()
    talk.say("update", state=OBS)
    talk.session.close()
    talk.session.close()
    assert talk.host.events == [("leave", 101, 1)]
    answer = talk.host.questions[-1].answer
    assert answer is not None
    answer(1)
    assert talk.replies == [{"response": "ready"}]
