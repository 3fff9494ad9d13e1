"""Replay pages: a single HTML file that any browser plays offline, without network requests.

Episodes with MuJoCo positions are shown as scenes that can be rotated and paused: shapes are stored once, poses per
frame as 16-bit integers. Meshes and height fields are drawn as bounding boxes. Other episodes share one animation.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from evorl.envs.mujoco_shapes import poses_of, shapes_of
from evorl.envs.vector import VectorEnv
from evorl.episodes.physics import physics_in
from evorl.rendering.animation import frame_numbers
from evorl.rendering.tiles import Shown, figures
from evorl.runs.files import make_folder, write_atomically, writing_to

_LARGEST = 32767  # maximum of the integers that encode positions and rotations
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body{margin:0;font:14px system-ui,sans-serif;background:#fafaf7;color:#22262e}
header{padding:.6em 1em}h1{font-size:1.1em;margin:0 0 .3em}p{margin:.2em 0;color:#5a6069}
#tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(WIDTHpx,1fr));gap:6px;padding:0 1em 1em}
figure{margin:0;background:#fff;border:1px solid #d9dce1}
figcaption{padding:.3em .6em;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
figcaption.end{color:#8c9096}canvas,img{display:block;width:100%;touch-action:none}canvas{cursor:grab}
#bar{display:flex;gap:.6em;align-items:center;padding:.3em 1em}#bar input{flex:1}
"""


def write_body_page(path: Path, title: str, shown: Sequence[Shown], env: VectorEnv, num_frames: int, fps: float) -> int:
    """Write a page with a rotatable scene of MuJoCo bodies for each episode.

    Args:
        path: output file; its folder is created.
        title: title of the page.
        shown: episodes with recorded MuJoCo positions (``qpos``) and velocities.
        env: environment whose ``mujoco_model`` describes the bodies.
        num_frames: maximum number of frames per episode.
        fps: frames per second at the speed 1×.

    Returns:
        Number of meshes and height fields, which are drawn as bounding boxes.

    Raises:
        ValueError: an episode has no recorded positions, or their shape does not match the model.
        RunFolderError: the file cannot be written.
    """
    model = env.mujoco_model
    shapes = shapes_of(model)
    num_bounds = sum(shape["bounds"] for shape in shapes)
    data = {
        "shapes": shapes,
        "distance": round(min(4.0, float(model.stat.extent)), 3),
        "fps": fps,
        "tiles": [_scene(each, env, num_frames) for each in shown],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # a script element cannot contain ``<``
    note = "Drag to rotate, scroll to zoom, space to pause."
    if num_bounds:
        note += f" {num_bounds} meshes or height fields are shown as their bounding boxes."
    script = resources.files("evorl.rendering").joinpath("replay_page.js").read_text(encoding="utf-8")
    controls = (
        '<div id="bar"><button id="play">pause</button><input id="time" type="range" min="0" value="0" '
        'aria-label="time"><select id="speed" aria-label="speed"><option value="0.25">¼×</option>'
        '<option value="0.5">½×</option><option value="1" selected>1×</option><option value="2">2×</option>'
        "</select></div>"
    )
    body = (
        f'{controls}<div id="tiles"></div><script type="application/json" id="data">{text}</script>'
        f"<script>{script}</script>"
    )
    _write(path, title, note, body, 200 if len(shown) > 3 else 320)
    return num_bounds


def write_picture_page(path: Path, title: str, animation: bytes) -> None:
    """Write a page with a single animation, a WebP file, and create its folder; raise ``RunFolderError`` on failure."""
    text = base64.b64encode(animation).decode()
    _write(path, title, "", f'<div id="tiles"><img alt="" src="data:image/webp;base64,{text}"></div>', 320)


def _write(path: Path, title: str, note: str, body: str, width: int) -> None:
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE.replace('WIDTH', str(width))}</style></head>"
        f"<body><header><h1>{html.escape(title)}</h1><p>{html.escape(note)}</p></header>{body}</body></html>\n"
    )
    with writing_to(path.parent):
        make_folder(path.parent)
        write_atomically(path, page)


def _scene(each: Shown, env: VectorEnv, num_frames: int) -> dict[str, Any]:
    """Return an episode's data for the page: frames, returns, body poses; raise ``ValueError`` without positions."""
    if each.episode is None:
        raise ValueError(f"{each.title} has no recorded positions of bodies, so it cannot be shown as a scene.")
    qpos, _ = physics_in(each.episode, env)
    moments = frame_numbers(each.length + 1, num_frames)
    poses = poses_of(env.mujoco_model, qpos[moments])  # [K, M, 7]
    positions = poses[..., :3]
    center, reach = (positions.max((0, 1)) + positions.min((0, 1))) / 2, np.ptp(positions, axis=(0, 1)).max() / 2 or 1.0
    numbers = np.concatenate([(positions - center) / reach, poses[..., 3:]], axis=-1)
    returns = np.concatenate([[0.0], np.cumsum(each.rewards, dtype=np.float64)])[moments]
    return {
        "title": each.title,
        "moments": moments.tolist(),
        "isWhole": each.is_whole,
        "returns": [figures(value) for value in returns],
        "center": center.round(5).tolist(),
        "reach": round(float(reach), 5),
        "poses": base64.b64encode((numbers * _LARGEST).round().astype("<i2").tobytes()).decode(),
    }
