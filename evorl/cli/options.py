"""Options of the commands that compose no config: what ``evorl <command> --help`` and completion list."""

from __future__ import annotations

from typing import Any

from evorl.apps.app_config import APP_FILE
from evorl.apps.kinds import KINDS
from evorl.cli.command_options import (
    FPS,
    NUM_EPISODES,
    NUM_FRAMES,
    PIXELS,
    SEED,
    Option,
    checkpoint,
    number,
    one_of,
    whole,
)
from evorl.config.values import LONGEST_AXIS, seed_choice
from evorl.export import FORMATS
from evorl.runs.run_state import STATES

RENDER_FORMATS = ("webp", "gif", "png", "mp4", "html")
MOST_ELITES = 1_000
WATCH_TOKEN = "EVORL_TOKEN"
APP_COMPONENTS = ("all", "parameters", "server", "environment", "metrics")
MOST_PROCESSES = 10_000
_SECONDS = number("[0, 1e9]")
_SERVERS, _SERVERS_OF_ALL = whole(1, MOST_PROCESSES), whole(0, LONGEST_AXIS)
_KINDS = ", ".join(KINDS)


def _cells(value: Any, name: str) -> int | list[int]:
    """Return a number of elites, or a list of cells; raise ``ValueError`` for anything else."""
    numbers = value if isinstance(value, list) else [value]
    try:
        cells = [whole(0, LONGEST_AXIS)(number, name) for number in numbers]
        if not 1 <= len(cells) <= MOST_ELITES or (value is not numbers and cells[0] > MOST_ELITES):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} must be a number of elites, {MOST_ELITES:,} at most, or a list of as many cells such as [3,17]; "
            f"got {value!r}."
        ) from None
    return cells if value is numbers else cells[0]


RENDER = {
    "run": Option(None, "a run folder, or latest", text=True),
    "runs_folder": Option("runs", "where run folders are"),
    "episodes": Option(3, "how many are played, side by side in one picture", NUM_EPISODES),
    "format": Option(
        "webp", f"of the picture: {', '.join(RENDER_FORMATS)}; mp4 needs the extra video", one_of(*RENDER_FORMATS)
    ),
    "to": Option(None, "the file; null for one in the folder videos of the run", text=True),
    "frames": Option(100, "pictures of the longest episode, at most", NUM_FRAMES),
    "fps": Option(20, "pictures shown in a second", FPS),
    "size": Option(240, "height of each episode's picture, in pixels", PIXELS),
    "checkpoint": Option("best", "whose policy plays: best, latest or an iteration", checkpoint),
    "cells": Option(
        None, "of an archive: a number of elites, or a list of cells; null for 9, 0 for the best policy alone", _cells
    ),
    "seed": Option(None, "of other episodes; null for those that evaluations of the checkpoint play", SEED),
    "seed_number": Option("best", "which of several seeds plays, from 0; best for the best by evaluation", seed_choice),
    "trust": Option(False, "whether the run may name code outside evorl: true only if you trust its maker"),
}

SHOW_EPISODE = {
    "episode": Option(None, "the file of an episode", text=True),
    "run": Option(None, "a run folder, or latest: its last episode", text=True),
    "runs_folder": Option("runs", "where run folders are"),
    "to": Option(None, "the picture; null for a file beside the episode", text=True),
    "frames": Option(50, "of the animation, at most", NUM_FRAMES),
    "size": Option(320, "width and height in pixels", PIXELS),
    "trust": Option(False, "whether the episode may name code outside evorl: true only if you trust its maker"),
}

RUNS = {
    "sort": Option("newest", "return, best, steps or newest, the greatest first; or run, algorithm, env, state"),
    "algorithm": Option(None, "only those of this algorithm, as in algorithm=ppo", text=True),
    "env": Option(None, "only those in environments with this in their name", text=True),
    "state": Option(None, "only those that are running, stopped, finished or failed", one_of(*STATES), text=True),
}

