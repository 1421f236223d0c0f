"""Circles of imports among the files and folders of evalsuite."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

Graph = Mapping[str, set[str]]
"""Name → names of what it imports."""


def module_name(path: Path, root: Path) -> str:
    """Dotted name of a file; a package's `__init__.py` keeps its name, since files below may import it."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts if parts[0] == "evalsuite" else ("evalsuite", *parts))


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Every module with the modules that it imports anywhere: in functions, for types only, or by name.

    Args:
        sources: name, as `module_name` gives it → source text.

    A string that is the name of a module counts, since it is how `import_module` would hide an import; so do
    names that f-strings put together, and all modules of a folder that `import_submodules` imports.
    """
    modules = {name.removesuffix(".__init__"): name for name in sources}
    named = modules.keys() - {"evalsuite"}
    graph: dict[str, set[str]] = {}
    for name, text in sources.items():
        tree, package = ast.parse(text), name.removesuffix(".__init__")
        found = {modules[imported] for imported in _imported(tree, modules, named)}
        found |= {modules[joined] for joined in _joined(tree, package) if joined in modules}
        if "import_submodules(" in text and name.endswith(".__init__"):
            found |= {each for each in sources if each.startswith(f"{package}.")}
        graph[name] = found - {name}
    return graph


def _imported(tree: ast.Module, modules: Mapping[str, str], named: Set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in modules or node.module in modules:
                    yield name if name in modules else str(node.module)
        elif isinstance(node, ast.Constant) and node.value in named:
            yield str(node.value)


def _joined(tree: ast.Module, own: str) -> Iterator[str]:
    """Names of modules that f-strings may put together: those of `import_module`, and any that begin with
    `evalsuite.`, with every string of the module in place of what they format."""
    nodes = list(ast.walk(tree))
    texts = {str(node.value).partition(":")[0] for node in nodes if isinstance(node, ast.Constant)}
    for node in nodes:
        if not isinstance(node, ast.JoinedStr):
            continue
        first, *rest = node.values
        start = str(first.value) if isinstance(first, ast.Constant) else ""
        if isinstance(first, ast.FormattedValue) and ast.unparse(first.value) == "__name__":
            start = own
        if start == own or start.startswith("evalsuite."):
            yield from (
                start + "".join(str(part.value) if isinstance(part, ast.Constant) else text for part in rest)
                for text in texts
            )


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Circles of files and folders: for every folder, the files and folders directly in it that import one
    another in a ring, directly or through others.

    Every circle of files is one of these, too: of the files, or of the folders that hold them.
    """
    levels: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, imported in graph.items():
        for other in imported:
            folder, one, two = _parts(name, other)
            levels[folder][one].add(two)
    return sorted(
        tuple(sorted(f"{folder}.{each}" for each in ring))
        for folder, level in levels.items()
        for ring in strongly_connected(level)
    )


def _parts(name: str, other: str) -> tuple[str, str, str]:
    """The deepest folder that holds both modules, and what holds each of them there."""
    one, two = name.split("."), other.split(".")
    depth = next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    return ".".join(one[:depth]), one[depth], two[depth]


def strongly_connected(graph: Graph) -> list[set[str]]:
    """Components of more than one node, each of which reaches every other."""
    reach = {node: _reachable(graph, node) for node in graph}
    rings: list[set[str]] = []
    for node in graph:
        if not any(node in ring for ring in rings):
            ring = {other for other in reach[node] if node in reach.get(other, ())} | {node}
            if len(ring) > 1:
                rings.append(ring)
    return rings


def _reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting: list[str] = [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def edges(graph: Graph, ring: Iterable[str]) -> list[tuple[str, str]]:
    """The imports between the members of a ring, file by file."""
    members = tuple(ring)

    def member(name: str) -> str | None:
        return next((each for each in members if name == each or name.startswith(f"{each}.")), None)

    return sorted(
        (name, other)
        for name, imported in graph.items()
        for other in imported
        if member(name) and member(other) and member(name) != member(other)
    )
