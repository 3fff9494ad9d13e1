"""Training through ``Workflow.learn``, recorded like an ordinary run, without evaluation; compilation is excluded.

Settings: ``config`` (of a run, as a mapping), ``warmup_steps`` and ``steps`` (environment steps of each seed in one
measurement), ``recording`` (true), ``cache`` (folder of compiled programs).

Training with actors is measured only by wall time, because actors use the processor time of other processes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from typing import Any

from benchmarks.speed.child import Reading, read_settings, serve, timed
from evorl.execution.runtime import prepare_for
from evorl.runs.spec import RunSpec


class Training:
    """One training run that every measurement continues, each time in a new run folder."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.recording = settings.get("recording", True)
        self.config = {"eval_interval": 0, "log_interval": 5000, **settings["config"]}
        self.workflow = self.make_workflow(settings)
        self.steps = settings["steps"]
        self.state = self.workflow.init(0)
        self.timesteps = 0
        self.learn(settings["warmup_steps"])

    def make_workflow(self, settings: dict[str, Any]) -> Any:
        """Build the trained workflow."""
        from omegaconf import OmegaConf

        from evorl.assembly import workflow_from_config

        return workflow_from_config(OmegaConf.create(self.config))

    def learn(self, steps: int) -> Reading:
        """Train for this many further environment steps."""
        from evorl.recorders import make_recorder
        from evorl.runs.folder import RunFolder

        per_iteration = self.workflow.timesteps_per_iteration
        before, num_seeds = self.timesteps, self.workflow.execution.num_seeds or 1
        self.timesteps += max(1, steps // per_iteration) * per_iteration if per_iteration else steps
        workflow = self.workflow.replace(total_timesteps=float(self.timesteps))
        with contextlib.ExitStack() as stack:
            screen = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(screen))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            recorder = make_recorder(RunFolder.create(folder, self.config), live=False) if self.recording else None

            def go_on() -> int:
                self.state = workflow.learn(self.state, recorder=recorder)
                done = int(self.state.iterations) * per_iteration
                self.timesteps = done or self.state.timesteps.total() // num_seeds
                return (self.timesteps - before) * num_seeds

            reading = timed(None, go_on)
            closing = time.perf_counter()
            if recorder is not None:
                recorder.close()
            reading["closing_seconds"] = time.perf_counter() - closing
        if workflow.execution.collector is not None:
            reading = {name: value for name, value in reading.items() if "cpu" not in name}
        return {**reading, "num_devices": workflow.execution.num_devices}


def prepare() -> Any:
    settings = read_settings()
    prepare_for(RunSpec.from_config({**settings["config"], "compilation_cache": settings.get("cache") or False}))
    training = Training(settings)
    return lambda: training.learn(training.steps)


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "brax", "mujoco-mjx", "gymnax", "gymnasium", "mujoco", "envpool", "ray", "evorl")
