"""Optuna study of a hyperparameter search: stores the trials and proposes the next one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evorl.config.names import explain_missing_package
from evorl.runs.files import RunFolderError, refuse_link

_NAME = "search"
_FAILURE, _PRUNED = "failure", "pruned"


@dataclasses.dataclass(frozen=True)
class Trial:
    """Trial of a study: one setting and its result.

    Attributes:
        number: number of the trial, from 0.
        setting: value for each path in the config.
        value: result of the trial, to be maximized, or the last evaluation of a pruned trial; ``None`` while it runs,
            or if it failed.
        state: ``running``, ``finished``, ``pruned`` or ``failed``.
        failure: error message of a failed trial; empty otherwise.
    """

    number: int
    setting: Mapping[str, Any]
    value: float | None
    state: str
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Pruner:
    """Settings of an Optuna pruner, which compares evaluations with those at the same step in earlier trials.

    Attributes:
        name: ``median``: ends trials below the median of earlier ones (Golovin et al. 2017), after five complete
            trials; ``hyperband``: successive halving in brackets of several lengths (Li et al. 2018).
        interval: environment steps between comparisons, the smallest length of a trial. The steps of evaluations
            depend on the iterations of a trial, so they are rounded to multiples of the interval.
        total: environment steps of a complete trial.
    """

    name: str
    interval: int
    total: int


class OptunaStudy:
    """Study that maximizes the result of trials; a journal file stores their starts, evaluations and results.

    Args:
        path: Optuna journal, also readable with Optuna's tools; created if it does not exist.
        over: a list of values, or a range ``{low, high, scale}``, for each dotted path in the config. If its ends have
            the type int, integers are drawn.
        seed: seed of the sampler, a tree-structured Parzen estimator (Bergstra et al. 2011). The sampler of each trial
            has a separate seed, so a resumed search proposes the same settings as an uninterrupted one.
        pruner: ends unpromising trials; ``None`` ends none.

    Raises:
        ImportError: Optuna is not installed.
        RunFolderError: the journal is corrupted, or a symbolic link.
    """

    def __init__(self, path: Path, over: Mapping[str, Any], seed: int, pruner: Pruner | None = None) -> None:
        with explain_missing_package("Searches", "optuna"):
            import optuna
            from optuna.storages.journal import JournalFileBackend
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        _mend_journal(path)
        self._optuna, self._seed, self._pruner = optuna, seed, pruner
        try:
            self._study = optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
                study_name=_NAME,
                direction="maximize",
                load_if_exists=True,
                pruner=_make_pruner(optuna.pruners, pruner),
            )
            if self._study.direction.name != "MAXIMIZE":
                raise ValueError(f"its direction is {self._study.direction.name}")
            for trial in self._study.get_trials(deepcopy=False):
                float(trial.value or 0.0)
                if not all(isinstance(name, str) for name in trial.params):
                    raise ValueError(f"trial {trial.number} has a parameter without a name")
        except Exception as error:  # Optuna raises various exceptions on corrupted lines
            raise RunFolderError(
                f"{path}, the journal, is corrupted ({type(error).__name__}: {str(error)[:200]}): start a new search."
            ) from error
        self._space = {path: self._distribution(values) for path, values in over.items()}
        for trial in self._study.get_trials(deepcopy=False):
            if not trial.state.is_finished() and set(trial.params) < set(self._space):  # killed during sampling
                self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def _distribution(self, values: Any) -> Any:
        distributions = self._optuna.distributions
        if isinstance(values, Mapping):
            kind = distributions.IntDistribution if isinstance(values["low"], int) else distributions.FloatDistribution
            return kind(values["low"], values["high"], log=values["scale"] == "log")
        return distributions.CategoricalDistribution([*values])

    @property
    def trials(self) -> list[Trial]:
        """Started trials in order; a trial is missing if its process was killed before the setting was complete."""
        states = self._optuna.trial.TrialState
        names = {states.COMPLETE: "finished", states.FAIL: "failed", states.PRUNED: "pruned"}
        failures = self._study.user_attrs
        return [
            Trial(
                trial.number,
                dict(trial.params),
                trial.value,
                names.get(trial.state, "running"),
                str(failures.get(f"{_FAILURE}_{trial.number}", "")),
            )
            for trial in self._study.get_trials(deepcopy=False)
            if set(trial.params) >= set(self._space)
        ]

    def next_trial(self) -> Trial:
        """Return the unfinished trial if there is one, else start a new trial."""
        if running := [trial for trial in self.trials if trial.state == "running"]:
            return running[0]
        self._study.sampler = self._optuna.samplers.TPESampler(seed=(self._seed + len(self.trials)) % 2**32)
        trial = self._study.ask(self._space)
        return Trial(trial.number, dict(trial.params), None, "running")

    def report(self, trial: Trial, timesteps: int, score: float) -> bool:
        """Store an evaluation of the running trial; return True if the pruner ends the trial.

        A resumed trial repeats the evaluations after its checkpoint. They are not stored again, and pruning is final.
        """
        decision = f"{_PRUNED}_{trial.number}"
        if timesteps >= self._study.user_attrs.get(decision, math.inf):
            return True
        stored = self._study.get_trials(deepcopy=False)[trial.number]
        running = self._optuna.trial.Trial(self._study, stored._trial_id)
        scores, step, gap = stored.intermediate_values, timesteps, ()
        if self._pruner is not None:  # Optuna compares scores of the same step only
            interval = self._pruner.interval
            step = round(timesteps / interval) * interval
            gap = range(max(scores, default=step) + interval, step, interval)
        if step not in scores:
            for earlier in gap:
                running.report(scores[max(scores)], earlier)
            running.report(score, step)
        if not running.should_prune():
            return False
        self._study.set_user_attr(decision, timesteps)
        return True

    def prune(self, trial: Trial) -> None:
        """Store a trial as pruned; its value is its last evaluation."""
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)

    def end(self, trial: Trial, value: float | None, failure: str = "") -> None:
        """Store the result of a trial: its value, or ``None`` and the reason ``failure`` if it failed."""
        if value is None:
            self._study.set_user_attr(f"{_FAILURE}_{trial.number}", failure or "it has no evaluation.")
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial.number, value)


def _make_pruner(pruners: Any, pruner: Pruner | None) -> Any:
    """Create the pruner from Optuna's module of pruners."""
    if pruner is None:
        return pruners.NopPruner()
    if pruner.name == "median":
        return pruners.MedianPruner()
    return pruners.HyperbandPruner(min_resource=pruner.interval, max_resource=pruner.total)


def _mend_journal(path: Path) -> None:
    """Repair Optuna's journal if its process was killed: remove an incomplete last line and the writer's lock.

    A search has one process, so an existing lock belongs to a process that has ended.
    """
    refuse_link(path)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if not path.exists():
        return
    whole = path.read_bytes()
    end = whole.rfind(b"\n") + 1
    if end < len(whole):
        with open(path, "rb+") as file:
            file.truncate(end)
