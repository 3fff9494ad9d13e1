"""Rules for files other than Python: settings occur in one YAML file, and nothing names a machine or a registry."""

from __future__ import annotations

import collections
import itertools
import re

# In parts, so that this file follows its own rule.
_HOSTS = ["pypi" + ".org", "python" + "hosted", "ana" + "conda.org", "--index" + "-url", "--find" + "-links"]
_MACHINE_PATH = re.compile(r"(?<![\w.~}/-])/(?:work|root|home|tmp|opt|mnt|Users)/\w")


def setting_lines(text: str) -> list[str]:
    """Return the lines of a YAML file that set a value, with their comments, except for class names."""
    lines = [line.strip() for line in re.sub(r"^defaults:\n(?:[ ].*\n?)*", "", text, flags=re.MULTILINE).splitlines()]
    return [line for line in lines if re.match(r"(?!defaults:|workflow:)[\w.]+: *[^# ]", line)]


def repeated_lines(texts: dict[str, str]) -> list[str]:
    """Return settings of YAML files, by name, that also occur in another file: two consecutive equal lines.

    A single equal number, such as a number of steps, may be a coincidence.
    """
    lines = {name: setting_lines(text) for name, text in texts.items()}
    files = collections.Counter(pair for of_file in lines.values() for pair in set(itertools.pairwise(of_file)))
    repeated = []
    for name, of_file in lines.items():
        pairs = [pair if files[pair] > 1 else () for pair in itertools.pairwise(of_file)]
        repeated += [f"{name}: {line}" for line, near in zip(of_file, _near(pairs), strict=False) if line in near]
    return repeated


def _near(pairs: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return for each line the pair that it ends and the pair that it begins."""
    return [before + after for before, after in zip([(), *pairs], [*pairs, ()], strict=True)]


def portable_text(path: str, text: str) -> list[str]:
    """No tracked file names a package registry's host or a folder of a developer's machine."""
    breaches = []
    for number, line in enumerate(text.splitlines(), start=1):
        breaches += [f"{path}:{number}: names the package host {host}" for host in _HOSTS if host in line]
        if _MACHINE_PATH.search(line):
            breaches.append(f"{path}:{number}: names a folder of one machine: {line.strip()[:80]}")
    return breaches
