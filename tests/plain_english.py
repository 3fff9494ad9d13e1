"""Rules of English for docstrings, comments, settings and pages: banned openings and banned constructions.

``python -m tests.plain_english PATH ...`` prints each breach; the tests hold the rules over the repository.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# A docstring names its subject first, or opens with a verb.
_OPENINGS = re.compile(r"(What|Who|Whose|Whether|How|Where|Which|Of|That|See ``)\b")
# Each is unidiomatic in technical English, or hides the field's term.
_CONSTRUCTIONS = (
    r"\b(?:told|said)\b",
    r"\bsays?\b(?! \")",
    r"\basked of\b",
    r"\bin words\b",
    r"\bso (?:many|much)\b",
    r"\bas there (?:is|are)\b",
    r"\b(?:has|have|is|are) none\b",
    r"\b(?:is|are) no (?!longer|more|less|better|faster|worse)",
    r"\bof (?:which|whom|those that|nobody|somebody)\b",
    r"\b(?:whoever|whomever|nobody|somebody|whatever|whichever)\b",
    r"\bstands?\b(?!-|ard| for)",
    r"\blies?\b",
    r"\bgoes\b",
    r"\bbeside\b",
    r"\bbut for\b",
    r"\bcomes? to\b",
    r"\b(?:is|are) taken\b",
    r"\b(?:anew|thereof|therein|alike|likewise)\b",
    r"\bat the latest\b",
    r"\bneed not\b",
    r"\bmay be left out\b",
    r"\bto be had\b",
    r"\bof (?:its|their|one's|his) own\b",
    r"\bof it\b",
    r"\bhand(?:s|ed) (?:it|them|over|to)\b",
    r"\bas (?:it is|they are)\b(?! used)",
    r"\bthe one (?:of|that)\b",
    r"\bwhat (?:is|are|was|were|it|they|a|an|the|one|its|has|have|does|each|every|all|comes|came|would)\b",
    r"\bof what\b",
    r"\bwho\b",
    r"\b(?:these|those) (?:of|that|which|who)\b",
    r"\bby it\b",
    # One spelling, the American one.
    r"\w*(?:colour|behaviour|favour|neighbour|artefact|labelled|labelling|judgement)\w*",
    (
        r"\b(?:re|de|un)?(?:character|custom|discret|factor|general|initial|linear|maxim|minim|normal|optim|organ|parallel|"
        r"penal|priorit|random|recogn|regular|serial|special|stabil|standard|summar|synchron|util|vector|visual)"
        r"is(?:e|ed|es|er|ers|ing|ation|ations)\b"
    ),
    r"\b(?:centred?|metres?|spelt|burnt|licence|whilst|grey(?!:))\b",
    # Input is rejected, a run is resumed; ``Refused:`` is an exception.
    r"(?<!connection )(?<!connection is )\brefus(?:es?|ed|ing|als?)\b(?!:)",
    r"\b(?:to go on|go on (?:from|with|by)|way on)\b",
    r"\b(?:are such|is of (?:a|the|another)|perhaps|\d+ [a-z]+ at least)\b",
)
_BANNED = re.compile("|".join(f"(?:{c})" for c in _CONSTRUCTIONS), re.IGNORECASE)
_CODE = re.compile(r"``.*?``|`[^`\n]*`|\"[^\"\n]*\"", re.DOTALL)
_FENCED = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.DOTALL | re.MULTILINE)


class Breach(NamedTuple):
    """A banned opening or construction.

    Attributes:
        line: line number, from 1.
        text: matched words, in their context.
    """

    line: int
    text: str


def constructions(text: str) -> list[Breach]:
    """Return each banned construction of a plain text; code in backquotes and quotations do not count."""
    blanked = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    breaches = []
    for found in _BANNED.finditer(blanked):
        context = text[max(0, found.start() - 30) : found.end() + 30].replace("\n", " ")
        breaches.append(Breach(text.count("\n", 0, found.start()) + 1, f"'{found[0]}' in '{context.strip()}'"))
    return breaches


def docstring(text: str) -> list[Breach]:
    """Return the breaches of one docstring: a banned opening, then its constructions."""
    opening = _OPENINGS.match(text)
    first = [Breach(1, f"opens with '{opening[0]}': '{text.splitlines()[0][:60]}'")] if opening else []
    return first + constructions(text)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring of a Python source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def python_breaches(source: str) -> list[Breach]:
    """Return the breaches of the docstrings and comments of a Python source."""
    breaches = [Breach(line + b.line - 1, b.text) for line, text in docstrings(source) for b in docstring(text)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            breaches += [Breach(token.start[0], b.text) for b in constructions(token.string)]
    return sorted(breaches)


def yaml_breaches(text: str) -> list[Breach]:
    """Return the breaches of the comments of a YAML file."""
    comments = "\n".join(found[1] if (found := re.search(r"(?:^|\s)#(.*)", line)) else "" for line in text.splitlines())
    return constructions(comments)


def page_breaches(text: str) -> list[Breach]:
    """Return the breaches of a Markdown page; fenced code does not count."""
    return constructions(_FENCED.sub(lambda block: "\n" * block[0].count("\n"), text))


def breaches_of(path: Path) -> list[Breach]:
    """Return the breaches of a file, by its kind; empty for other kinds of files."""
    kinds = {".py": python_breaches, ".yaml": yaml_breaches, ".yml": yaml_breaches, ".md": page_breaches}
    return kinds[path.suffix](path.read_text("utf-8")) if path.suffix in kinds else []


def main() -> None:
    """Print the breaches of the files and folders that the command line names, then their number."""
    count = 0
    for root in map(Path, sys.argv[1:]):
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file():
                for breach in breaches_of(path):
                    print(f"{path}:{breach.line}: {breach.text}")
                    count += 1
    print(f"{count} breaches")


if __name__ == "__main__":
    main()
