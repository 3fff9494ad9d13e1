"""Source files for the architecture rules: resolved imports, full names, functions and import graph."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

_LOAD = re.compile(r"evorl(\.\w+)+:\w+")
# Files that may contain strings that load a name late: tables of commands, of environment libraries, of goal
# environments.
LOAD_TABLES = ("evorl/cli/command_table.py", "evorl/envs/libraries.py", "evorl/envs/goals/goal_envs.py")
# Files that may call functions that load names late: readers of the tables, and actor processes, which are configured
# before they import their worker.
LOAD_CALLERS = ("evorl/cli/commands.py", "evorl/envs/factory.py", "evorl/envs/libraries.py")
LOAD_CALLERS += ("evorl/envs/goals/goal_envs.py", "evorl/actors/process_pool.py", "evorl/actors/ray_pool.py")


@dataclass(frozen=True)
class SourceFile:
    """A Python file: its path from the repository root, with forward slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def in_package(self) -> bool:
        return self.path.startswith("evorl/")

    @property
    def is_init(self) -> bool:
        return self.path.endswith("__init__.py")

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The first name below ``evorl``; empty for the package's own ``__init__``."""
        return (self.module.split(".") + [""])[1]

    @cached_property
    def exports(self) -> list[tuple[str, int]]:
        """Names of evorl that a package's ``__init__`` imports only for type checkers, with their lines."""
        return [
            (f"{self._absolute(node)}.{alias.name}", node.lineno) for node in self._export_nodes for alias in node.names
        ]

    @cached_property
    def _export_nodes(self) -> list[ast.ImportFrom]:
        blocks = [n for n in self.tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        nodes = [node for block in blocks if self.is_init for node in block.body]
        return [node for node in nodes if isinstance(node, ast.ImportFrom)]

    @cached_property
    def imports(self) -> list[tuple[str, int]]:
        """Full dotted names imported anywhere in the file, function bodies included, with their lines.

        The ``exports`` of a package are not imported when the package is.
        """
        found = []
        for node in ast.walk(self.tree):
            if node in self._export_nodes:
                continue
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
                name = node.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found.append((name.value, node.lineno))
        return found

    @cached_property
    def loads(self) -> list[tuple[str, int]]:
        """Names of the package that strings such as ``"evorl.ops.trees:pack"`` load late, with their lines."""
        constants = (node for node in ast.walk(self.tree) if isinstance(node, ast.Constant))
        texts = ((node.value, node.lineno) for node in constants if isinstance(node.value, str))
        return [(text.replace(":", "."), line) for text, line in texts if _LOAD.fullmatch(text)]

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.module.split(".") if self.is_init else self.module.split(".")[:-1]
        parts = package[: len(package) - node.level + 1] + ([node.module] if node.module else [])
        return ".".join(parts)

    @cached_property
    def used_names(self) -> list[tuple[str, int]]:
        """Imported names and attribute chains, spelled out through the aliases of the file's imports."""
        aliases = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                aliases |= {
                    a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
                }
            elif isinstance(node, ast.ImportFrom):
                aliases |= {a.asname or a.name: f"{self._absolute(node)}.{a.name}" for a in node.names}
        chains = list(self.imports)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and re.fullmatch(r"[\w.]+", chain := ast.unparse(node)):
                root, _, rest = chain.partition(".")
                if root in aliases:
                    chains.append((f"{aliases[root]}.{rest}", node.lineno))
        return chains

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def read_tree(root: Path) -> list[SourceFile]:
    """Read every Python file of the package, scripts, tests and benchmarks."""
    paths = [p for top in ("evorl", "scripts", "tests", "benchmarks") for p in sorted((root / top).rglob("*.py"))]
    return [SourceFile(p.relative_to(root).as_posix(), p.read_text(encoding="utf-8")) for p in paths]


def tracked_paths(root: Path) -> list[Path]:
    """Return every file tracked by git; every file if the tree is not a repository."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        paths = [root / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [p for p in root.rglob("*") if "/." not in f"/{p.relative_to(root)}"]
    return [path for path in paths if path.is_file()]


def tracked_texts(root: Path) -> Iterator[tuple[str, str]]:
    """Yield path and text of every tracked file."""
    for path in tracked_paths(root):
        try:
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image


class ClassInTree(NamedTuple):
    """A class and the full names of its bases by their definition, not by their import."""

    node: ast.ClassDef
    bases: list[str]


def classes_of(package: list[SourceFile]) -> dict[str, ClassInTree]:
    """Return classes by module and name, since two modules may have classes of the same name."""
    imported = {f"{f.module}.{target.rpartition('.')[2]}": target for f in package for target, _ in f.imports}
    nodes = [(f, n) for f in package for n in ast.walk(f.tree) if isinstance(n, ast.ClassDef)]
    names = {f"{f.module}.{n.name}" for f, n in nodes}

    def origin(name: str) -> str:
        return origin(imported[name]) if name not in names and imported.get(name, name) != name else name

    classes = {}
    for file, node in nodes:
        bases = (ast.unparse(base).split("[")[0].partition(".") for base in node.bases)
        origins = [origin(origin(f"{file.module}.{first}") + dot + rest) for first, dot, rest in bases]
        classes[f"{file.module}.{node.name}"] = ClassInTree(node, origins)
    return classes


def overrides(method: str, name: str, classes: dict[str, ClassInTree]) -> bool:
    """Return True if a base class, in the package or built in, defines the method."""
    for base in classes[name].bases:
        last = base.rpartition(".")[2]
        if base in classes and base != name:
            here = any(getattr(n, "name", "") == method for n in classes[base].node.body)
            if here or overrides(method, base, classes):
                return True
        elif hasattr(getattr(builtins, last, None), method) or (last == "Module" and method == "setup"):
            return True
    return False


Graph = dict[str, set[str]]


def import_graph(files: list[SourceFile], loads: bool = False) -> Graph:
    """Map each file of the package to those it imports: at its top, in functions, and for types.

    Args:
        files: files of the repository.
        loads: also count names that strings such as ``"evorl.ops.trees:pack"`` load late.
    """
    package = [f for f in files if f.in_package]
    modules = {f.module: f.path for f in package}
    graph: Graph = {f.path: set() for f in package}
    for file in package:
        for target, _ in (*file.imports, *(file.loads if loads else ())):
            # A name of a module, or in one: use the longest that is a file.
            parts = target.split(".")
            names = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
            path = next((modules[name] for name in names if name in modules), None)
            if path is not None and path != file.path:
                graph[file.path].add(path)
    return graph


def reached(graph: Graph, path: str) -> set[str]:
    """Return all files that a file imports, directly or indirectly."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        for target in graph[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of files that reach each other."""
    reach = {path: reached(graph, path) for path in graph}
    groups = {
        tuple(sorted({path} | {other for other in reach[path] if path in reach[other]}))
        for path in graph
        if path in reach[path]
    }
    return [list(group) for group in sorted(groups)]


def closure(graph: Graph, path: str) -> set[str]:
    """Return the file and everything that its import reads, including parent packages."""
    found: set[str] = set()
    waiting = {path}
    while waiting:
        found |= waiting
        folders = {"/".join(p.split("/")[:i]) + "/__init__.py" for p in waiting for i in range(1, p.count("/") + 1)}
        waiting = (folders & graph.keys() | {t for p in waiting for t in graph[p]}) - found
    return found


def base_names(node: ast.ClassDef) -> list[str]:
    """Return the last name of each base without parameters: ``nn.Module`` gives Module, ``Foo[T]`` gives Foo."""
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def depth(name: str, classes: dict[str, ClassInTree]) -> int:
    """Return the depth of the class below the package's root classes."""
    bases = [b for b in classes[name].bases if b in classes and b != name]
    return 1 + max(depth(b, classes) for b in bases) if bases else 0


def sibling_bases(file: SourceFile) -> set[str]:
    """Return the modules whose classes a file subclasses."""
    origin = {target.rpartition(".")[2]: target.rpartition(".")[0] for target, _ in file.imports}
    classes = [node for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef)]
    return {origin[base] for node in classes for base in base_names(node) if base in origin}
