"""`evalsuite compare` on finished runs: redacted pages, question texts, verdicts."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.cli.entry import main
from evalsuite.reports.records.score_files import read_rows
from evalsuite.reports.run import read_manifest
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents
from tests.reports.page_samples import sample_rows
from tests.reports.score_edits import all_rows, write_unchecked
from tests.test_packaging import HEAVY

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "reports" / "fixtures"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Frozen ARC-Easy: 240 questions of ours in its columns."""
    letters = ["A", "B", "C", "D"]
    rows = [
        {
            "id": f"q{i}",
            "question": f"Which is number {i}? {'Think. ' * (200 if i % 2 else 1)}",
            "choices": {"text": [f"it is {letter}{i}" for letter in letters], "label": letters},
            "answerKey": letters[i % 4],
        }
        for i in range(240)
    ]
    path = tmp_path / "data" / "allenai__ai2_arc" / "ARC-Easy" / "test.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return tmp_path / "data"


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Path:
    """The failing fixture with its facts renamed to ARC-Easy, so that its documents are in the data."""
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "failing", run)
    plan = (run / "run.json").read_text().replace('"name": "facts"', '"name": "arc_easy"')
    (run / "run.json").write_text(plan)
    known = [each.doc_id for each in documents(load_benchmark("arc_easy"), data_dir=data)]
    names: dict[str, str] = {}
    for path in sorted((run / "scores").glob("facts.*")):
        rows = list(read_rows(path).values())
        for row in rows:
            row["benchmark"] = "arc_easy"
            row["doc_id"] = names.setdefault(row["doc_id"], known[len(names) % len(known)])
        write_unchecked(path.with_name(path.name.replace("facts", "arc_easy")), rows)
        path.unlink()
    return run


def test_compare_joins_question_texts_from_data(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["compare", str(run), "--data", str(data), "--out", str(out)]) == 0
    rows = sample_rows(out)
    texts = [row["question"] for row in rows if "question" in row]
    assert texts
    assert max(map(len, texts)) > 1000
    short = next(text for text in texts if len(text) < 900)
    number = re.match(r"Which is number (\d+)\?", short).group(1)
    assert f"\nC. it is C{number}" in short
    # The needles are not in any data, and this run keeps no documents: that is said, not hidden.
    assert re.search(r"needle: \d+ of \d+ questions have no text", capsys.readouterr().err)
    assert len(texts) == sum(row["id"] in {d.doc_id for d in _arc(data)} for row in rows)


def _arc(data: Path) -> list[Any]:
    return documents(load_benchmark("arc_easy"), data_dir=data)


def test_compare_falls_back_to_documents_of_the_run(run: Path, tmp_path: Path) -> None:
    ids = {row["doc_id"] for row in all_rows(run, "needle", "generation")}
    (run / "documents").mkdir()
    kept = [{"doc_id": each, "row": {"prompt": f"needle {each}"}, "context": 256} for each in sorted(ids)]
    (run / "documents" / "needle.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert main(["compare", str(run), "--questions", "--out", str(tmp_path / "out")]) == 0
    found = {row["id"]: row["question"] for row in sample_rows(tmp_path / "out") if "question" in row}
    assert found
    assert all(text == f"needle {each}" for each, text in found.items())


def test_compare_redact_omits_question_texts(run: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["compare", str(run), "--redact", "--out", str(out)]) == 0
    page = (out / "index.html").read_text()
    assert "This page is redacted for publication" in page
    assert all("question" not in row for row in sample_rows(out))
    assert main(["compare", str(run), "--redact", "--questions", "--out", str(out)]) == 64
    assert main(["compare", str(run), "--redact", "--data", str(data), "--out", str(out)]) == 64


def test_published_samples_are_compared_with_a_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, mine, merged = (str(tmp_path / name) for name in ("page", "mine", "merged"))
    exported = ["compare", str(run), "--redact", "--export-samples", "--out", page]
    assert main(exported) == 0
    # My run: the same suite and teacher, another student.
    shutil.copytree(run, mine)
    plan = Path(mine) / "run.json"
    (student,) = (each for each in read_manifest(run).checkpoints if each.role == "student")
    plan.write_text(
        plan.read_text()
        .replace(student.weights_id, "m" * 16)
        .replace('"label": "student"', '"label": "mine"')
    )
    for path in (Path(mine) / "scores").iterdir():
        rows = list(read_rows(path).values())
        changed = [row | {"weights_id": "m" * 16} for row in rows if row["weights_id"] == student.weights_id]
        write_unchecked(path, changed or rows)
    assert main(["compare", f"{page}/samples", mine, "--out", merged]) == 0
    assert main(["compare", str(run), mine, "--out", f"{merged}-runs"]) == 0
    for name in ("leaderboard.csv", "scores.csv", "gap.csv"):
        found = (Path(merged) / name).read_text()
        assert found == (Path(f"{merged}-runs") / name).read_text()
        assert "mine" in found
    assert main(["compare", f"{page}/samples", mine, *exported[2:]]) == 0
    assert [each.label for each in read_manifest(Path(page) / "samples").checkpoints][-1] == "mine"
    capsys.readouterr()
    codes = {name: main(["gate", name, "--min-recovery", "0.9"]) for name in (str(run), f"{page}/samples")}
    assert set(codes.values()) == {1}


def test_no_file_of_published_samples_names_this_machine(run: Path, tmp_path: Path) -> None:
    plan = (run / "run.json").read_text()
    (run / "run.json").write_text(re.sub('"path": ".*"', f'"path": "{tmp_path}/student"', plan))
    out = ["--export-samples", "--out", str(tmp_path / "page")]
    files = tmp_path / "page" / "samples"
    assert main(["compare", str(run), *out]) == 0
    assert str(tmp_path) in (files / "run.json").read_text()
    assert main(["compare", str(run), "--redact", *out]) == 0
    assert not [path for path in files.rglob("*.*") if str(tmp_path).encode() in path.read_bytes()]
    assert '"path": "student"' in (files / "run.json").read_text()


def test_compare_policy_shows_verdict_and_exits_0(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "gate.yaml"
    policy.write_text("rules: [{metric: recovery, min: 0.9}]")
    assert main(["compare", str(run), "--policy", str(policy), "--out", str(tmp_path / "out")]) == 0
    assert "gate: proven regression" in capsys.readouterr().out
    assert "Gate: proven regression." in (tmp_path / "out" / "index.html").read_text()
    assert main(["gate", str(run), "--policy", str(policy)]) == 1


def test_compare_refuses_missing_data_folder(run: Path, tmp_path: Path) -> None:
    arguments = ["compare", str(run), "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]
    assert main(arguments) >= 64
    assert not (tmp_path / "out").exists()


def test_compare_and_gate_import_no_package_of_the_extras(run: Path, data: Path, tmp_path: Path) -> None:
    arguments = ["compare", str(run), "--data", str(data), "--questions", "--out", str(tmp_path / "out")]
    gate = ["gate", str(run), "--min-recovery", "0.9", "--out", str(tmp_path / "verdict")]
    code = (
        f"import sys; from evalsuite.cli.entry import main; assert main({arguments!r}) == 0; "
        f"assert main({gate!r}) == 1; "
        f"assert not {set(HEAVY)} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