WATCH = {
    "port": Option(7002, "to listen on; 0 for one that is free", whole(0, 65_535)),
    "bind": Option("127.0.0.1", "the address to listen on; any but this machine's own needs a token"),
    "token": Option(None, f"asked of everybody; new for a new one, null for that in {WATCH_TOKEN} or none", text=True),
    "hosts": Option(None, "names of this machine that may stand in the address, as in hosts=box,box.lan", text=True),
    "cert": Option(None, "a certificate, PEM: the page is served by TLS", text=True),
    "key": Option(None, "the certificate's key, PEM", text=True),
    "open": Option(False, "whether the page is opened in a browser"),
    "runs_folder": Option("runs", "where runs are looked for by their names, and watched where none is named"),
    "metrics_folder": Option(
        "metrics", "folder for metrics that clients send; null keeps them in memory only", text=True, null=True
    ),
    "metrics": Option({}, "by name whether a client's metric is taken, as in metrics={loss: false}"),
    "enable_unknown_metrics": Option(True, "whether metrics are taken that metrics does not name"),
    "log": Option(False, "whether every number that a client sends is printed"),
}

REPORT = {
    "to": Option(None, "the page; null for report.html in the folder named, of several in this one", text=True),
    "by": Option(None, "what groups differ by: agent, env, run or settings, as in by=agent,optimizer.name", text=True),
    "metric": Option(None, "a column of metrics.csv, as in metric=eval/success; null for the return", text=True),
    "csv": Option(None, "file for the table of results; --csv alone puts it beside the page", text=True, empty=True),
    "title": Option(None, "of the page; null for one that says what was trained", text=True),
    "pictures": Option(True, "whether pictures and videos of the run folders are in the page"),
    "algorithm": Option(None, "only runs of this algorithm", text=True),
    "env": Option(None, "only runs in environments with this in their name", text=True),
    "state": Option(None, "only runs that are running, stopped, finished or failed", one_of(*STATES), text=True),
    "runs_folder": Option("runs", "where runs are looked for by their names"),
}  # fmt: skip

CHECK_ENV = {
    "steps": Option(200, "steps of each copy, with random actions", whole(1, 1_000_000)),
    "num_envs": Option(4, "copies that are stepped together", whole(1, 100_000)),
    "max_episode_steps": Option(
        None,
        "time limit of an episode; null for half of the steps if the environment has no limit",
        whole(1, LONGEST_AXIS),
    ),
    "seed": Option(0, "of the starts and the actions", SEED),
    "arguments": Option({}, "of the function, as in '{goal_reward: 2.0}'"),
}

CHECK_CLIENT = {
    "bind": Option("127.0.0.1:7001", "address that the client connects to; port 0 chooses a free one"),
    "command": Option("", "program to start for each check, in which {address} is the address"),
    "only": Option("", "names of the checks to play, separated by commas; * matches any text"),
    "skip": Option("", "names of checks to leave out"),
    "seconds": Option(10.0, "time limit for a connection and for each message", number("(0, 3600]")),
    "to": Option("", "with vectors: file to write instead of printing them"),
}

WORK = {
    "worker": Option(0, "which one this is, from 0: each has random draws of its own", whole(0, LONGEST_AXIS)),
    "token": Option(None, "that the server wants; env:NAME reads a variable", text=True),
    "cert": Option(None, "file of the server's TLS certificate; null for no TLS", text=True),
    "profile_dir": Option(None, "folder for where the time goes, as trace.json", text=True),
    "serve": Option({}, "of env=remote where simulators come to, as serve.bind=127.0.0.1:7001, as for evorl serve"),
    "trust": Option(False, "whether the server may name code outside evorl: true only for servers of your own"),
}

NEW = {
    "algorithm": Option(
        None, "what learns, as in algorithm=ppo (or -a ppo); null for what suits the simulator", text=True
    ),
    "env": Option("bandit", f"the simulator (or -e): {_KINDS}; or gymnasium/<id>"),
}

GENERATE = {
    "algorithm": Option(None, "copy this algorithm into the app, to be changed (or -a)", text=True),
    "env": Option(None, f"write the simulator anew (or -e): {_KINDS}", text=True),
    "docker": Option(False, "write a Dockerfile, compose.yaml and the wheel of this evorl that they install"),
    "file": Option(APP_FILE, "the app's settings (or -c)"),
}

