"""Options of the commands that do not compose a config, for ``evorl <command> --help`` and for completion."""

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

ACTIONS = ("discrete", "continuous")
RENDER_FORMATS = ("webp", "gif", "png", "mp4", "html")
MAX_ELITES = 1_000
WATCH_TOKEN = "EVORL_TOKEN"
APP_COMPONENTS = ("all", "parameters", "server", "environment", "metrics")
MAX_PROCESSES = 10_000
_SECONDS = number("[0, 1e9]")
_SERVERS, _SERVERS_OF_ALL = whole(1, MAX_PROCESSES), whole(0, LONGEST_AXIS)
_KINDS = ", ".join(KINDS)
_RUN = "a run folder, latest, or the file or address of a packed policy"


def _cells(value: Any, name: str) -> int | list[int]:
    """Return a number of elites, or a list of cells; raise ``ValueError`` for anything else."""
    numbers = value if isinstance(value, list) else [value]
    try:
        cells = [whole(0, LONGEST_AXIS)(number, name) for number in numbers]
        if not 1 <= len(cells) <= MAX_ELITES or (value is not numbers and cells[0] > MAX_ELITES):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} must be a number of elites up to {MAX_ELITES:,}, or a list of cells such as [3,17]; got {value!r}."
        ) from None
    return cells if value is numbers else cells[0]


RENDER = {
    "run": Option(None, _RUN, text=True),
    "runs_folder": Option("runs", "folder that contains the run folders"),
    "episodes": Option(3, "number of episodes, drawn side by side in one animation", NUM_EPISODES),
    "format": Option(
        "webp", f"file format: {', '.join(RENDER_FORMATS)}; mp4 needs the extra video", one_of(*RENDER_FORMATS)
    ),
    "to": Option(None, "output file; null for a new one in the folder videos of the run", text=True),
    "frames": Option(100, "maximum number of frames of the longest episode", NUM_FRAMES),
    "steps": Option(None, "draw only the first steps of each episode; null for all of them", whole(1, LONGEST_AXIS)),
    "fps": Option(20, "frames per second", FPS),
    "size": Option(240, "height of each episode's image, in pixels", PIXELS),
    "checkpoint": Option("best", "checkpoint to play: best, latest or an iteration", checkpoint),
    "cells": Option(
        None,
        "for runs with an archive: how many elites to play, or a list of cells; null for 9, 0 for the best policy only",
        _cells,
    ),
    "seed": Option(
        None, "random seed of the episodes; null for the same episodes as the evaluation of the checkpoint", SEED
    ),
    "seed_number": Option(
        "best", "index of the seed to play, in runs with several; best for the one with the highest score", seed_choice
    ),
    "trust": Option(False, "allow the run to load code outside evorl; only for runs from sources that you trust"),
}

SHOW_EPISODE = {
    "episode": Option(None, "file of an episode", text=True),
    "run": Option(None, "a run folder, or latest, to draw its last episode", text=True),
    "runs_folder": Option("runs", "folder that contains the run folders"),
    "to": Option(None, "output file; null for a file next to the episode", text=True),
    "frames": Option(50, "maximum number of frames of the animation", NUM_FRAMES),
    "size": Option(320, "width and height in pixels", PIXELS),
    "trust": Option(False, "allow the episode to load code outside evorl; only for files from sources that you trust"),
}

RUNS = {
    "sort": Option(
        "newest",
        "newest, return, best or steps (descending); run, algorithm, env or state (ascending)",
    ),
    "algorithm": Option(None, "list only runs of this algorithm, such as algorithm=ppo", text=True),
    "env": Option(None, "list only runs whose environment name contains this text", text=True),
    "state": Option(
        None, "list only runs in this state: running, stopped, finished or failed", one_of(*STATES), text=True
    ),
}

WATCH = {
    "port": Option(7002, "port to listen on; 0 for any free port", whole(0, 65_535)),
    "bind": Option("127.0.0.1", "address to listen on; one that other machines can reach needs a token"),
    "token": Option(
        None,
        f"token of clients; new creates one, null uses the variable {WATCH_TOKEN} if it is set",
        text=True,
    ),
    "hosts": Option(
        None, "further host names of this machine that browsers may use, such as hosts=box,box.lan", text=True
    ),
    "cert": Option(None, "PEM file of a certificate, to serve the page over TLS", text=True),
    "key": Option(None, "PEM file of the certificate's private key", text=True),
    "open": Option(False, "open the page in a browser"),
    "runs_folder": Option("runs", "folder of runs given by name; without names, all of its runs are shown"),
    "metrics_folder": Option(
        "metrics", "folder for metrics that clients send; null keeps them in memory only", text=True, null=True
    ),
    "metrics": Option({}, "accept or reject metrics of clients by name, such as metrics={loss: false}"),
    "enable_unknown_metrics": Option(True, "accept metrics that are not listed in metrics"),
    "log": Option(False, "print every number that a client sends"),
}

