"""Several episodes in one image: positions, durations and captions."""

from __future__ import annotations

import numpy as np
import pytest

from evorl.rendering.tiles import Shown, moments_of, picture_grid

COLORS = [(200, 0, 0), (0, 200, 0), (0, 0, 200), (120, 120, 0), (0, 120, 120)]


def episode(number: int, length: int, seen: list[int] | None = None) -> Shown:
    def draw(moment: int) -> np.ndarray:
        if seen is not None:
            seen.append(moment)
        picture = np.empty((20, 90, 3), np.uint8)
        picture[:] = COLORS[number]
        picture[0, 0] = moment
        return picture

    return Shown(f"e{number}", np.full(length, 0.5, np.float32), draw)


def test_a_caption_tells_time_and_return() -> None:
    shown = episode(0, 4)
    assert shown.caption(1) == "e0  step 1  return 0.500"
    assert shown.caption(4) == "e0  step 4 (end)  return 2.0"
    assert Shown("", np.array([-0.25]), lambda _: np.zeros((1, 1, 3), np.uint8)).caption(1).endswith("return -0.250")


@pytest.mark.parametrize(("number", "grid"), [(1, (1, 1)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3))])
def test_tiles_stand_in_a_grid(number: int, grid: tuple[int, int]) -> None:
    frames = picture_grid([episode(i, 2) for i in range(number)], 9)
    assert frames.shape[0] == 3
    assert frames.shape[1] % 2 == frames.shape[2] % 2 == 0
    height, width = frames.shape[1] / grid[0], frames.shape[2] / grid[1]
    for i in range(number):
        rows, columns = np.nonzero((frames[0] == COLORS[i]).all(axis=-1))
        assert len(rows) == 20 * 90 - 1
        assert (int(rows.mean() / height), int(columns.mean() / width)) == divmod(i, grid[1])
        above = frames[0][rows.min() - 12 : rows.min() - 1, columns.min() : columns.max()]
        assert (above < 100).any()  # caption


def test_who_has_ended_stays_at_the_end_and_is_drawn_no_more() -> None:
    seen: list[int] = []
    shown = [episode(0, 3, seen), episode(1, 12)]
    assert moments_of(shown, 5).tolist() == [0, 3, 6, 9, 12]
    frames = picture_grid(shown, 5)
    assert len(frames) == 5
    assert seen == [0, 0, 3]  # the first call determines the size
    corner = [np.argwhere((frame == COLORS[0]).all(axis=-1))[0] for frame in frames]
    marks = [int(frame[row, column - 1, 0]) for frame, (row, column) in zip(frames, corner, strict=True)]
    assert marks == [0, 3, 3, 3, 3]
    left = frames[:, :, : frames.shape[2] // 2]
    assert (left[1] == left[4]).all()
    assert (left[0] != left[1]).any()


def test_the_first_steps_have_no_end() -> None:
    shown = [episode(0, 3).first(4), episode(1, 12).first(4)]
    assert [each.caption(each.length) for each in shown] == ["e0  step 3 (end)  return 1.5", "e1  step 4  return 2.0"]
    assert moments_of(shown, 5).tolist() == [0, 1, 2, 3, 4]
    ended, cut = (picture_grid([each], 5)[-1][4:14].min() for each in shown)  # darkest letters of the last caption
    assert ended >= 140  # gray
    assert cut < 60
