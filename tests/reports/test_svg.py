"""Figures as parts of a page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from evorl.recorders.learning_curve import tidy
from evorl.reports import svg


def draw(name: str) -> ElementTree.Element:
    with svg.figure_of(3, 2) as figure:
        axes = figure.add_subplot()
        for i, color in enumerate(svg.COLORS):
            axes.plot([0, 1], [0, i + 1 / 3], "o-", color=color)
        axes.set_title("returns & more")
        tidy(axes)
        return svg.as_svg(figure, name, "what is shown")


def test_colors_are_those_of_the_style_sheet() -> None:
    text = ElementTree.tostring(draw("a"), encoding="unicode")
    assert not re.findall(r"#[0-9a-f]{6}\b", text)
    declared = set(re.findall(r"--(\w+):", svg.variables(dark=False)))
    assert set(re.findall(r"var\(--([cri]\d+)\)", text)) <= declared
    assert {f"c{i}" for i in range(len(svg.COLORS))} <= set(re.findall(r"var\(--(\w+)\)", text))
    assert declared == set(re.findall(r"--(\w+):", svg.variables(dark=True)))
    assert svg.variable(svg.COLORS[0]) == "var(--c0)"


def test_every_color_can_be_told_from_its_ground() -> None:
    """On light and dark grounds, lines have a contrast of at least 3 to 1 (WCAG 2.2, 1.4.11), text of 4.5 to 1."""
    for place, grounds in enumerate(zip(*svg.INK.items(), strict=True)):
        ground = grounds[-1]
        assert all(_contrast(pair[place], ground) >= 3 for pair in svg.SERIES.items())
        assert all(_contrast(ink, ground) >= 4.5 for ink in grounds[:2])


def _contrast(a: str, b: str) -> float:
    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_ids_are_of_one_figure_and_words_are_words() -> None:
    first, second = draw("a"), draw("b")
    ids = [node.get("id") for figure in (first, second) for node in figure.iter() if node.get("id")]
    assert len(set(ids)) == len(ids) > 0
    assert all(node.get("href", "#a-").startswith("#a-") for node in first.iter())
    assert "returns & more" in [node.text for node in first.iter("text")]
    assert first.get("aria-label") == "what is shown"
    assert not any("http" in value for node in first.iter() for value in node.attrib.values())


def test_equal_figures_are_equal_to_the_last_sign() -> None:
    assert ElementTree.tostring(draw("a")) == ElementTree.tostring(draw("a"))
