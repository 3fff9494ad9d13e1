"""Entries are replaced, all other lines stay unchanged."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evorl.apps.app_text import as_entry, in_one_line, read_mapping, with_entry, with_values
from tests.support.errors import raises_naming

TEXT = """\
# head
version: 0.1.0 # of evorl

# about the agent
agent: ppo
training: # of it
  agent: {network: {torso: [8]}} # small
  total_timesteps: 10

  # a comment at the end of the section

# about the server
server:
  bind: "127.0.0.1:7001" # here
notes: |
  one
  two
last: [1,
  2]
"""


@pytest.mark.parametrize("name", ["version", "agent", "training", "server", "notes", "last"])
def test_only_the_entry_changes(name: str) -> None:
    changed = with_entry(TEXT, name, f"{name}: new # said\n")
    assert yaml.safe_load(changed) == {**yaml.safe_load(TEXT), name: "new"}
    others = [line for line in TEXT.splitlines() if line.startswith("#") or "a comment at the end" in line]
    assert [line for line in changed.splitlines() if line in others] == others


@pytest.mark.parametrize(
    "value",
    [
        "\n  a: 1\n  b: *x",
        "\n  - 1\n  - *x",
        " *x",
        "\n- 1\n- {c: *x}",
        "\n  {a: 1,\n   b: 2}",
        "\n  a: |+\n    # text\n\n",
        "\n  a: >-\n    folded\n    text",
        "\n  a: plain\n    text\n  b:",
        " &y\n  a: 1",
        " !!map\n  a:\n    b:\n      - 1",
        "\n  ? a\n  : 1",
        ' "quoted\n  text"',
        "",
    ],
)
@pytest.mark.parametrize("rest", ["", "\n# about the last\nlast: 2\n", "\n# at the end\n...\n"])
def test_an_entry_of_any_form_is_replaced_as_a_whole(value: str, rest: str) -> None:
    text = f"first: &x {{a: 1}}\n# about it\ntraining:{value}\n{rest}"
    changed = with_entry(text, "training", "training:\n  new: true")
    assert yaml.safe_load(changed) == {**yaml.safe_load(text), "training": {"new": True}}
    assert [line for line in changed.splitlines() if line.startswith("# a")] == [
        line for line in text.splitlines() if line.startswith("# a")
    ]


WITH_ALIAS = "training: &x {a: 1}\nenvironment: *x\n"


@pytest.mark.parametrize(
    ("text", "name", "parts"),
    [
        ("{agent: ppo, training: {}}", "training", ("app.yaml", "{", "line")),
        ("{agent: ppo, training: {}}", "version", ("app.yaml", "{", "line")),
        ("{}", "training", ("app.yaml", "{", "line")),
        ("{}", "version", ("app.yaml", "{", "line")),
        (WITH_ALIAS, "training", ("app.yaml", "training", "alias")),
    ],
)
def test_a_text_that_would_lose_other_entries_is_refused(text: str, name: str, parts: tuple[str, ...]) -> None:
    with raises_naming(ValueError, *parts):
        with_entry(text, name, f"{name}: 1")


def test_an_entry_is_added_to_a_text_whose_other_entries_have_an_alias() -> None:
    expected = {"training": {"a": 1}, "environment": {"a": 1}, "version": 1}
    assert yaml.safe_load(with_entry(WITH_ALIAS, "version", "version: 1")) == expected


def test_a_new_entry_stands_at_the_end() -> None:
    changed = with_entry("a: 1\n", "b", "b:\n  c: 2\n")
    assert changed == "a: 1\n\nb:\n  c: 2\n"
    assert with_entry(changed, "b", "b: 3") == "a: 1\n\nb: 3\n"


def test_values_of_a_section_change_and_their_comments_stay() -> None:
    section = "environment:\n  n: {n: 4} # the arms\n  name: x\n"
    changed = with_values(section, {"n": "{n: 2}", "other": "1", "name": "'#1'"})
    assert changed == "environment:\n  n: {n: 2} # the arms\n  name: '#1'\n  other: 1\n"


def test_what_is_no_mapping_is_told() -> None:
    with raises_naming(ValueError, "app.yaml", "mapping"):
        read_mapping("- 1", "app.yaml")
    with raises_naming(ValueError, "app.yaml, line 2", "indentation"):
        read_mapping("a: 1\n b: 2", "app.yaml")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, width=32) | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text("abc", min_size=1), below, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_written_is_read_again(value: object) -> None:
    assert yaml.safe_load(as_entry("entry", value)) == {"entry": value}
    assert "\n" not in in_one_line(value)
    changed = with_entry(with_entry(TEXT, "training", as_entry("training", value)), "agent", "agent: sac")
    assert yaml.safe_load(changed) == {**yaml.safe_load(TEXT), "training": value, "agent": "sac"}
