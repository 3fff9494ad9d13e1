"""Contract of all workflows. The test of an algorithm provides its smallest config and inherits the rest.

The contract checks the programs that users run, compiled once per class: with the user's flags for the first workflow
of a family, with faster compilation elsewhere (see ``tests/support/compilation.py``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.execution import programs, training_loop
from evorl.execution.compile_clock import CompileClock
from evorl.execution.env_faults import ENV_FAULTS
from evorl.execution.session import TrainingDiverged
from evorl.execution.trainable import most_timesteps
from evorl.types import PyTreeDict, State
from evorl.workflows.workflow import Workflow
from tests.conformance.dtypes import DtypeContract
from tests.conformance.seeds import SeedContract
from tests.support.compilation import compiled_names, compiled_to_run_long
from tests.support.errors import raises_naming
from tests.support.key_record import KeyRecord
from tests.support.small_workflows import EPISODE_STEPS, arrays, assert_close, assert_identical, static_fractions
from tests.support.training_runs import SEED, Interrupted, Shelf, resume_in, run_in, save_in, side_by_side, stop_after

NUM_ITERATIONS, ROWS, EVALUATIONS, CHECKPOINTS = 12, 3, 6, 2  # most checkpoints fall between rows
STEP_TOLERANCE, TOLERANCE = 1e-5, 1e-4  # after one iteration and after five: programs round differently
NUM_SEEDS, NUM_DEVICES = 3, 4  # not divisible: devices share the environments of each seed
TOGETHER = {"num_seeds": NUM_SEEDS, "devices": NUM_DEVICES}


class WorkflowContract(SeedContract, DtypeContract):
    """Inherit as ``Test...`` and set ``workflow`` and ``SMALL``; override other attributes where defaults
    do not fit.
    """

    workflow: ClassVar[type[Workflow]]
    SMALL: ClassVar[Mapping[str, Any]]  # the smallest config that uses every part of the algorithm
    env: ClassVar[str] = "Pendulum-v1"
    # True: compile as for users, and also test several devices with one seed. Set for base workflows of others.
    # (Options on several devices without seeds: ``tests/workflows/test_device_exactness.py``.)
    as_for_users: ClassVar[bool] = False
    # A similar environment whose episodes, of this length, do not end within two iterations. Ignored where a generation
    # consists of whole episodes.
    endless_env: ClassVar[tuple[str, int]] = ("Pendulum-v1", 100)
    # Fraction fields that change the program.
    shaping: ClassVar[frozenset[str]] = frozenset({"updates_per_iteration", "improved_share", "gradient_share"})
    # True if an evaluation plays the same episodes with several policies, with equal random numbers.
    evaluates_by_common_numbers: ClassVar[bool] = False

    @classmethod
    def make(cls, env: str | Mapping[str, Any] | None = None, **changes: Any) -> Workflow:
        """Build the small workflow with some config entries changed."""
        env = env or {"name": cls.env, "max_episode_steps": EPISODE_STEPS}
        return cls.workflow.build_from_config({**cls.SMALL, "env": env, **changes})

    @classmethod
    def make_run(cls, **changes: Any) -> Workflow:
        """Build a training run of ``NUM_ITERATIONS`` with rows, evaluations and checkpoints."""
        small = cls.make()
        unit = most_timesteps(small)  # no episode ends before its time limit
        intervals = {
            "log_interval": ROWS * unit,
            "eval_interval": EVALUATIONS * unit,
            "checkpoint_interval": CHECKPOINTS * unit,
        }
        return cls.make(**{**intervals, "total_timesteps": NUM_ITERATIONS * unit, **changes})

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def nothing_compiled(cls) -> Iterator[None]:
        """Clear programs that earlier tests compiled."""
        in_order, side_by_side = map(programs.training_program, (True, False))
        for program in (programs._init_program(), in_order, side_by_side, programs.evaluate_program):
            program.clear_cache()
        with compiled_to_run_long() if cls.as_for_users else contextlib.nullcontext():
            yield

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, nothing_compiled: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[State, bytes, list[str]]:
        """Return the results of ``run_whole``."""
        return cls.run_whole(tmp_path_factory.mktemp("whole"))

    @classmethod
    def run_whole(cls, folder: Path) -> tuple[State, bytes, list[str]]:
        """Return the last state and the table of an uninterrupted run, and the names of its compiled programs."""
        workflow = cls.make_run()
        with compiled_names() as names:
            state = run_in(folder, workflow)
        return state, (folder / "metrics.csv").read_bytes(), names

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, nothing_compiled: None) -> dict[int, tuple[dict[str, Any], State]]:
        """Return the results of ``run_alone``."""
        return cls.run_alone()

    @classmethod
    def run_alone(cls) -> dict[int, tuple[dict[str, Any], State]]:
        """Return ``trained`` of each seed, trained alone on one device."""
        return {seed: cls.trained(cls.make_run(), seed) for seed in range(SEED, SEED + NUM_SEEDS)}

    @staticmethod
    def trained(workflow: Workflow, seed: int) -> tuple[dict[str, Any], State]:
        """Return the results of the first iteration by path, and the state after five."""
        metrics, state = programs.iterate_program(workflow, workflow.init(seed), 1)
        first = arrays({"metrics": jax.tree.map(lambda x: x[0], metrics), "state": state})
        _, state = programs.iterate_program(workflow, state, 4)
        return first, state

    def test_programs_are_compiled_once(self, whole: tuple) -> None:
        """Programs compile once for all chunk lengths, with rows, evaluations and checkpoints in between."""
        _, table, names = whole
        assert [row.split(b",")[0] for row in table.splitlines()] == [b"iterations", b"3", b"6", b"9", b"12"]
        for program in ("_initial_state", "iterations_on_mesh", "evaluate_program"):
            assert names.count(f"jit({program})") == 1

    def test_a_step_keeps_the_types_of_the_state(self) -> None:
        """A step returns the state with the same structure, shapes and dtypes, weak types included."""
        workflow = self.make_run()
        before = programs.state_shapes(workflow, jax.random.key(0))
        metrics, after = jax.eval_shape(programs._traced_once, workflow, before)
        assert jax.tree.structure(after) == jax.tree.structure(before)
        for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
        assert {x.shape for name, x in metrics.items() if name not in ("episodes", ENV_FAULTS)} <= {()}

    def test_other_numbers_compile_nothing(self, whole: tuple) -> None:
        """Changing every number of the workflow, its agent and its optimizers compiles nothing."""
        first = self.make_run()
        self.use_everything(first)
        # Boolean flags, such as logarithmic scales of a search, are unchanged.
        other = jax.tree.map(lambda x: x * 0.9 if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x, first)
        clock = CompileClock()
        self.use_everything(other)
        assert clock.num_programs == 0

    def test_numbers_are_data(self) -> None:
        """A field for a fraction is a leaf unless it changes the program."""
        assert static_fractions(self.make()) <= self.shaping

    @staticmethod
    def use_everything(workflow: Workflow) -> None:
        """Run each program of a training run."""
        state = workflow.init(SEED)
        workflow.evaluate(state)
        jax.block_until_ready(programs.iterate_program(workflow, state, 2))

    def test_the_state_is_donated(self, whole: tuple) -> None:
        """Training donates the whole state."""
        workflow = self.make_run()
        state = workflow.init(SEED)
        programs.iterate_program(workflow, state, 1)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))

    def test_evaluation_changes_nothing_else(self, whole: tuple) -> None:
        workflow = self.make_run().replace(eval_interval=0.0)
        assert_identical(workflow.learn(workflow.init(SEED)), whole[0])

    def test_evaluation_reads_only(self, whole: tuple) -> None:
        workflow = self.make_run()
        state = whole[0]
        before = arrays(state)
        first, second = workflow.evaluate(state), workflow.evaluate(state)
        assert_identical(first, second)
        assert_identical(before, arrays(state))
        assert np.isfinite(first.episode_return).all()
        assert first.episode_return_std >= 0.0

    @pytest.mark.parametrize("num_chunks", [1, 7])
    def test_stopped_and_resumed(
        self, whole: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_chunks: int
    ) -> None:
        """A run stopped between rows or checkpoints resumes to the same state and table, bit for bit."""
        with monkeypatch.context() as context:
            context.setattr(training_loop, "SECONDS_PER_CHUNK", 0.0)  # one iteration per chunk
            run_in(tmp_path, self.make_run(), should_stop=stop_after(num_chunks))
        stopped_at, state = resume_in(tmp_path, self.make_run())
        assert stopped_at == num_chunks
        assert_identical(state, whole[0])
        assert (tmp_path / "metrics.csv").read_bytes() == whole[1]

    def test_killed_and_resumed(self, whole: tuple, tmp_path: Path) -> None:
        """A run killed after a row that is newer than its last checkpoint resumes to the same state and table."""
        with pytest.raises(Interrupted):
            run_in(tmp_path, self.make_run(), killed_at=9)
        stopped_at, state = resume_in(tmp_path, self.make_run())
        assert 0 < stopped_at < 9
        assert_identical(state, whole[0])
        assert (tmp_path / "metrics.csv").read_bytes() == whole[1]

    def test_neither_devices_nor_seeds_show(self, alone: dict) -> None:
        """Setup, first iteration and learned parameters do not depend on devices or seeds."""
        self.check_together(alone)
        if self.as_for_users:
            self.check_wide(alone)
        self.check_that_it_learns(alone[SEED][1])

    @classmethod
    def check_together(cls, alone: dict) -> None:
        """Assert that seeds trained together, sharded over devices, equal each seed alone on one device."""
        together = cls.make_run(**TOGETHER)
        assert together.execution.num_devices == NUM_DEVICES
        first, states = cls.trained(together, SEED)
        assert cls.devices_of(states) == {NUM_DEVICES}
        for i in range(NUM_SEEDS):
            expected_first, expected = alone[SEED + i]
            own = {path: x if cls.is_shared(path) else x[i] for path, x in first.items()}
            assert_close(own, expected_first, STEP_TOLERANCE)
            assert_close(cls.learned(states, i), cls.learned(expected), TOLERANCE)
            assert_identical(states.key[i], expected.key)
            assert_identical(states.iterations, expected.iterations)

    @classmethod
    def check_wide(cls, alone: dict) -> None:
        """Assert that one seed sharded over devices equals the same seed on one device."""
        wide = cls.make_run(devices=NUM_DEVICES)
        assert wide.execution.num_devices == NUM_DEVICES
        first, state = cls.trained(wide, SEED)
        expected_first, expected = alone[SEED]
        assert cls.devices_of(state) == {NUM_DEVICES}
        assert_close(first, expected_first, STEP_TOLERANCE)
        assert_close(cls.learned(state), cls.learned(expected), TOLERANCE)
        assert_identical(state.iterations, expected.iterations)

    @staticmethod
    def devices_of(state: State) -> set[int]:
        """Return the numbers of devices that hold the leaves."""
        return {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state)}

    def test_resumed_on_more_devices(self, whole: tuple, tmp_path: Path) -> None:
        """A run of one device resumes on several devices, with several seeds and with one."""
        workflow, expected = self.make_run(), self.learned(whole[0])
        states = [programs.iterate_program(workflow, workflow.init(SEED + i), 1)[1] for i in range(NUM_SEEDS)]
        resumed = [(0, resume_in(save_in(tmp_path / "seeds", side_by_side(states)), self.make_run(**TOGETHER))[1])]
        if self.as_for_users:
            run_in(tmp_path, workflow, should_stop=stop_after(1))
            resumed.append((None, resume_in(tmp_path, self.make_run(devices=NUM_DEVICES))[1]))
        for seed, state in resumed:
            assert self.devices_of(state) == {NUM_DEVICES}
            assert_identical(state.iterations, whole[0].iterations)
            assert_close(self.learned(state, seed), expected, TOLERANCE)

    @staticmethod
    def is_shared(path: str) -> bool:
        """Return True for an entry without seed axis, equal for all seeds."""
        return path.startswith("['state']['iterations']")

    @staticmethod
    def learned(state: State, seed: int | None = None) -> dict[str, Any]:
        """Return all parameters of a state, or of one of its seeds, by path."""
        found = {path: x for path, x in arrays(state).items() if "params" in path}
        assert found
        return found if seed is None else {path: x[seed] for path, x in found.items()}

    def check_that_it_learns(self, after: State) -> None:
        """Assert that parameters change by more than the rounding tolerance."""
        before, after = self.learned(self.make_run().init(SEED)), self.learned(after)
        assert any(np.abs(after[path] - before[path]).max() > 10 * TOLERANCE for path in before)

    def test_no_key_is_used_twice(self) -> None:
        """No key is used twice in setup, evaluations and steps, up to the first end of an episode."""
        name, num_steps = self.endless_env
        workflow = self.make({"name": name, "max_episode_steps": num_steps})
        evaluated = workflow.replace(eval_env=self.make({"name": name, "max_episode_steps": 2}).eval_env)
        record, again = KeyRecord(), KeyRecord()
        evaluations = KeyRecord() if self.evaluates_by_common_numbers else record
        record.follow(
            functools.partial(self.two_iterations, workflow, evaluated),
            jax.random.key(0),
            elsewhere={"an_evaluation": evaluations, "asking_again": again},
        )
        assert sum(record.consumed.values()) > 20
        assert sum(record.folded.values()) > 20
        assert record.misused(but_for=again) == []
        if evaluations is not record:
            assert not set(evaluations.consumed) & set(record.consumed)

    @staticmethod
    def two_iterations(workflow: Workflow, evaluated: Workflow, key: jax.Array) -> Any:
        """Run setup and two iterations, each after an evaluation."""

        @jax.jit
        def an_evaluation(state: State) -> PyTreeDict:
            return evaluated.evaluation(state)

        @jax.jit
        def asking_again(state: State) -> Any:  # noise is not stored, but generated again in tell
            if "emitter_state" in state:
                return workflow.emitter.ask(state.emitter_state, workflow.pop_size)
            return workflow.optimizer.ask(state.ec_state) if "ec_state" in state else None

        def iteration(state: State, _: None) -> tuple[State, Any]:
            metrics, after = workflow.pure_step(state)
            return after, (an_evaluation(state), asking_again(state), metrics)

        return jax.lax.scan(iteration, workflow.setup(key), length=2)

    def test_nan_ends_it_and_the_last_good_checkpoint_stays(
        self, whole: tuple, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(training_loop, "SECONDS_PER_CHUNK", 0.0)
        workflow, shelf = self.make_run().replace(checkpoint_interval=1.0, eval_interval=0.0), Shelf()
        state = workflow.learn(workflow.init(SEED), checkpointer=shelf, should_stop=stop_after(8))
        assert shelf.saved[-1] == (8, None)
        with raises_naming(TrainingDiverged, "nan", "iteration 9", "checkpoint"):
            workflow.learn(self.poisoned(state), checkpointer=shelf, progress=shelf.progress)
        assert shelf.saved[-1] == (8, None)

    @classmethod
    def poisoned(cls, state: State) -> State:
        """Return a state in which every learned array is NaN."""

        def poison(path: Any, leaf: jax.Array) -> jax.Array:
            is_learned = any(name in jax.tree_util.keystr(path) for name in ("params", "ec_state", "archive"))
            return jnp.full_like(leaf, jnp.nan) if is_learned and leaf.dtype == jnp.float32 else leaf

        return jax.tree_util.tree_map_with_path(poison, state)

    def test_misspelt_keys_are_refused_in_words(self) -> None:
        for key in self.SMALL:
            wrong = key[:-1] + ("q" if key[-1] != "q" else "z")
            config = {**{k: v for k, v in self.SMALL.items() if k != key}, wrong: self.SMALL[key], "env": self.env}
            with raises_naming(ValueError, key) as raised:
                self.workflow.build_from_config(config)
            assert f"'{wrong}'" in str(raised.value) or "missing" in str(raised.value)

    def test_values_that_cannot_be_are_refused_in_words(self) -> None:
        for key, value in self.SMALL.items():
            if isinstance(value, int | float):
                with raises_naming(ValueError, key, "'many'"):
                    self.make(**{key: "many"})
        for key, value in {"total_timesteps": -1, "eval_episodes": 0, "num_seeds": 0, "devices": -1}.items():
            with raises_naming(ValueError, key, f"got {value}"):
                self.make(**{key: value})
