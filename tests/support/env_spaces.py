"""Spaces of the environments with a config, in the form of ``configs/env/_spaces.yaml``.

``python -m tests.support.env_spaces`` creates every environment and writes the file.
"""

from __future__ import annotations

from evorl.cli.config_tree import config_folder, config_names, long_names
from evorl.cli.python_api import make
from evorl.envs.space import Box, DictSpace, Discrete, Space

FILE = config_folder() / "env" / "_spaces.yaml"
# Their spaces are settings.
WITHOUT_SPACES = ("remote", "user")
_COMMENT = """\
# Observation and action spaces that the command evorl envs shows, for the environments with a config. A test compares
# them with the environments; python -m tests.support.env_spaces writes this file.
"""


def described_configs() -> list[str]:
    """Return the configs of environments, without short names."""
    folder = config_folder()
    return [name for name in config_names(folder / "env") if name not in (*long_names(folder), *WITHOUT_SPACES)]


def spaces_of(config: str) -> str:
    """Create an environment and return its spaces: ``Box(4) -> Discrete(2)``."""
    env = make(config)
    try:
        return f"{describe(env.obs_space)} -> {describe(env.action_space)}"
    finally:
        env.close()


def describe(space: Space) -> str:
    """Return a short description: shapes without bounds, and dtypes other than float32."""
    if isinstance(space, Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, DictSpace):
        return f"Dict({', '.join(f'{name}: {describe(member)}' for name, member in space.spaces.items())})"
    assert isinstance(space, Box), f"describe {type(space).__name__} here"
    dtype = "" if space.dtype == "float32" else f", {space.dtype}"
    return f"Box({', '.join(map(str, space.shape))}{dtype})"


if __name__ == "__main__":
    lines = [f"{config}: '{spaces_of(config)}'\n" for config in described_configs()]
    FILE.write_text(_COMMENT + "".join(lines), encoding="utf-8")
