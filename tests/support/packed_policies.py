"""Packed policies made by hand, for the tests of their readers."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from evorl.runs import policy_archive
from evorl.runs.policy_archive import ARRAYS, CONFIG, MANIFEST, PROGRESS, STRUCTURE
from evorl.runs.storage import structure_of
from evorl.runs.structure import SMALL, pack

STATE = {"agent_state": {"params": {"policy": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}}}}
CONFIG_OF_NOTHING = {
    "workflow": "evorl.algorithms.ppo.PPOWorkflow",
    "env": {"library": "gymnax", "name": "CartPole-v1"},
}


def packed_files(config: Mapping[str, Any] = CONFIG_OF_NOTHING, step: Any = 7) -> dict[str, bytes]:
    """Return the required files of an archive."""
    arrays, offsets = pack(STATE, large=math.inf)
    about = {"iterations": step, "score": 1.5, "progress": {"iterations": step, "timesteps": 70}, "records": {}}
    return {
        CONFIG: OmegaConf.to_yaml(OmegaConf.create(dict(config))).encode(),
        ARRAYS: arrays[SMALL].tobytes(),
        STRUCTURE: json.dumps({"leaves": structure_of(STATE, offsets)}).encode(),
        PROGRESS: json.dumps(about).encode(),
    }


def write_packed(path: Path, config: Mapping[str, Any] = CONFIG_OF_NOTHING, **options: Any) -> str:
    """Write an archive and return its digest."""
    return policy_archive.write_archive(path, packed_files(config, **options), {"algorithm": "ppo"})


def repacked(
    path: Path,
    changes: Mapping[str, bytes | None] = {},
    add: tuple[zipfile.ZipInfo | str, bytes] | None = None,
    method: int = zipfile.ZIP_STORED,
) -> None:
    """Change files of an archive, which keeps its manifest unless that is changed; ``None`` removes a file."""
    with zipfile.ZipFile(path) as archive:
        contents: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    contents |= changes
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(name, content)
        if add is not None:
            archive.writestr(*add)
    path.write_bytes(stream.getvalue())


def manifest_of(path: Path) -> dict[str, Any]:
    """Return the manifest of an archive."""
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(MANIFEST))