REPORT = {
    "to": Option(None, "output file; null for report.html in the folder, if one is given, or here", text=True),
    "by": Option(None, "group runs by agent, env, run or settings, such as by=agent,optimizer.name", text=True),
    "metric": Option(
        None, "column of metrics.csv to compare, such as metric=eval/success; null for the return", text=True
    ),
    "csv": Option(
        None, "file for the table of results; --csv without a value writes it next to the page", text=True, empty=True
    ),
    "title": Option(None, "title of the page; null for one derived from the runs", text=True),
    "pictures": Option(True, "include pictures and videos of the run folders"),
    "algorithm": Option(None, "include only runs of this algorithm", text=True),
    "env": Option(None, "include only runs whose environment name contains this text", text=True),
    "state": Option(
        None, "include only runs in this state: running, stopped, finished or failed", one_of(*STATES), text=True
    ),
    "runs_folder": Option("runs", "folder of runs given by name"),
}

COMPARE = {
    "seeds": Option(10, "number of seeds of each agent, trained in parallel in one program", whole(2, 10_000)),
}

FAMILIES = ("on-policy", "off-policy", "evolution", "evolution-guided", "quality-diversity", "population", "baseline")
_JSON = Option(False, "print the records as JSON, with all their fields; --json for short")

ENVS = {
    "library": Option(None, "list only environments of this library, such as library=brax", text=True),
    "agent": Option(None, "list only environments with tuned settings for this agent, such as agent=ppo", text=True),
    "actions": Option(None, "list only environments with these actions: discrete or continuous", one_of(*ACTIONS)),
    "json": _JSON,
}

AGENTS = {
    "family": Option(None, f"list only agents of this family: {', '.join(FAMILIES)}", one_of(*FAMILIES)),
    "discrete": Option(False, "list only agents for discrete actions"),
    "continuous": Option(False, "list only agents for continuous actions"),
    "memory": Option(False, "list only agents whose network can have a recurrent cell"),
    "offline": Option(False, "list only agents that learn from recorded transitions alone"),
    "goals": Option(False, "list only agents that support hindsight experience replay"),
    "json": _JSON,
}

CHECK_ENV = {
    "steps": Option(200, "number of steps of each copy, with random actions", whole(1, 1_000_000)),
    "num_envs": Option(4, "number of copies stepped in parallel", whole(1, 100_000)),
    "max_episode_steps": Option(
        None,
        "time limit of an episode; null for half of the steps if the environment has no limit",
        whole(1, LONGEST_AXIS),
    ),
    "seed": Option(0, "random seed of initial states and actions", SEED),
    "arguments": Option({}, "arguments of the function, such as '{goal_reward: 2.0}'"),
}

CHECK_CLIENT = {
    "bind": Option("127.0.0.1:7001", "address that the client connects to; port 0 chooses a free one"),
    "command": Option("", "command to start for each check; {address} is replaced by the server's address"),
    "only": Option("", "names of the checks to play, separated by commas; * matches any text"),
    "skip": Option("", "names of checks to leave out"),
    "seconds": Option(10.0, "time limit for a connection and for each message", number("(0, 3600]")),
    "to": Option("", "with vectors: file to write instead of printing them"),
}

WORK = {
    "worker": Option(0, "index of this worker, from 0; each index has its own random keys", whole(0, LONGEST_AXIS)),
    "token": Option(None, "token of the server; env:NAME reads an environment variable", text=True),
    "cert": Option(None, "file of the server's TLS certificate; null disables TLS", text=True),
    "profile_dir": Option(None, "folder for trace.json, a profile of the host's time; null disables it", text=True),
    "serve": Option({}, "with env=remote: server for simulators, as in evorl serve, such as serve.bind=127.0.0.1:7001"),
    "trust": Option(
        False, "allow the server to make this worker load code outside evorl; only for servers that you trust"
    ),
}

NEW = {
    "algorithm": Option(
        None, "algorithm, such as algorithm=ppo (or -a ppo); null for one that suits the simulator", text=True
    ),
    "env": Option("bandit", f"simulator (or -e): {_KINDS}; or gymnasium/<id>"),
}

GENERATE = {
    "algorithm": Option(None, "copy this algorithm into the app, so that you can change it (or -a)", text=True),
    "env": Option(None, f"replace the simulator (or -e): {_KINDS}", text=True),
    "docker": Option(False, "write a Dockerfile and compose.yaml, and the wheel of the installed evorl that they use"),
    "file": Option(APP_FILE, "settings file of the app (or -c)"),
}

