"""Options of the commands that do not compose a Hydra config, for ``evorl <command> --help`` and for completion."""

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
from evorl.config.values import LONGEST_AXIS, seed_choice, short_repr
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
_RUN = "run folder or its name; latest for the run with the newest checkpoint; or file or address of a packed policy"
_RUNS_FOLDER = Option("runs", "folder that is searched for runs given by name or as latest", path=True)
_CHECKPOINT = "checkpoint: best (highest score; latest if none has a score), latest, or an iteration number"
_SEED_NUMBER = "with several seeds: index of the seed, from 0; or best, the seed with the highest evaluation return"
_TRUST = "allow code outside evorl that the run's config names; only for runs from sources that you trust"
_FILE = Option(APP_FILE, "settings file of the app; short form: -c", path=True)


def _cells(value: Any, name: str) -> int | list[int]:
    """Return a number of elites, or a list of cells, as integers; raise ``ValueError`` for anything else."""
    numbers = value if isinstance(value, list) else [value]
    try:
        cells = [whole(0, LONGEST_AXIS)(number, name) for number in numbers]
        if not 1 <= len(cells) <= MAX_ELITES or (value is not numbers and cells[0] > MAX_ELITES):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{name} must be a number of elites from 0 to {MAX_ELITES:,}, or a list of 1 to {MAX_ELITES:,} cells, "
            f"as in {name}=[3,17]; got {short_repr(value)}."
        ) from None
    return cells if value is numbers else cells[0]


RENDER = {
    "run": Option(None, _RUN, text=True),
    "runs_folder": _RUNS_FOLDER,
    "episodes": Option(3, "number of episodes, shown together in one file; each elite plays only one", NUM_EPISODES),
    "format": Option(
        "webp",
        f"file format: {', '.join(RENDER_FORMATS)}; if not set, the suffix of to= decides; mp4 needs the extra video",
        one_of(*RENDER_FORMATS),
    ),
    "to": Option(None, "output file; null for a file in the folder videos/ of the run", path=True),
    "frames": Option(100, "maximum number of frames; in longer episodes, evenly spaced steps are shown", NUM_FRAMES),
    "steps": Option(None, "maximum number of steps drawn of each episode; null draws all", whole(1, LONGEST_AXIS)),
    "fps": Option(20, "frames per second", FPS),
    "size": Option(240, "height of each episode's image, in pixels", PIXELS),
    "checkpoint": Option("best", _CHECKPOINT, checkpoint),
    "cells": Option(
        None,
        "for a run with an archive: number of elites, or a list of cells; null for 9 elites, 0 for the best policy",
        _cells,
    ),
    "seed": Option(
        None, "random seed of the episodes; null replays the first episodes of the checkpoint's evaluation", SEED
    ),
    "seed_number": Option("best", _SEED_NUMBER, seed_choice),
    "trust": Option(False, _TRUST),
}

SHOW_EPISODE = {
    "episode": Option(None, "file of the episode, .npz or .json", path=True),
    "run": Option(None, "instead of episode=: run folder, or latest, to draw its last saved episode", text=True),
    "runs_folder": _RUNS_FOLDER,
    "to": Option(None, "output file; null for a .gif next to the episode (a .png without MuJoCo positions)", path=True),
    "frames": Option(50, "maximum number of frames; in a longer episode, evenly spaced steps are shown", NUM_FRAMES),
    "size": Option(320, "width and height of the animation, in pixels", PIXELS),
    "trust": Option(False, "allow code outside evorl that the episode names; only for files that you trust"),
}

RUNS = {
    "sort": Option(
        "newest", "order by newest, return (last), best (return) or steps, descending; or run, algorithm, env or state"
    ),
    "algorithm": Option(None, "list only runs of this algorithm, such as algorithm=ppo (case-insensitive)", text=True),
    "env": Option(None, "list only runs whose environment name contains this text (case-insensitive)", text=True),
    "state": Option(
        None, "list only runs in this state: running, stopped, finished or failed", one_of(*STATES), text=True
    ),
}

