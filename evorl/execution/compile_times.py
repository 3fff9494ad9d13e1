"""Compile times of programs, stored in the cache folder to predict how long the next start takes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path

import jax

from evorl.distribution import installed_version
from evorl.envs.libraries import short_title
from evorl.runs.files import refuse_link, write_atomically
from evorl.runs.spec import RunSpec, learning_settings

_FILE = "compile_times.json"
_MAX_BYTES = 2**20
_MAX_TASKS, _MAX_SETTINGS = 200, 20  # numbers of stored tasks, and of settings per task; the oldest are removed
_SHORT = 1.0  # seconds; a shorter compilation is not announced


@dataclasses.dataclass(frozen=True)
class CompileTimes:
    """Compile times of one task: an algorithm in an environment, with these versions on these devices.

    Attributes:
        file: file of the compile times; ``None`` if compiled programs are not cached, so that no times are stored.
        task: key of the task in the file.
        name: short name of the environment, for messages.
        settings: hash of ``devices`` and of the settings that affect learning, without the seed; equal hashes share
            cached programs.
    """

    file: Path | None
    task: str
    name: str
    settings: str

    @classmethod
    def of_run(cls, spec: RunSpec, env: str) -> CompileTimes:
        """Return the compile times of a run with these settings and title of ``env``, stored in JAX's cache folder."""
        folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
        devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
        task = [str(spec.workflow.get("workflow")), env, installed_version(), jax.__version__, devices]
        settings = learning_settings(spec.as_config()) | {"seed": None, "devices": spec.devices}  # seeds share programs
        text = json.dumps(settings, sort_keys=True, default=str)
        fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
        return cls(Path(folder) / _FILE if folder else None, ", ".join(task), short_title(env), fingerprint)

    def announce(self) -> str | None:
        """Return the message to show before programs are compiled or loaded; ``None`` if this should take < 1 s."""
        if self.file is None:
            return f"Compiling {self.name}. Without the compilation cache, every start compiles again."
        times = self._read().get(self.task, {})
        seconds = times.get(self.settings)
        if seconds is not None:
            return None if seconds < _SHORT else f"Loading {self.name}: about {_shown(seconds)}, as last time."
        if "new" in times:
            expected = _shown(times["new"])
            return f"Compiling {self.name}: about {expected} as last time, less if its programs are in the cache."
        return f"Compiling {self.name} for the first time. Later starts load the compiled programs and are faster."

    def remember(self, seconds: float) -> None:
        """Store the seconds of a compilation, or of loading programs; replace an invalid file, ignore write errors."""
        if self.file is None:
            return
        stored = self._read()
        times = stored.pop(self.task, {})
        is_new = self.settings not in times
        if is_new and seconds > times.get("new", 0.0) / 2:  # a shorter start loaded programs from the cache
            times.pop("new", None)
        # The programs are in the cache now: the next start with these settings loads them.
        times[self.settings] = 0.0 if is_new else round(seconds, 1)
        times.setdefault("new", round(seconds, 1))
        times = dict(list(times.items())[-_MAX_SETTINGS:])
        newest = dict([*stored.items(), (self.task, times)][-_MAX_TASKS:])
        with contextlib.suppress(OSError):
            write_atomically(self.file, json.dumps(newest, indent=1) + "\n")

    def _read(self) -> dict[str, dict[str, float]]:
        """Return the stored seconds by task, then by settings; an empty dict if the file is missing or invalid."""
        assert self.file is not None, "checked by the callers"
        try:
            refuse_link(self.file)
            if self.file.stat().st_size > _MAX_BYTES:
                return {}
            stored = json.loads(self.file.read_text(encoding="utf-8"))
            return {
                task: {name: float(x) for name, x in times.items() if isinstance(x, int | float) and 0 <= x < 1e6}
                for task, times in stored.items()
            }
        except (OSError, ValueError, AttributeError, RecursionError):
            return {}


def _shown(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