CONFIG = {
    "algorithm": Option(None, "fill in the settings of this algorithm or experiment (or -a)", text=True),
    "env": Option(None, f"fill in the settings of this simulator (or -e): {_KINDS}", text=True),
    "list": Option(False, "tell what there is (or -l); so does nothing at all"),
    "file": Option(APP_FILE, "the app's settings (or -c)"),
}

RUN = {
    "n": Option(1, "environments at a time (or -n 4)", whole(1, MOST_PROCESSES)),
    "exploit": Option(False, "the first environment plays by the policy as it is, and is not learned from (--exploit)"),
    "show_ui": Option(False, "the first environment shows itself, if it can (--show-ui)"),
    "servers": Option(None, "servers here that learn for a parameter server; null for the number of the app", _SERVERS),
    "worker": Option(0, "number of the first of these among those of all machines", _SERVERS_OF_ALL),
    "file": Option(APP_FILE, "the app's settings (or -c)"),
}

ACT = {
    "run": Option(None, "a run folder, or latest", text=True),
    "policy": Option(None, "instead of a run the file of evorl export, format=onnx or jax", text=True),
    "runs_folder": Option("runs", "where run folders are"),
    "checkpoint": Option("best", "whose policy acts: best, latest or an iteration", checkpoint),
    "sample": Option(False, "whether actions are drawn as in training, instead of the most confident ones"),
    "seed": Option(0, "of these draws", SEED),
    "seed_number": Option("best", "which of several seeds acts, from 0; best for the best by evaluation", seed_choice),
    "follow": Option(0.0, "seconds between looks for a newer checkpoint, which then acts; 0 for none", _SECONDS),
    "bind": Option("127.0.0.1:7001", "address and port of the RLX protocol over TCP"),
    "web": Option(None, "address and port of WebSocket, of /healthz and of robots' clients (extra serve)", text=True),
    "token": Option(None, "that clients show, needed where others than this machine can connect", text=True),
    "cert": Option(None, "file of a TLS certificate; null for no TLS", text=True),
    "key": Option(None, "file of its private key", text=True),
    "max_clients": Option(256, "clients at a time", whole(1, 100_000)),
    "max_frame": Option(2**24, "bytes of a message", whole(64, 2**30)),
    "idle_seconds": Option(600.0, "that a client may be silent; 0 for ever", _SECONDS),
    "trust": Option(False, "whether the run or file may name code outside evorl: true only if you trust its maker"),
}

POLICY = {
    "run": Option(None, "a run folder, or latest", text=True),
    "runs_folder": Option("runs", "where run folders are"),
    "checkpoint": Option("best", "best, latest, or the number of an iteration", checkpoint),
    "sample": Option(False, "whether actions are drawn as in training, instead of the most confident ones"),
    "seed_number": Option("best", "which of several seeds, from 0; best for the best by evaluation", seed_choice),
    "trust": Option(False, "whether the run may name code outside evorl: true only if you trust its maker"),
}

EXPORT = {
    "format": Option(None, f"of the file: {', '.join(FORMATS)}, or several of them as in onnx,numpy", text=True),
    "to": Option(None, "the file, or a folder for several; null for the folder export of the run", text=True),
    **POLICY,
}

PLAY = {
    "env": Option(None, "the environment, as in gymnasium/CartPole-v1; null for that of the run", text=True),
    "episodes": Option(1, "how many are played", NUM_EPISODES),
    "seed": Option(0, "of the first episode; the others follow", SEED),
    "max_steps": Option(1000, "of an episode, at most", whole(1, LONGEST_AXIS)),
    "to": Option(None, "the animation, a .gif or .webp; null for the folder play of the run", text=True),
    "screen": Option(False, "whether to play on the screen instead, as fast as the environment says"),
    "frames": Option(200, "of the animation, at most", NUM_FRAMES),
    "fps": Option(30, "steps shown in a second", FPS),
    **POLICY,
}