WATCH = {
    "port": Option(7002, "port to listen on; 0 for any free port", whole(0, 65_535)),
    "bind": Option("127.0.0.1", "address to listen on; an address that other machines can reach needs a token"),
    "token": Option(
        None, f"token of clients, at least 16 characters; token=new generates one, null uses ${WATCH_TOKEN}", text=True
    ),
    "hosts": Option(
        None, "host names, other than localhost, that browsers may use, such as hosts=box,box.lan", text=True
    ),
    "cert": Option(None, "PEM file of a TLS certificate, used with key; null serves the page without TLS", path=True),
    "key": Option(None, "PEM file of the certificate's private key", path=True),
    "open": Option(False, "open the page in a browser"),
    "runs_folder": Option("runs", "folder of runs given by name; without names, all its runs are shown", path=True),
    "metrics_folder": Option(
        "metrics", "folder for metrics that clients send; null keeps them in memory only", path=True, null=True
    ),
    "metrics": Option({}, "accept (true) or reject (false) metrics of clients by name: metrics='{loss: false}'"),
    "enable_unknown_metrics": Option(True, "accept metrics that are not listed in metrics"),
    "log": Option(False, "print a line for each number or histogram that a client sends"),
}

REPORT = {
    "to": Option(None, "output file; null for report.html in the folder if only one is given, else here", path=True),
    "by": Option(
        None, "group by agent, env, run or settings such as optimizer.name; null for agent and what differs", text=True
    ),
    "metric": Option(None, "column of metrics.csv to compare, such as eval/success; null for the return", text=True),
    "csv": Option(
        None, "file for the result table; --csv alone writes it next to the page, null omits it", path=True, empty=True
    ),
    "title": Option(None, "title of the page; null for one derived from the runs", text=True),
    "pictures": Option(True, "include images and videos of the run folders, up to a page size of 3 MB"),
    "algorithm": Option(None, "include only runs of this algorithm (case-insensitive)", text=True),
    "env": Option(None, "include only runs whose environment name contains this text (case-insensitive)", text=True),
    "state": Option(
        None, "include only runs in this state: running, stopped, finished or failed", one_of(*STATES), text=True
    ),
    "runs_folder": _RUNS_FOLDER,
}

COMPARE = {"seeds": Option(10, "number of seeds of each agent, trained in parallel in one program", whole(2, 10_000))}

FAMILIES = ("on-policy", "off-policy", "evolution", "evolution-guided", "quality-diversity", "population", "baseline")
_JSON = Option(False, "print JSON with more properties instead of a table; --json is short for json=true")

ENVS = {
    "library": Option(None, "list only environments of this library, such as library=brax", text=True),
    "agent": Option(None, "list only environments with tuned settings for this agent, such as agent=ppo", text=True),
    "actions": Option(None, "list only environments with this kind of actions, if it is known", one_of(*ACTIONS)),
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
    "steps": Option(200, "number of steps of each copy of the environment, with random actions", whole(1, 1_000_000)),
    "num_envs": Option(4, "number of copies of the environment that are stepped in parallel", whole(1, 100_000)),
    "max_episode_steps": Option(
        None,
        "time limit in steps; null for the environment's own, or half of steps= if a JAX environment has no limit",
        whole(1, LONGEST_AXIS),
    ),
    "seed": Option(0, "random seed of initial states and actions", SEED),
    "arguments": Option({}, "arguments of the function that creates the environment, such as '{goal_reward: 2.0}'"),
}

CHECK_CLIENT = {
    "bind": Option("127.0.0.1:7001", "local address that the client connects to; port 0 chooses a free port"),
    "command": Option("", "command that starts the client, once per check; {address} is replaced by the address"),
    "only": Option("", "comma-separated names of the checks to run; * matches any text; empty for all"),
    "skip": Option("", "names of checks to skip, in the same format as only="),
    "seconds": Option(10.0, "timeout for the connection and for each message, in seconds", number("(0, 3600]")),
    "to": Option("", "for evorl check-client vectors: output file of the test vectors; empty prints them", path=True),
}

WORK = {
    "worker": Option(0, "unique index of this worker, from 0; it selects the random keys", whole(0, LONGEST_AXIS)),
    "token": Option(None, "token of the server; env:NAME reads it from an environment variable", text=True),
    "cert": Option(None, "CA certificate (PEM file) that verifies the server; null connects without TLS", path=True),
    "profile_dir": Option(
        None, "folder for trace.json, a Chrome trace of this worker's operations on the host; null for none", path=True
    ),
    "serve": Option({}, "with env=remote: settings of the server for simulators, such as serve.bind=127.0.0.1:7001"),
    "trust": Option(
        False, "allow the server to make this worker load code outside evorl; only for servers that you trust"
    ),
}

NEW = {
    "algorithm": Option(None, "algorithm, such as ppo; null for the simulator's default; short form: -a", text=True),
    "env": Option("bandit", f"simulator: {_KINDS}; or gymnasium/<id>; short form: -e"),
}

