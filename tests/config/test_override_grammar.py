"""Text and Python values in the grammar of overrides are read back as they were."""

from __future__ import annotations

import hypothesis
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import strategies

from evorl.config.override_grammar import as_override, quote, unquote


def parsed(override: str) -> object:
    return OverridesParser.create().parse_override(override).value()


@hypothesis.given(strategies.text(strategies.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
def test_quoted_text_is_read_back(text: str) -> None:
    assert parsed(f"key={quote(text)}") == text
    assert parsed(f"key={as_override(text)}") == text
    assert unquote(quote(text)) == text
