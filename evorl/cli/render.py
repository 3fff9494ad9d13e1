"""``evorl render``: draws episodes of a policy, as an animation, a video, or a page for a browser."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from evorl.assembly import seeded_env, workflow_from_config
from evorl.cli.command_options import read_options
from evorl.cli.options import RENDER, RENDER_FORMATS
from evorl.config.gate import scope
from evorl.config.values import BEST, check_names
from evorl.envs.gymnasium import is_drawn_by_mujoco
from evorl.envs.host.host_vector_env import HostEnvError
from evorl.envs.mujoco_frames import draw_without_screen
from evorl.execution.restoration import restore
from evorl.execution.runtime import prepare_for
from evorl.execution.seeds import state_of_seed
from evorl.rendering.animation import animation_bytes, write_animation
from evorl.rendering.players import played_entries, players_of
from evorl.rendering.replay_page import write_body_page, write_picture_page
from evorl.rendering.shown_episodes import shown_episodes
from evorl.rendering.tiles import Shown, moments_of, picture_grid
from evorl.rendering.video_file import require_encoder
from evorl.reports.seed_choice import choose_seed
from evorl.runs.best_run import find_run
from evorl.runs.checkpointer import RunCheckpointer
from evorl.runs.folder import RunFolder
from evorl.runs.spec import RunSpec
from evorl.runs.stored import StoredConfig
from evorl.types import State
from evorl.workflows.workflow import Workflow

_OF_BODIES = ("brax", "mjx", "playground", "host")  # libraries whose environments MuJoCo renders
MAX_PICTURE_BYTES = 2 * 10**9


@scope()
def render_from_arguments(arguments: Sequence[str]) -> Path:
    """Play episodes of a stored run, draw them, and print and return the path of the file."""
    settings = _settings(arguments)
    if settings["format"] == "mp4":
        require_encoder()
    folder = find_run(settings["run"], settings["runs_folder"])
    changes = {"devices": 1, "evaluation": None, "actors": None}
    spec = StoredConfig.read(folder).spec(settings["trust"], changes, can_be_overridden=False)
    if spec.env.get("library") != "pettingzoo":  # one batch row per agent; rendering creates a separate env
        spec = spec.changed({"eval_episodes": settings["episodes"]})
    folder.refuse_links()
    _prepare_to_draw(spec.env, settings["format"])
    prepare_for(spec)
    workflow = workflow_from_config(spec.workflow_config())
    checkpointer = RunCheckpointer(folder.checkpoints)
    which = checkpointer.available(settings["checkpoint"])
    try:
        state, progress = restore(workflow, checkpointer, spec.seed, which, played_entries(workflow))
        for notice in checkpointer.notices:
            print(notice)
        target = _draw(settings, folder, spec, workflow, state, progress["timesteps"])
    finally:
        workflow.close()
        workflow.eval_env.close()
    return target


def _settings(arguments: Sequence[str]) -> dict[str, Any]:
    settings, _ = read_options(arguments, RENDER, "evorl render")
    if not settings["run"]:
        raise ValueError("no run was given: set run=<folder>, or run=latest.")
    to = settings["to"] and Path(settings["to"])
    suffix = to.suffix.lower().lstrip(".") if to else settings["format"]
    if suffix and not any(argument.startswith("format=") for argument in arguments):
        check_names([suffix], RENDER_FORMATS, f"format for to={to} with suffix")
        settings["format"] = suffix
    kind = settings["format"]
    if suffix != kind and (kind != "html" or suffix in RENDER_FORMATS):  # a page may have any other suffix
        raise ValueError(f"to={to} must end in .{kind} for format={kind}: change one of them.")
    if kind != "html":
        refuse_large_pictures(settings["episodes"], settings["frames"], settings["size"])
    return settings | {"to": to}


def refuse_large_pictures(episodes: int, frames: int, size: int) -> None:
    """Raise ``ValueError`` if ``episodes * frames`` images of ``size**2`` pixels exceed ``MAX_PICTURE_BYTES``."""
    num_bytes = 3 * episodes * frames * size**2
    if num_bytes > MAX_PICTURE_BYTES:
        raise ValueError(
            f"{episodes:,} episodes, frames={frames:,} and size={size:,} need images of {num_bytes / 1e9:,.1f} GB, "
            f"but at most {MAX_PICTURE_BYTES / 1e9:,.1f} GB are allowed: choose smaller numbers."
        )


def _prepare_to_draw(env: Mapping[str, Any], kind: str) -> None:
    """Configure headless rendering for settings ``env`` and a format ``kind``, before anything else imports MuJoCo.

    Gymnasium renders with pygame, which also needs dummy drivers for video and audio.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    library = env.get("library")
    if kind == "html" and library in _OF_BODIES:
        os.environ["MUJOCO_GL"] = "disable"  # a page needs no renderer, and a missing one would raise an error
    elif library != "gymnax":
        by_mujoco = library in _OF_BODIES or (library == "gymnasium" and is_drawn_by_mujoco(str(env.get("name"))))
        with _pages_explained(kind, library):
            draw_without_screen(by_mujoco)


