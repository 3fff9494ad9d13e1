"""Checks flags, and arguments without ``=``, before Hydra parses them; errors suggest the intended setting."""

from __future__ import annotations

from collections.abc import Sequence

from evorl.cli.arguments import FLAGS_WITH_VALUE, SWEEP_FLAGS
from evorl.cli.config_tree import config_folder, config_names
from evorl.config.command_lines import as_arguments, as_setting

PLAN = "--plan"
_CFG = ("--cfg", "-c")
_OTHERS = ("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--info", "-i")
_OTHERS += ("--shell-completion", "-sc")
_GROUPS = ("agent", "env", "experiment")


def refuse_unknown_flags(arguments: Sequence[str]) -> None:
    """Reject unknown flags, flags that exclude each other, and arguments that are not ``name=value``.

    Args:
        arguments: command-line arguments, as the user wrote them.

    Raises:
        ValueError: an argument is rejected; the message suggests what to write instead or what to remove.
    """
    known = (*FLAGS_WITH_VALUE, *_OTHERS, *SWEEP_FLAGS, PLAN)
    words: list[str] = []
    for previous, argument, following in zip(["", *arguments], arguments, [*arguments[1:], ""], strict=False):
        flag = argument.partition("=")[0]
        if previous in FLAGS_WITH_VALUE or (previous in ("--info", "-i") and "=" not in argument):
            continue
        if argument.startswith("-"):
            abbreviated = len(flag) > 3 and any(name.startswith(flag) for name in known)
            if (flag not in known and not abbreviated) or argument.startswith("--run="):
                raise ValueError(f"{argument} is not a flag. A setting is written {as_setting(argument, following)}")
        elif "=" not in argument and not argument.startswith(("~", "+")):
            if previous in ("--run", "-r"):
                raise ValueError(f"{previous} is a Hydra flag. To name a run: {as_setting('--run', argument)}")
            words.append(argument)
    if words:
        raise ValueError(f"{' '.join(map(repr, words))}: settings are name=value, {_meant(words)}.")
    _refuse_two_outputs({argument.partition("=")[0] for argument in arguments})


def _meant(words: Sequence[str]) -> str:
    """Return the end of an error message: settings with the words as values, or an example if that is impossible."""
    folder = config_folder()
    groups = {group: config_names(folder / group) for group in _GROUPS}
    settings = {next((group for group in _GROUPS if word in groups[group]), ""): word for word in words}
    if "" in settings or len(settings) < len(words):
        return "such as agent=ppo env=cartpole seed=3"
    return f"here {as_arguments(settings)}"


def _refuse_two_outputs(flags: set[str]) -> None:
    """Raise ``ValueError`` for ``--cfg`` together with ``--plan`` or ``-m``."""
    if not flags & set(_CFG):
        return
    if PLAN in flags:
        raise ValueError(f"--cfg job prints the settings of a run, and {PLAN} its memory and files: use one of them.")
    if flags & set(SWEEP_FLAGS):
        raise ValueError("--cfg job prints the settings of one run: remove -m, and set each setting to one value.")