GENERATE = {
    "algorithm": Option(None, "algorithm to copy into the app, where you can change it; short form: -a", text=True),
    "env": Option(None, f"simulator that replaces the current one: {_KINDS}; short form: -e", text=True),
    "docker": Option(False, "write a Dockerfile and compose.yaml, and the wheel of the installed evorl that they use"),
    "file": _FILE,
}

CONFIG = {
    "algorithm": Option(
        None, "algorithm, or tuned experiment, to write with its settings into file=; short form: -a", text=True
    ),
    "env": Option(None, f"simulator to write with its settings into file=: {_KINDS}; short form: -e", text=True),
    "list": Option(False, "only list the algorithms and simulators, the default without options; short form: -l"),
    "file": _FILE,
}

RUN = {
    "n": Option(1, "number of simulators in parallel; short form: -n 4", whole(1, MAX_PROCESSES)),
    "exploit": Option(False, "the first simulator plays greedy actions, without training; short form: --exploit"),
    "show_ui": Option(False, "the first simulator opens a window, if it has one; short form: --show-ui"),
    "servers": Option(
        None,
        "with a parameter server: number of training servers on this machine; null for parameters.servers",
        _SERVERS,
    ),
    "worker": Option(
        0, "with a parameter server: index of the first server here, counted from 0 over all machines", _SERVERS_OF_ALL
    ),
    "file": _FILE,
}

POLICY = {
    "run": Option(None, _RUN, text=True),
    "runs_folder": _RUNS_FOLDER,
    "checkpoint": Option("best", _CHECKPOINT, checkpoint),
    "sample": Option(False, "sample actions as in training, instead of greedy actions"),
    "seed_number": Option("best", _SEED_NUMBER, seed_choice),
    "trust": Option(False, _TRUST),
}

ACT = {
    **POLICY,
    "policy": Option(None, "instead of a run: a file that evorl export wrote with format=onnx or jax", path=True),
    "seed": Option(0, "random seed of sampled actions", SEED),
    "follow": Option(0.0, "seconds between searches for a newer checkpoint to serve; 0 disables", _SECONDS),
    "bind": Option("127.0.0.1:7001", "address and port of the RLX protocol over TCP"),
    "web": Option(
        None, "address and port for WebSocket clients, robots, /healthz and /metrics; needs the extra serve", text=True
    ),
    "token": Option(
        None, "client token; env:NAME reads an environment variable; required if other machines can connect", text=True
    ),
    "cert": Option(None, "PEM file of a TLS certificate, used with key; null disables TLS", path=True),
    "key": Option(None, "PEM file of the certificate's private key", path=True),
    "max_clients": Option(256, "maximum number of connected clients", whole(1, 100_000)),
    "max_frame": Option(2**24, "maximum size of a message in bytes", whole(64, 2**30)),
    "idle_seconds": Option(600.0, "seconds after which a silent client is disconnected; 0 disables", _SECONDS),
    "trust": Option(False, "allow the run or file to load code outside evorl; only for sources that you trust"),
}

EXPORT = {
    "format": Option(None, f"required: {', '.join(FORMATS)}, or several, such as onnx,numpy", text=True),
    "to": Option(None, "output file, or a folder if it has no suffix; null for export/ in the run folder", path=True),
    **POLICY,
}

PACK = {
    "run": Option(None, _RUN, text=True),
    "to": Option(
        None,
        "output file, .zip; or hf://<owner>/<name> to upload it; null for export/policy.zip in the run folder",
        path=True,
    ),
    "license": Option(None, "license to state in the model card, such as license=apache-2.0; null for none", text=True),
    "runs_folder": _RUNS_FOLDER,
    "checkpoint": Option("best", _CHECKPOINT, checkpoint),
    "trust": Option(False, _TRUST),
}

PLAY = {
    "env": Option(None, "Gymnasium environment, such as gymnasium/CartPole-v1; null for the run's own", text=True),
    "episodes": Option(1, "number of episodes", NUM_EPISODES),
    "seed": Option(0, "seed of the first episode; each later episode adds 1", SEED),
    "max_steps": Option(1000, "maximum number of environment steps per episode", whole(1, LONGEST_AXIS)),
    "to": Option(None, "output .gif, .webp, .png or .mp4; null for a .gif in the folder play/ of the run", path=True),
    "screen": Option(False, "show a window, at the environment's frame rate, instead of writing a file"),
    "frames": Option(200, "maximum number of frames; if there are more, evenly spaced ones are shown", NUM_FRAMES),
    "fps": Option(30, "environment steps shown per second", FPS),
    **POLICY,
}