@contextlib.contextmanager
def _pages_explained(kind: str, library: str | None) -> Iterator[None]:
    """Add the advice ``format=html`` to a ``HostEnvError`` if MuJoCo draws the environment in another format."""
    try:
        yield
    except HostEnvError as error:
        is_other = kind != "html" and library in _OF_BODIES
        page = " MuJoCo bodies can be shown without a graphics library: format=html." if is_other else ""
        raise HostEnvError(f"{error}{page}") from error


def _draw(
    settings: dict[str, Any], folder: RunFolder, spec: RunSpec, workflow: Workflow, state: State, timesteps: int
) -> Path:
    shown_seed = choose_seed(folder.path, workflow.execution.num_seeds, timesteps, settings["seed_number"])
    state = state_of_seed(workflow.execution, state, shown_seed.number)
    players = players_of(workflow, state, settings["episodes"], settings["cells"])
    key = state.eval_key if settings["seed"] is None else jax.random.key(settings["seed"])
    # A population derives its evaluation keys from the iterations of its members.
    counter = state.iterations.times(getattr(workflow, "iterations_per_generation", 1))
    env_config = seeded_env(spec, evaluates=True)
    of_seed = "" if settings["seed"] is None else f"_seed_{settings['seed']}"
    of_number = "" if settings["seed_number"] == BEST else f"_seed_number_{shown_seed.number}"
    of_elites = "_elites" if len(players) > 1 else ""
    target = settings["to"] or folder.videos / f"{timesteps:012d}{of_elites}{of_number}{of_seed}.{settings['format']}"
    which = f", {shown_seed.description}" if shown_seed.description else ""
    title = f"{folder.path.parent.name}/{folder.path.name} after {timesteps:,} steps{which}"
    episodes = shown_episodes(
        workflow.eval_env,
        env_config,
        workflow.agent.evaluate_actions,
        players,
        jax.random.fold_in(key, counter.low),
        size=settings["size"],
        num_frames=settings["frames"],
        num_steps=settings["steps"],
        as_bodies=settings["format"] != "html",
    )
    with _pages_explained(settings["format"], spec.env.get("library")), episodes as shown:
        _write(settings, target, title, shown, workflow)
        captions = [f"  {each.caption(each.length)}\n" for each in shown]
    print(f"{title}:\n{''.join(captions)}{target}")
    return target


def _write(settings: dict[str, Any], target: Path, title: str, shown: Sequence[Shown], workflow: Workflow) -> None:
    env = workflow.eval_env
    if settings["format"] == "html" and env.mujoco_model is not None and all(each.episode for each in shown):
        num_boxes = write_body_page(target, title, shown, env, settings["frames"], settings["fps"])
        if num_boxes:
            print(f"{num_boxes} meshes or height fields are shown as their bounding boxes.")
        return
    refuse_large_pictures(len(shown), len(moments_of(shown, settings["frames"])), settings["size"])
    frames = picture_grid(shown, settings["frames"])
    if settings["format"] == "html":
        write_picture_page(target, title, animation_bytes(frames, "WEBP", 1 / settings["fps"]))
    else:
        write_animation(target, frames, 1 / settings["fps"], lossless=settings["format"] != "webp")
