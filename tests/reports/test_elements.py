"""Elements of a page, and simplified paths."""

from __future__ import annotations

import pytest

from evorl.reports.elements import as_html, element, table, without_folders


def test_text_is_escaped_and_stands_in_order() -> None:
    page = element(
        "html", element("p", "a < b & ", element("b", "c"), [" d", None, " e"], class_="x", data_y='"'), lang="en"
    )
    assert as_html(page) == (
        '<!DOCTYPE html>\n<html lang="en"><p class="x" data-y="&quot;">a &lt; b &amp; <b>c</b> d e</p></html>\n'
    )


def test_columns_of_words_and_of_numbers() -> None:
    html = as_html(table(["name", "n"], [["a", "1"], ["b", "2"]]))
    assert html.count('<td class="text">') == html.count('<td class="number">') == 2
    assert '<th class="text">name</th><th class="number">n</th>' in html


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("runs_folder=/disk/anna/runs env=gymnax/CartPole-v1", "runs_folder=.../runs env=gymnax/CartPole-v1"),
        ("cannot read '/data/x.npz': gone", "cannot read '.../x.npz': gone"),
        ("resume=runs/ppo/1 a/b/c", "resume=runs/ppo/1 a/b/c"),
        ("1/2 of /x", "1/2 of /x"),
    ],
)
def test_absolute_paths_lose_their_folders(text: str, shown: str) -> None:
    assert without_folders(text) == shown
