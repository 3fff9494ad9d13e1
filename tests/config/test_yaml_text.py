"""User YAML: numbers as on Hydra's command line, and errors that name file, line and advice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from evorl.config.yaml_text import MAX_DEPTH, dump_yaml, read_text_file, read_yaml
from tests.support.errors import raises_naming

PARSER = OverridesParser.create()
NUMBER_LIKE = st.from_regex(r"\A[-+]?[0-9_.]{0,6}([eE][-+]?[0-9_]{0,3})?\Z")
SPELLINGS = "1e3 1e-3 1E6 +1e6 .5 -.5 1_000 1_000.5 1. 5.e3 .5e3 1e1_0 007 0x10 1:30 1__0 1_ e3 1e 2026-01-31 inf -inf"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def as_override(text: str) -> object:
    """Parse a value as Hydra does on the command line."""
    return PARSER.parse_override(f"a={text}").value()


def same(first: object, second: object) -> bool:
    """Compare values with their types; nan equals nan."""
    both_nan = isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second)
    return both_nan or (type(first) is type(second) and first == second)


@pytest.mark.parametrize("text", SPELLINGS.split())
def test_spellings_of_numbers_are_read_as_on_the_command_line(text: str) -> None:
    assert same(read_yaml(f"a: {text}", "f.yaml")["a"], as_override(text))
    assert same(read_yaml(text, "a"), as_override(text))
    assert same(read_yaml(f"[{text}]", "a")[0], as_override(text))


@pytest.mark.parametrize("sign", ["", "+", "-"])
@pytest.mark.parametrize("name", "nan NaN NAN inf Inf INF".split())
def test_special_numbers_are_read_in_every_case_with_and_without_a_dot(name: str, sign: str) -> None:
    for text in (sign + name, f"{sign}.{name}"):
        assert same(read_yaml(f"[{text}]", "a")[0], float(sign + name))


@given(NUMBER_LIKE.filter(lambda text: text.strip("-+_.") != ""))
def test_any_text_that_resembles_a_number_is_read_as_on_the_command_line(text: str) -> None:
    assert same(read_yaml(f"a: {text}", "f.yaml")["a"], as_override(text))


@given(PLAIN)
def test_values_that_are_written_are_read_back(value: object) -> None:
    assert read_yaml(dump_yaml(value, allow_unicode=True), "f.yaml") == value
    assert read_yaml(dump_yaml({"a": value}, default_flow_style=True), "f.yaml") == {"a": value}


@given(st.text(max_size=40) | st.from_regex(r"\A[-{}\[\]a:,&*!#|>'\"\n\t ?%@]{0,20}\Z"))
def test_no_text_has_another_error_than_one_sentence(text: str) -> None:
    message = None
    try:
        read_yaml(text, "f.yaml")
    except ValueError as error:
        message = str(error)
    assert message is None or (message.startswith("f.yaml") and "\n" not in message)


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("a:\n\tb: 1", 2, ["tab", "spaces"]),
        ("a: 1\nb: 2\na: 2", 3, ["'a'", "twice"]),
        ("a: {b: 1,\n  b: 2}", 2, ["'b'", "twice"]),
        ("a: 1\n b: 2", 2, ["indentation"]),
        ("a:\n  - 1\n - 2", 3, ["indentation"]),
        ("a: [1, 2", 1, ["brackets"]),
        ("a: 1\nb: !!python/object:os.system x", 2, ["tag"]),
        ("a: 1\nb: *c", 2, ["alias"]),
        ("a: &b\n  - *b", 2, ["contains itself"]),
        ("a:\n ? [1]\n : 2", 2, ["key"]),
        ("a: 1\nb: \x01", 2, ["control character"]),
        ("a: 1\nb: " + "9" * 5000, 2, ["digits", "4,000"]),
        ("[" * (MAX_DEPTH + 2), 1, ["levels"]),
        ("[" * 100_000, 1, ["levels"]),
    ],
)
def test_errors_name_file_line_and_remedy(text: str, line: int, parts: list[str], tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(text, encoding="utf-8")
    with raises_naming(ValueError, f"{file}, line {line}", *parts):
        read_yaml(read_text_file(file), str(file))


def test_a_value_of_the_command_line_is_named_as_it_was_given() -> None:
    with raises_naming(ValueError, "arguments={a: [}"):
        read_yaml("{a: [}", "arguments={a: [}")


def test_files_that_cannot_be_read_are_refused_with_their_path(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\n")
    for path, parts in {
        tmp_path / "missing.yaml": ["no file", "missing.yaml"],
        tmp_path: ["is a folder"],
        binary: ["line 2", "0xff", "UTF-8"],
        tmp_path / "a\0b": ["cannot be read"],
    }.items():
        with raises_naming(ValueError, *parts):
            read_yaml(read_text_file(path, "an app's settings"), str(path))


def test_files_of_other_editors_are_read_alike(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_bytes("a: é\r\nb: 1e3\r\n".encode("utf-8-sig"))
    assert read_text_file(file) == "a: é\nb: 1e3\n"
    assert read_yaml(read_text_file(file), str(file)) == {"a": "é", "b": 1000.0}
