"""Which file imports which: circles, and all that one file needs."""

from __future__ import annotations

from tests.support.source_tree import SourceFile

Graph = dict[str, set[str]]


def import_graph(files: list[SourceFile], loads: bool = False) -> Graph:
    """Map each file of the package to those it imports: at its top, in functions, and for types.

    Args:
        files: of the repository.
        loads: also count names that strings such as ``"evorl.ops.trees:pack"`` load late.
    """
    package = [f for f in files if f.in_package]
    modules = {f.module: f.path for f in package}
    graph: Graph = {f.path: set() for f in package}
    for file in package:
        for target, _ in (*file.imports, *(file.loads if loads else ())):
            # A name of a module, or in one: the longest that is a file.
            parts = target.split(".")
            names = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
            path = next((modules[name] for name in names if name in modules), None)
            if path is not None and path != file.path:
                graph[file.path].add(path)
    return graph


def reached(graph: Graph, path: str) -> set[str]:
    """All files that a file imports, and those that they import, and so on."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        for target in graph[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def circles(graph: Graph) -> list[list[str]]:
    """The groups of files that reach one another."""
    reach = {path: reached(graph, path) for path in graph}
    groups = {
        tuple(sorted({path} | {other for other in reach[path] if path in reach[other]}))
        for path in graph
        if path in reach[path]
    }
    return [list(group) for group in sorted(groups)]


def closure(graph: Graph, path: str) -> set[str]:
    """The file itself and all that its import reads, with the packages that the files are in."""
    found: set[str] = set()
    waiting = {path}
    while waiting:
        found |= waiting
        folders = {"/".join(p.split("/")[:i]) + "/__init__.py" for p in waiting for i in range(1, p.count("/") + 1)}
        waiting = (folders & graph.keys() | {t for p in waiting for t in graph[p]}) - found
    return found