CONFIG = {
    "algorithm": Option(None, "fill in the settings of this algorithm or experiment (or -a)", text=True),
    "env": Option(None, f"fill in the settings of this simulator (or -e): {_KINDS}", text=True),
    "list": Option(False, "list the algorithms and simulators (or -l); the default without other options"),
    "file": Option(APP_FILE, "settings file of the app (or -c)"),
}

RUN = {
    "n": Option(1, "number of environments in parallel (or -n 4)", whole(1, MAX_PROCESSES)),
    "exploit": Option(False, "the first environment plays greedy actions and is not used for training (--exploit)"),
    "show_ui": Option(False, "the first environment opens a window, if it has one (--show-ui)"),
    "servers": Option(
        None,
        "number of training servers here for a parameter server; null for the app's number",
        _SERVERS,
    ),
    "worker": Option(0, "index of the first of these servers among the servers of all machines", _SERVERS_OF_ALL),
    "file": Option(APP_FILE, "settings file of the app (or -c)"),
}

ACT = {
    "run": Option(None, _RUN, text=True),
    "policy": Option(None, "instead of a run: a file written by evorl export, format=onnx or jax", text=True),
    "runs_folder": Option("runs", "folder that contains the run folders"),
    "checkpoint": Option("best", "checkpoint to use: best, latest or an iteration", checkpoint),
    "sample": Option(False, "sample actions as in training, instead of choosing the greedy ones"),
    "seed": Option(0, "random seed of sampled actions", SEED),
    "seed_number": Option(
        "best", "index of the seed to use, in runs with several; best for the one with the highest score", seed_choice
    ),
    "follow": Option(
        0.0, "check for a newer checkpoint at this interval in seconds, and switch to it; 0 disables", _SECONDS
    ),
    "bind": Option("127.0.0.1:7001", "address and port of the RLX protocol over TCP"),
    "web": Option(
        None, "address and port for WebSocket clients, robots and /healthz; needs the extra serve", text=True
    ),
    "token": Option(None, "token that clients must send; required if other machines can connect", text=True),
    "cert": Option(None, "file of a TLS certificate; null disables TLS", text=True),
    "key": Option(None, "file of the certificate's private key", text=True),
    "max_clients": Option(256, "maximum number of connected clients", whole(1, 100_000)),
    "max_frame": Option(2**24, "maximum size of a message in bytes", whole(64, 2**30)),
    "idle_seconds": Option(
        600.0, "disconnect a client after this many seconds without a message; 0 disables", _SECONDS
    ),
    "trust": Option(False, "allow the run or file to load code outside evorl; only for sources that you trust"),
}

POLICY = {
    "run": Option(None, _RUN, text=True),
    "runs_folder": Option("runs", "folder that contains the run folders"),
    "checkpoint": Option("best", "checkpoint to use: best, latest or an iteration", checkpoint),
    "sample": Option(False, "sample actions as in training, instead of choosing the greedy ones"),
    "seed_number": Option(
        "best", "index of the seed to use, in runs with several; best for the one with the highest score", seed_choice
    ),
    "trust": Option(False, "allow the run to load code outside evorl; only for runs from sources that you trust"),
}

EXPORT = {
    "format": Option(None, f"file format: {', '.join(FORMATS)}, or several, such as onnx,numpy", text=True),
    "to": Option(
        None, "output file, or a folder for several formats; null for the folder export of the run", text=True
    ),
    **POLICY,
}

PACK = {
    "run": Option(None, _RUN, text=True),
    "to": Option(
        None,
        "output file, .zip, or hf://<owner>/<name> to upload it; null for the folder export of the run",
        text=True,
    ),
    "license": Option(None, "license of the policy, for its model card, such as license=apache-2.0", text=True),
    "runs_folder": Option("runs", "folder that contains the run folders"),
    "checkpoint": Option("best", "checkpoint to pack: best, latest or an iteration", checkpoint),
    "trust": Option(False, "allow the run to load code outside evorl; only for runs from sources that you trust"),
}

PLAY = {
    "env": Option(None, "environment, such as gymnasium/CartPole-v1; null for that of the run", text=True),
    "episodes": Option(1, "number of episodes", NUM_EPISODES),
    "seed": Option(0, "random seed of the first episode; later ones count up from it", SEED),
    "max_steps": Option(1000, "maximum number of steps per episode", whole(1, LONGEST_AXIS)),
    "to": Option(None, "output file, .gif or .webp; null for a new one in the folder play of the run", text=True),
    "screen": Option(False, "show a window instead of writing a file, at the environment's own frame rate"),
    "frames": Option(200, "maximum number of frames of the animation", NUM_FRAMES),
    "fps": Option(30, "frames per second", FPS),
    **POLICY,
}
