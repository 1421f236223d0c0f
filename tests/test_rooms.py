"""The arrows between the rooms: who may import whom, read from the source of every module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "evalsuite/foundation": {"foundation"},
    "tasks": {"foundation", "tasks"},
    "models": {"foundation", "models"},
    "reports": {"foundation", "reports"},
    "distill": {"foundation", "distill", "models", "tasks"},
}


def imported_rooms(path: Path) -> set[str]:
    """Second components of every `evalsuite.X` that a module imports, also inside functions."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "evalsuite":
            names = [f"evalsuite.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("evalsuite.")}
        roots = {name.split(".")[0] for name in names}
        assert not roots & {"models", "tasks", "distill", "reports"}, f"{path}: a bare room name is imported"
    return rooms


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_the_plan_allows(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        extra = imported_rooms(path) - ALLOWED[room]
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


def test_reports_never_import_torch() -> None:
    for path in (ROOT / "reports").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & {"torch", "transformers"}, path
