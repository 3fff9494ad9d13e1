"""Entry points of ``scripts/*.py`` and of ``evorl-train`` and similar programs: each runs one ``evorl`` subcommand."""

from functools import partial

from evorl.cli import commands

train = partial(commands.main, "train")
evaluate = partial(commands.main, "evaluate")
save_replay = partial(commands.main, "save-replay")
show_episode = partial(commands.main, "show-episode")
