"""Table of the subcommands of ``evorl``; the module of a command is imported when the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from evorl.cli import options
from evorl.cli.command_options import Option


class Command(NamedTuple):
    """A subcommand of ``evorl``.

    Attributes:
        description: purpose of the command, one sentence.
        usage: synopsis of the arguments.
        runs: ``module:function``, imported when the command runs; receives the arguments. Its errors are printed, see
            ``evorl.cli.errors``.
        options: options by name; empty if the command instead accepts settings of a run, composed or stored.
        working: line printed on standard error if the command takes more than a second; empty for no line.
    """

    description: str
    usage: str
    runs: str
    options: Mapping[str, Option] = MappingProxyType({})
    working: str = ""


COMMANDS: dict[str, Command] = {
    "train": Command(
        "Train an agent, or resume a run.",
        "[agent=ppo] [env=cartpole] [resume=<run>|latest] [setting=value ...]",
        "evorl.cli.train:train",
    ),
    "envs": Command(
        "List environments, with their spaces and the agents that have tuned settings for them.",
        "[<part of a name>] [library=brax] [agent=ppo] [actions=discrete|continuous]",
        "evorl.cli.listings:list_envs_from_arguments",
        options.ENVS,
    ),
    "agents": Command(
        "List agents, with their families, action spaces, abilities and documentation.",
        "[<part of a name>] [family=off-policy] [discrete=true] [continuous=true] [memory=true] [goals=true]",
        "evorl.cli.listings:list_agents_from_arguments",
        options.AGENTS,
    ),
    "serve": Command(
        "Train with simulators that connect over the network.",
        "[agent=ppo] [env=remote] env.obs_space='{shape: [4]}' env.action_space='{n: 2}' [serve.bind=127.0.0.1:7001]",
        "evorl.cli.train:serve",
    ),
    "act": Command(
        "Serve the actions of a trained policy to simulators, games and robots over the network.",
        "run=<run>|latest|policy=<file> [bind=127.0.0.1:7001] [web=127.0.0.1:7003]",
        "evorl.cli.act:act_from_arguments",
        options.ACT,
    ),
    "serve-parameters": Command(
        "Run a parameter server, which combines the updates of workers in other processes.",
        "[agent=a2c] [env=cartpole] [parameters.mode=averaging] [parameters.bind=127.0.0.1:7000] [resume=<run>|latest]",
        "evorl.cli.train:serve_parameters",
    ),
    "work": Command(
        "Run a worker of a parameter server.",
        "<address> [worker=0] [token=env:NAME] [serve.bind=127.0.0.1:7001]",
        "evorl.cli.work:work_from_arguments",
        options.WORK,
    ),
    "evaluate": Command(
        "Evaluate the best checkpoint of a run on complete episodes.",
        "run=<run>|latest [eval_episodes=10] [seed=0]",
        "evorl.cli.evaluation:evaluate",
        working="Evaluating: loading the run and compiling ...",
    ),
    "save-replay": Command(
        "Write the replay buffer of a run to a file.",
        "run=<run>|latest",
        "evorl.cli.save_replay:save_replay",
        working="Loading the checkpoint ...",
    ),
    "render": Command(
        "Play episodes with the best policy of a run and write an animation.",
        "run=<run>|latest [episodes=3] [format=webp|gif|png|mp4|html]",
        "evorl.cli.render:render_from_arguments",
        options.RENDER,
        "Rendering: loading the run, compiling and playing ...",
    ),
    "show-episode": Command(
        "Draw a recorded episode: an animation if it has MuJoCo positions, otherwise a plot of its trajectory.",
        "episode=<file> | run=<run>|latest",
        "evorl.cli.show_episode:show_episode_from_arguments",
        options.SHOW_EPISODE,
        "Drawing the episode ...",
    ),
    "runs": Command(
        "List runs with their progress, and show which can be resumed.",
        "[<folder>] [sort=return] [algorithm=ppo] [env=cartpole] [state=finished]",
        "evorl.cli.runs:list_runs",
        options.RUNS,
    ),
    "watch": Command(
        "Serve a live page of runs, and receive metrics from clients.",
        "[<run>|latest|<folder> ...] [port=7002] [bind=127.0.0.1] [token=new] [open=true]",
        "evorl.cli.watch:watch_runs",
        options.WATCH,
    ),
    "report": Command(
        "Write an HTML report of a run, or a comparison of several.",
        "<run>|latest|<folder> ... [by=agent] [to=report.html] [csv=table.csv]",
        "evorl.cli.report:write_report",
        options.REPORT,
        "Reading the runs and drawing the charts ...",
    ),
    "compare": Command(
        "Train several agents on the same seeds, and report which one is better and how certain that is.",
        "<agent> <agent> ... [env=cartpole] [seeds=10] [setting=value ...] | resume=<folder>",
        "evorl.cli.compare:compare",
        options.COMPARE,
    ),
    "export": Command(
        "Export the policy of a run to a file that runs without evorl, and verify it.",
        "run=<run>|latest format=onnx|jax|numpy|html",
        "evorl.cli.export:export_from_arguments",
        options.EXPORT,
        "Exporting: loading the run, compiling and comparing with JAX ...",
    ),
    "pack": Command(
        "Write the trained policy of a run to one file with its model card, to share it.",
        "run=<run>|latest [to=<file>.zip|hf://<owner>/<name>] [license=<name>]",
        "evorl.cli.pack:pack_from_arguments",
        options.PACK,
    ),
    "play": Command(
        "Play a Gymnasium environment with the policy of a run, as an animation or in a window.",
        "run=<run>|latest [env=gymnasium/<id>]",
        "evorl.cli.play:play_from_arguments",
        options.PLAY,
        "Playing: loading the run and compiling ...",
    ),
    "check-env": Command(
        "Check a custom environment for errors, and step it with random actions.",
        "<module>:<function> [steps=200] [arguments={...}]",
        "evorl.cli.env_check:check_env_from_arguments",
        options.CHECK_ENV,
        "Checking: compiling and stepping the environment ...",
    ),
    "check-client": Command(
        "Test a client of the RLX protocol with scripted exchanges, or print the protocol's test vectors.",
        "[command='node client.js {address}'] [bind=127.0.0.1:7001] [only=answer-*] | vectors [to=vectors.json]",
        "evorl.cli.client_check:check_client_from_arguments",
        options.CHECK_CLIENT,
    ),
    "new": Command(
        "Create an app: a folder with a simulator in plain Python and one settings file.",
        "<folder> [algorithm=<name>] [env=bandit|gymnasium|gymnasium/<id>|vizdoom|deepmind-lab|empty]",
        "evorl.cli.app_commands:new_from_arguments",
        options.NEW,
    ),
    "generate": Command(
        "Rewrite a part of an app: its simulator, a custom algorithm, or container files.",
        "[algorithm=<name>] [env=<simulator>] [docker=true]",
        "evorl.cli.app_commands:generate_from_arguments",
        options.GENERATE,
    ),
    "config": Command(
        "List the algorithms and simulators for apps, or write one with its settings into app.yaml.",
        "[algorithm=<name>|<experiment>] [env=<simulator>] [list=true]",
        "evorl.cli.app_commands:config_from_arguments",
        options.CONFIG,
    ),
    "run": Command(
        "Run an app: training server, simulators and live page, until the simulators have finished.",
        "[all|server|environment|metrics|parameters] [-n 4] [--exploit] [--show-ui] [setting=value ...]",
        "evorl.cli.app_run:run_from_arguments",
        options.RUN,
    ),
}
