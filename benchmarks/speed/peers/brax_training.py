"""Training with brax's own PPO trainer, without evaluations; compilation is excluded.

Settings: ``config`` (see ``brax_ppo.train``), ``steps`` (environment steps in one measurement), ``devices`` (virtual
devices of the processor over which brax shards its environments), ``cache``.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from benchmarks.speed.child import Reading, read_settings, serve, timed
from benchmarks.speed.peers.brax_ppo import train

EPOCHS = 100_000  # more than any measurement: the process ends earlier


class Epochs:
    """A training run in a separate thread, which advances by one epoch at a time."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.steps = settings["steps"]
        self._may_go_on, self._is_done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        threading.Thread(target=self._train, args=(settings["config"],), daemon=True).start()
        self._wait()

    def run(self) -> None:
        """Run one epoch."""
        self._may_go_on.release()
        self._wait()

    def _wait(self) -> None:
        self._is_done.acquire()
        if self._error is not None:
            raise RuntimeError("brax's training ended") from self._error

    def _train(self, config: dict[str, Any]) -> None:
        try:
            train(config, self.steps, EPOCHS, self._after_epoch)
        except BaseException as error:  # raised where the epochs are requested
            self._error = error
            self._is_done.release()

    def _after_epoch(self) -> None:
        self._is_done.release()
        self._may_go_on.acquire()


def prepare() -> Any:
    settings = read_settings()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={settings['devices']}"
    import jax

    if settings.get("cache"):
        jax.config.update("jax_compilation_cache_dir", settings["cache"])
    epochs = Epochs(settings)
    epochs.run()  # the first epoch sharded the state

    def measure() -> Reading:
        return {**timed(epochs.steps, epochs.run), "num_devices": jax.device_count()}

    return measure


if __name__ == "__main__":
    serve(prepare, "jax", "jaxlib", "brax")
