"""Answering alone needs the run folder, the checkpoint and `evalsuite.models`: no harness, no pydantic."""

import os
import subprocess
import sys
from pathlib import Path

from evalsuite.reports.records.loss_curves import loss_curve_path
from tests.evaluation.runs import evaluate_quietly

CODE = """
import sys
for name in ("pydantic", "lm_eval", "evalscope", "datasets", "pandas"):
    sys.modules[name] = None
from evalsuite.cli import main
sys.exit(main(["run", "--infer-only", "--checkpoint", sys.argv[1], "--out", sys.argv[2], "--quiet"]))
"""


def test_infer_only_needs_no_harness_or_pydantic(tiny: Path, suite: Path, tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    evaluate_quietly(suite=suite, checkpoints=[str(tiny)], out=run, phases=("build",))
    # On another machine the checkpoint lies elsewhere: its weights tell which one it is.
    moved.mkdir()
    for file in tiny.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    (moved / "lineage.json").write_text('{"schema": 1}')
    (moved / "training.jsonl").write_text('{"stage": "kd", "tokens": 64, "loss": 2.5}\n')
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(moved), str(run)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"computed responses: {tiny.name} 20\n" in done.stdout
    assert loss_curve_path(run, tiny.name).read_bytes() == (moved / "training.jsonl").read_bytes()
    assert evaluate_quietly(suite=suite, out=run, phases=("score",)).missing == 0
