"""The layout of the repository: rooms and import directions."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.import_circles import circles, import_graph, module_name

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("evalsuite", "tasks", "models", "distill", "reports")
ALLOWED = {
    "evalsuite/foundation": {"foundation"},
    "tasks": {"foundation", "tasks"},
    "models": {"foundation", "models"},
    "reports": {"foundation", "reports"},
    "distill": {"foundation", "distill", "models", "tasks"},
}
FOLDERS = {
    "evalsuite": {"cli", "evaluation", "executors", "protocols", "foundation"},
    "tasks": {"benchmarks", "suites", "sources", "synthetic"},
    "models": {
        "benchmark",
        "checkpoints",
        "ops",
        "mixers",
        "decoder",
        "inference",
        "vllm_plugin",
        "diagnostics",
        "pocket",
    },
    "distill": {"recipe", "recipes", "data", "objectives", "optim", "training", "selection"},
    "reports": {
        "records",
        "statistics",
        "analysis",
        "measures",
        "rules",
        "figures",
        "page",
        "exports",
        "imports",
        "gate",
        "references",
        "results",
        "studies",
        "examples",
    },
    "docs": {"extend", "how-to", "notebooks", "reference"},
    "tests": {
        "api",
        "cli",
        "distill",
        "docs",
        "evaluation",
        "executors",
        "foundation",
        "models",
        "parity",
        "performance",
        "plugin",
        "protocols",
        "reports",
        "tasks",
    },
}


STUDIES = ROOT / "reports/studies"
"""Not part of the product, and free to import all of it."""


def modules(*rooms: str) -> list[Path]:
    """Python files of the given rooms, without what Python itself leaves behind; studies are a room."""
    return [
        path
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if "__pycache__" not in path.parts
        and (path.is_relative_to(STUDIES) == (ROOT / room).is_relative_to(STUDIES))
    ]


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_follow_the_plan(room: str) -> None:
    files = modules(room)
    assert files
    for path in files:
        names = imports(path)
        rooms = {name.split(".")[1] for name in names if name.startswith("evalsuite.")}
        extra = rooms - ALLOWED[room] - {"__version__"}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"
        bare = {name.split(".")[0] for name in names} & (set(ROOMS[1:]) | {"tests"})
        assert not bare, f"{path.relative_to(ROOT)} imports {sorted(bare)} under a bare name"


def test_reports_never_import_torch() -> None:
    for path in modules("reports"):
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & {"torch", "transformers"}, path


def test_no_product_module_imports_a_test_or_a_study() -> None:
    for path in modules(*ROOMS):
        names = imports(path)
        assert not {name for name in names if name.split(".")[0] == "tests"}, path
        assert not {name for name in names if name.startswith("evalsuite.reports.studies")}, path


def test_no_study_imports_a_test() -> None:
    for path in modules("reports/studies"):
        assert not {name for name in imports(path) if name.split(".")[0] == "tests"}, path


def test_no_files_or_folders_import_one_another_in_a_circle() -> None:
    for rooms in (ROOMS, ("reports/studies",)):
        sources = {module_name(path, ROOT): path.read_text() for path in modules(*rooms)}
        assert circles(import_graph(sources)) == []


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("import evalsuite.b.two", "at the top"),
        ("from evalsuite.b import two", "by the package"),
        ("def f():\n    from evalsuite.b.two import g", "in a function"),
        ("if TYPE_CHECKING:\n    from evalsuite.b.two import C", "for types"),
        ("import_module('evalsuite.b.two')", "by name"),
        ("HOME = 'two'\nimport_module(f'evalsuite.b.{HOME}')", "by a name that is put together"),
        ("from evalsuite.b import g", "through what the package re-exports"),
    ],
)
def test_a_circle_is_found(text: str, hidden: str) -> None:
    sources = {
        "evalsuite.a.one": text,
        "evalsuite.b.two": "",
        "evalsuite.b.three": "from evalsuite.a.four import h",
        "evalsuite.a.four": "",
        "evalsuite.b.__init__": "from evalsuite.b.two import g",
    }
    assert circles(import_graph(sources)) == [("evalsuite.a", "evalsuite.b")], hidden
    assert circles(import_graph(sources | {"evalsuite.b.three": ""})) == []


def test_no_module_hides_what_its_package_imports() -> None:
    """A module that is imported first becomes an attribute of its package, in the place of another import."""
    for path in (path for path in modules(*ROOMS, "reports/studies") if path.name == "__init__.py"):
        own = module_name(path, ROOT).removesuffix(".__init__")
        inside = {each.stem if each.suffix else each.name for each in path.parent.iterdir()}
        hidden = [
            f"{own}.{alias.asname or alias.name}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (alias.asname or alias.name) in inside
            and node.module not in (own, f"{own}.{alias.asname or alias.name}")
        ]
        assert not hidden


@pytest.mark.parametrize("room", FOLDERS)
def test_folders_are_those_of_the_plan(room: str) -> None:
    files = [path.relative_to(ROOT / room).parts for path in (ROOT / room).rglob("*") if path.is_file()]
    found = {parts[0] for parts in files if len(parts) > 1 and "__pycache__" not in parts}
    found = {name for name in found if name[0] not in "._"}
    assert found <= FOLDERS[room], f"{room}/ holds {sorted(found - FOLDERS[room])}"


def test_every_package_has_a_docstring() -> None:
    for path in modules(*ROOMS, "reports/studies"):
        if path.name != "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)}: no docstring"
