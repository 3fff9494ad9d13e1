"""Tab completion prints candidates for every command, and nothing else for any input."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evorl.cli.catalogs import list_envs
from evorl.cli.command_table import COMMANDS
from evorl.cli.completion import candidates, complete_from_arguments
from tests.support.errors import raises_naming

ROOT = Path(__file__).resolve().parents[2]
TYPED = st.lists(
    st.sampled_from(
        ["evorl", "train", "act", "run", "evaluate", "agent=sac", "env=", "agent=zzz", "'", '"', "=", "a,b", ""]
    )
    | st.text(max_size=6),
    max_size=4,
).map(" ".join)


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("evorl ", ["train", "act", "runs", "--help"]),
        ("evorl serve-", ["serve-parameters"]),
        ("evorl train agent=p", ["agent=ppo", "agent=pqn", "agent=pqn_continuous", "agent=pqn_recurrent"]),
        ("evorl train agent=ppo,sa", ["agent=ppo,sac"]),
        ("evorl train env=go", ["env=goal/reacher"]),
        ("evorl train env=gymnasium", ["env=gymnasium/"]),
        ("evorl train agent=sac replay_c", ["replay_capacity="]),
        ("evorl train agent.", ["agent.clip_epsilon=", "agent.network."]),
        ("evorl train agent=sac agent.te", ["agent.temperature="]),
        ("evorl train recorders.progress=", ["recorders.progress=true", "recorders.progress=false"]),
        ("evorl train resume=", ["resume=latest"]),
        ("evorl evaluate eval_e", ["eval_episodes="]),
        ("evorl act trust=", ["trust=true", "trust=false"]),
        ("evorl render format=g", ["format=gif"]),
        ("evorl render checkpoint=", ["checkpoint=best", "checkpoint=latest"]),
        ("evorl runs state=f", ["state=finished", "state=failed"]),
        ("evorl run serv", ["server", "servers="]),
        ("evorl env", ["envs"]),
        ("evorl envs goal", ["goal/reacher"]),
        ("evorl envs actions=", ["actions=discrete", "actions=continuous"]),
        ("evorl envs agent=pp", ["agent=ppo"]),
        ("evorl agents m", ["memory=", "meta/pbt"]),
        ("evorl agents family=off", ["family=off-policy"]),
        ("evorl compare ppo s", ["sac", "seeds=", "seed="]),
        ("evorl compare ppo sac env=p", ["env=pendulum"]),
    ],
)
def test_what_fits_is_offered(line: str, some: list[str]) -> None:
    found = candidates(line)
    assert set(some) <= set(found)
    assert all(candidate.startswith(line.rpartition(" ")[2]) for candidate in found)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_offers_its_options(name: str) -> None:
    found = candidates(f"evorl {name} ")
    assert {f"{option}=" for option in COMMANDS[name].options} <= set(found)
    assert "--help" in found
    assert not [candidate for candidate in found if candidate.startswith(("_", "hydra"))]


def test_every_library_is_offered() -> None:
    libraries = {env.library for env in list_envs()} - {"remote", "user"}
    assert candidates("evorl envs library=") == [f"library={name}" for name in sorted(libraries)]


@settings(max_examples=60)
@given(TYPED)
def test_nothing_but_candidates_is_printed_whatever_was_typed(line: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_LINE", line.replace("\0", ""))
        printed: list[str] = []
        patch.setattr(sys, "stdout", type("Kept", (), {"write": printed.append, "flush": lambda: None}))
        complete_from_arguments(["-sc", "query=bash"])
    for text in "".join(printed).splitlines():
        assert " " not in text.strip() or "," in text
        assert "Error" not in text


@pytest.mark.parametrize("arguments", [["-sc"], ["-sc", "install=tcsh"], ["-sc", "remove=bash"], ["-sc", "query="]])
def test_another_action_or_shell_is_refused(arguments: list[str]) -> None:
    with raises_naming(ValueError, "bash, zsh, fish", "eval"):
        complete_from_arguments(arguments)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_shells_are_read_by_them(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    complete_from_arguments(["train", "-sc", f"install={shell}"])
    script = capsys.readouterr().out
    assert f"query={shell} 2>/dev/null" in script
    complete_from_arguments(["--shell-completion", f"uninstall={shell}"])
    assert capsys.readouterr().out
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=True)
        assert not done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_word_and_prints_nothing_else() -> None:
    program = f"{sys.executable} -c 'from evorl.cli.commands import main; main()'"
    script = f"""
evorl() {{ {program} "$@"; }}
eval "$(evorl -sc install=bash)"
for COMP_LINE in 'evorl act tru' 'evorl wat' 'evorl runs state=f' 'evorl nonsense a'; do
    COMP_POINT=${{#COMP_LINE}}
    _evorl
    printf '[%s]' "${{COMPREPLY[@]}}"
done
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout == "[trust=][watch ][state=failed ][state=finished ][]"
    assert not done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_words(tmp_path: Path) -> None:
    assert _in_shell("fish", FISH, tmp_path) == f"{COMPLETED}run={ROOT}/tests/support/ "


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_words(tmp_path: Path) -> None:
    assert _in_shell("zsh", ZSH, tmp_path) == COMPLETED


COMPLETED = "envs agent=pqn,agent=pqn_continuous,agent=pqn_recurrent goal/bit_flip "
LINES = ("evorl env", "evorl train agent=pq", "evorl envs goal/b")
FISH = f"""
evorl -sc install=fish | source
for line in {shlex.join(LINES)} 'evorl act run={ROOT}/tests/supp'
    printf '%s ' (string join , (complete -C $line))
end
"""
ZSH = f"""
compdef() {{ :; }}
compadd() {{ shift 3; printf '%s ' "${{(j:,:)@}}"; }}
eval "$(evorl -sc install=zsh)"
for line in {shlex.join(LINES)}; do
    words=("${{(@s: :)line}}") CURRENT=${{#words}}
    _evorl
done
"""


def _in_shell(shell: str, script: str, folder: Path) -> str:
    """Run a script in a shell without the user's files, where the command ``evorl`` is this checkout."""
    command = folder / "evorl"
    program = "from evorl.cli.commands import main; main()"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(program)} "$@"\n')
    command.chmod(0o755)
    option = "--no-config" if shell == "fish" else "--no-rcs"
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([shell, option, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return done.stdout
