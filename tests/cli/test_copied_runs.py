"""A run folder that is copied, renamed and touched, or whose files are written anew, has the same report."""

import json
import shutil
from pathlib import Path

from evalsuite.cli import main
from tests.cli.test_damaged_files import RUN


def tables(run: Path, out: Path) -> dict[str, list[str]]:
    """Every row of a report, by file; their order is that of the plan."""
    assert main(["compare", str(run), "--out", str(out), "--no-samples"]) == 0
    return {path.name: sorted(path.read_text().splitlines()) for path in sorted(out.glob("*.csv"))}


def test_copies_have_the_same_report(tmp_path: Path) -> None:
    expected = tables(RUN, tmp_path / "expected")
    assert "leaderboard.csv" in expected
    copy = Path(shutil.copytree(RUN, tmp_path / "a copy of it", copy_function=shutil.copyfile))
    plan, environment = copy / "run.json", copy / "environment.json"
    plan.write_text(json.dumps(json.loads(plan.read_text()), sort_keys=True))
    environment.write_text(json.dumps(json.loads(environment.read_text()), sort_keys=True))
    (copy / "notes.txt").write_text("nothing of evalsuite's")
    assert tables(copy, tmp_path / "found") == expected
