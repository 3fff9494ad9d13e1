"""Single-file client for simulators: the protocol and the client joined, without any other part of this package.

``python -m evorl.serving.client_copy evorl_client.py`` writes the file, or prints it if no path is given; ``evorl new``
copies it into the folders that it creates.
"""

from __future__ import annotations

import ast
import sys
from importlib import resources
from pathlib import Path

PARTS = ("rlx.py", "client.py")
_HEAD = '''"""The client of evorl's servers in one file, for Python 3.8 or later, and NumPy where it is installed.

Made by ``python -m evorl.serving.client_copy``: ``encode``, ``decode``, ``frame`` and ``FrameReader`` are the protocol,
RLX; ``AgentProxy`` asks a server for actions; ``TrainingBase`` plays episode after episode.
"""

# SPDX-License-Identifier: Apache-2.0
'''


def client_text() -> str:
    """Return the text of the file: the imports of both parts, then their definitions."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {}
    bodies = []
    for part in PARTS:
        text = resources.files("evorl.serving").joinpath(part).read_text(encoding="utf-8")
        head = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in head:
            if isinstance(node, ast.Import):
                plain.add(ast.unparse(node))
            elif node.module and not node.module.startswith(("evorl.", "__future__")):
                names.setdefault(node.module, set()).update(alias.name for alias in node.names)
        bodies.append("".join(text.splitlines(keepends=True)[head[-1].end_lineno :]).strip())
    chosen = [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]
    imports = ["from __future__ import annotations", "", *sorted(plain), *chosen, ""]
    return "\n".join([_HEAD, *imports, "\n\n\n".join(bodies), ""])


def main(arguments: list[str] | None = None) -> None:
    """Write the file to the path in the only argument; without arguments print it."""
    paths = sys.argv[1:] if arguments is None else arguments
    if not paths:
        print(client_text(), end="")
        return
    if len(paths) > 1 or paths[0].startswith("-"):
        raise SystemExit("usage: python -m evorl.serving.client_copy [evorl_client.py]")
    Path(paths[0]).write_text(client_text(), encoding="utf-8")
    print(f"wrote {paths[0]}")


if __name__ == "__main__":
    main()
