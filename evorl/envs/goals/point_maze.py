"""A goal environment: a point moves through a planar maze to a goal position. Walls stop the point.

A maze is drawn with one character per square cell of side 1: ``#`` is a wall, all other cells are free. ``S`` marks the
start cell and ``F`` the goal cell, which the options ``start=S`` and ``goal=F`` use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl.config.names import no_such
from evorl.config.values import checked_value
from evorl.envs.env import Env, EnvState
from evorl.envs.goals.sparse import MinusOneUntil, Within, full_obs, observed
from evorl.envs.space import Box
from evorl.envs.wrappers.goal import GoalWrapper
from evorl.ops.random import as_typed_key
from evorl.types import Action, Key

MAZES = {
    "open": ("######", "#S   #", "#    #", "#    #", "#   F#", "######"),
    "u": ("#####", "#S  #", "### #", "#F  #", "#####"),
    "rooms": ("#######", "#S #  #", "#     #", "#  #  #", "# ### #", "#  #  #", "#    F#", "#######"),
    "spiral": ("#######", "#S    #", "##### #", "#F  # #", "# ### #", "#     #", "#######"),
}
STEP = 0.25  # maximum distance per step and axis, in cell sides
REACH = 0.35  # distance at which the goal counts as reached, in cell sides
_MARGIN = 0.05  # minimum distance between the point and a wall, in cell sides
_IS_NEAR = Within(REACH)


class MazePositions(Box):
    """Positions ``[2]`` in the free cells of a maze, relative to its center: x to the right, y downwards.

    Args:
        maze: one string per row of cells.
        only: character of the cells that samples come from; ``None`` for all free cells.
    """

    def __init__(self, maze: Sequence[str], only: str | None = None) -> None:
        cells = np.array([list(row) for row in maze])
        self.maze, self.only = tuple(maze), only
        self.is_wall = cells == "#"
        self.middle = np.array(cells.shape[::-1], np.float32) / 2
        rows, columns = np.nonzero(cells != "#" if only is None else cells == only)
        self._corners = np.stack([columns, rows], axis=-1).astype(np.float32) - self.middle
        super().__init__(-self.middle, self.middle)
        self._key = (*self._key, self.maze, only)

    def sample(self, key: jax.Array) -> jax.Array:
        """Return a random position in a free cell; with ``only``, the center of a random cell with this character."""
        cell_key, offset_key = jax.random.split(as_typed_key(key))
        corner = jnp.asarray(self._corners)[jax.random.randint(cell_key, (), 0, len(self._corners))]
        if self.only is not None:
            return corner + 0.5
        return corner + jax.random.uniform(offset_key, (2,), minval=_MARGIN, maxval=1.0 - _MARGIN)

    def contains(self, x: Any) -> jax.Array:
        """Return bools ``[...]``, true where the positions ``x``, ``[..., 2]``, are in free cells."""
        inside = super().contains(x)
        if jnp.shape(x)[-1:] != self.shape:
            return inside
        cell = jnp.floor(jnp.asarray(x) + self.middle).astype(jnp.int32)
        return inside & ~jnp.asarray(self.is_wall)[cell[..., 1], cell[..., 0]]


class PointInMaze(Env):
    """A point in a maze. Actions ``[2]`` in [-1, 1] move it up to ``STEP`` per axis; its position ``[2]`` is observed.

    Rewards are 0, and episodes never end.

    Args:
        positions: positions in the maze, and their distribution at the start of an episode.
    """

    def __init__(self, positions: MazePositions) -> None:
        self.positions = positions

    def _identity(self) -> MazePositions:
        return self.positions

    @property
    def obs_space(self) -> Box:
        """Positions within the outer bounds of the maze, a ``Box`` of shape ``[2]``."""
        return Box(self.positions.low, self.positions.high)

    @property
    def action_space(self) -> Box:
        """Moves along x and y, as fractions of ``STEP``: ``Box(-1, 1)`` of shape ``[2]``."""
        return Box(-1.0, 1.0, (2,))

    def reset(self, key: Key) -> EnvState:
        return observed(self.positions.sample(key))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        """Move the point along x, then along y; each of the two moves stops at a wall."""
        position = env_state.env_state + self.positions.middle
        move = STEP * jnp.clip(action, -1.0, 1.0)
        x = self._moved(position[0], move[0], lambda x: (position[1], x))
        y = self._moved(position[1], move[1], lambda y: (y, x))
        return observed(jnp.stack([x, y]) - self.positions.middle)

    def draw_background(self, axes: Any, of: str, dimensions: tuple[int, ...]) -> None:
        """Draw the walls, for goals and for observations; draw nothing if only one dimension is shown."""
        if sorted(dimensions) != [0, 1]:
            return
        walls = np.ma.masked_equal(self.positions.is_wall.astype(np.float32), 0)
        columns, rows = (np.arange(n + 1) - m for n, m in zip(walls.shape[::-1], self.positions.middle, strict=True))
        if tuple(dimensions) == (0, 1):
            axes.pcolormesh(columns, rows, walls, cmap="Greys", vmin=0, vmax=3, zorder=0)
            axes.invert_yaxis()  # as in the drawing of the maze
        else:
            axes.pcolormesh(rows, columns, walls.T, cmap="Greys", vmin=0, vmax=3, zorder=0)

    def _moved(self, start: jax.Array, move: jax.Array, cell_of: Any) -> jax.Array:
        """Return the coordinate after a move along one axis; ``cell_of`` maps a coordinate to the point (y, x)."""
        end = start + move
        row, column = (jnp.floor(x).astype(jnp.int32) for x in cell_of(end + jnp.sign(move) * _MARGIN))
        at_wall = jnp.where(move > 0, jnp.floor(start) + 1.0 - _MARGIN, jnp.floor(start) + _MARGIN)
        return jnp.where(jnp.asarray(self.positions.is_wall)[row, column], at_wall, end)


def make_point_maze(maze: str | Sequence[str] = "u", start: str = "anywhere", goal: str = "anywhere") -> GoalWrapper:
    """Create a point in a maze, with reward 0 within ``REACH`` of the goal, else -1. Success does not end an episode.

    Args:
        maze: name of one of ``MAZES``, or one string per row of cells, surrounded by walls.
        start: start position, ``"anywhere"`` or ``"S"``, the center of a cell marked ``S``.
        goal: goal position, ``"anywhere"`` or ``"F"``, the center of a cell marked ``F``.

    Raises:
        ValueError: the maze is unknown or not closed; or the start or the goal is unknown, or not marked in the maze.
    """
    if isinstance(maze, str) and maze not in MAZES:
        raise ValueError(no_such("value of env.maze", maze, MAZES))
    rows = _checked_maze(MAZES[maze] if isinstance(maze, str) else maze)
    starts = MazePositions(rows, _only("start", start, "S", rows))
    own_goals = MazePositions(rows, _only("goal", goal, "F", rows))
    return GoalWrapper(
        PointInMaze(starts), MazePositions(rows), full_obs, MinusOneUntil(_IS_NEAR), _IS_NEAR, own_goals=own_goals
    )


def _only(name: str, where: str, mark: str, maze: Sequence[str]) -> str | None:
    if where == "anywhere":
        return None
    if where != mark:
        raise ValueError(no_such(f"value of env.{name}", where, ("anywhere", mark)))
    if not any(mark in row for row in maze):
        raise ValueError(f"env.{name}={mark}, but no cell of env.maze is marked {mark}: mark one, or use anywhere.")
    return mark


def _checked_maze(maze: Sequence[str]) -> tuple[str, ...]:
    rows = checked_value(maze, tuple[str, ...], "env.maze")
    widths = {len(row) for row in rows}
    if len(widths) != 1 or any(not set(row) <= set("# SF") for row in rows):
        raise ValueError(f"env.maze needs rows of equal length with the characters '# SF'; got {list(rows)}.")
    border = [*rows[0], *rows[-1], *(row[0] for row in rows), *(row[-1] for row in rows)]
    if set(border) != {"#"} or all(set(row) == {"#"} for row in rows):
        raise ValueError(f"env.maze needs walls ('#') on its whole border and a free cell; got {list(rows)}.")
    return rows
