"""The repository follows the rules of English, and each rule fails on a sentence that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plain_english import breaches_of, constructions, docstring, page_breaches, python_breaches, yaml_breaches

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["CHANGELOG.md", "README.md", "CONTRIBUTING.md", "SECURITY.md"]
READ = [*PAGES, "benchmarks", "configs", "docs", "evorl", "examples", "scripts", "tests"]
FILES = sorted(
    path
    for root in READ
    for path in ([ROOT / root] if (ROOT / root).is_file() else sorted((ROOT / root).rglob("*")))
    if path.suffix in {".py", ".md", ".yaml", ".yml"}
)


def test_every_docstring_comment_and_page_is_plain() -> None:
    breaches = {
        f"{path.relative_to(ROOT)}:{breach.line}: {breach.text}" for path in FILES for breach in breaches_of(path)
    }
    assert breaches == set(), "rewrite these, see `python -m tests.plain_english PATH`"


@pytest.mark.parametrize(
    "text",
    [
        "What a run is called.",
        "Whether it is full.",
        "How many there are.",
        "Of all rows the first.",
        "Which one it is.",
        "See ``Env.step``.",
    ],
)
def test_an_opening_bites(text: str) -> None:
    assert "opens with" in docstring(text)[0].text


@pytest.mark.parametrize(
    "text",
    [
        "Return what is told.",
        "Return so many rows.",
        "Return rows of which none is full.",
        "Return the rows; there are none where it has none.",
        "Return a row that stands beside another.",
        "Return all rows but for the last.",
        "Return whatever somebody asked for in words.",
        "Return an error that says why.",
        "Return a copy of its own.",
        "Return what it has.",
        "Initialise the networks.",
        "Return the colours of the lines.",
        "Return the centre of the search.",
        "Raise an error for refused arguments.",
        "Return the command to go on from the checkpoint.",
        "Return a box whose actions are such.",
        "Return a token of 8 characters at least.",
    ],
)
def test_a_construction_bites(text: str) -> None:
    assert constructions(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return the minimum over the ensemble, clipped double Q-learning.",
        'Compute ``told`` and "what is it" from the standard deviation.',
        "Raise an error if the file is no longer there.",
        "Exit if the connection is refused.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert docstring(text) == []


def test_comments_and_fenced_code_are_told_apart() -> None:
    assert [b.line for b in python_breaches('"""A module."""\n\nx = "what is it"  # what is it\n')] == [3]
    assert [b.line for b in yaml_breaches("what: is # fine\nb: 1 # what is it\n")] == [2]
    assert [b.line for b in page_breaches("```\nwhat is it\n```\nIt lies here.\n")] == [4]
