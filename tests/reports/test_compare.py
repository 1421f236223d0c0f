"""compare: output files, no torch import, escaping of labels."""

import csv
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.reports import compare, policy_from_options, run_gate
from evalsuite.reports.comparison import Comparison
from evalsuite.reports.measures.papers.tables import paper_tables, shipped_names
from evalsuite.reports.page.render import SCRIPTS
from evalsuite.reports.run import read_manifest
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.page_samples import sample_rows
from tests.reports.score_edits import all_rows, edit_rows

EVIL = "<img src=x onerror=alert(1)>`|*_&amp;"


@pytest.fixture(scope="module")
def plain(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """What `compare` makes of the small run; tests only read it."""
    return compare([small_run], tmp_path_factory.mktemp("plain"))


def test_only_own_stale_tables_of_papers_are_removed(small_run: Path, tmp_path: Path) -> None:
    stale = tmp_path / "papers" / "gendistill_2026_table_20.csv"
    mine = tmp_path / "papers" / "mine.csv"
    stale.parent.mkdir()
    for path in (stale, mine):
        path.write_text("a,b\n")
    made = compare([small_run], tmp_path)
    assert stale.stem in shipped_names()
    assert stale.exists() == (stale.stem in {table.name for table in paper_tables(made.report)})
    assert mine.read_text() == "a,b\n"


def test_output_files_are_consistent(plain: Comparison) -> None:
    made, folder = plain, plain.page.parent
    names = {"index.html", "report.md", "report.json"}
    names |= {f"{table}.csv" for table in ("leaderboard", "scores", "students", "gap", "pairs", "agreement")}
    names |= {f"papers/{table.name}.csv" for table in paper_tables(made.report)}
    names |= {f"samples/{path.name}" for path in (folder / "samples").iterdir()}
    assert len(names) > 10
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == names == {str(path.relative_to(folder)) for path in made.files}
    rows = list(csv.DictReader((folder / "leaderboard.csv").open()))
    row = next(r for r in rows if (r["label"], r["protocol"], r["scope"]) == ("weak", "generation", "all"))
    report = json.loads((folder / "report.json").read_text())
    average = next(
        a
        for a in report["averages"]
        if (a["checkpoint"], a["protocol"], a["scope"]) == (2, "generation", "all")
    )
    assert float(row["recovery"]) == pytest.approx(average["recovery"]["point"], rel=1e-11)
    percent = f"{100 * float(row['recovery']):.1f}"
    assert percent in (folder / "report.md").read_text()
    assert percent in (folder / "index.html").read_text()
    assert percent in made.text
    gaps = list(csv.DictReader((folder / "gap.csv").open()))
    average = next(g for g in gaps if (g["label"], g["benchmark"]) == ("weak", "all"))
    lost = float(average["drop_generation"]) - float(average["drop_loglikelihood"])
    assert float(average["gap"]) == pytest.approx(lost)
    scores = list(csv.DictReader((folder / "scores.csv").open()))
    assert {r["context"] for r in scores if r["benchmark"] == "niah"} == {"512", "1024"}
    assert (folder / "index.html").stat().st_size < 1_500_000


def test_no_gap_table_without_a_benchmark_under_both_protocols(plain: Comparison, tmp_path: Path) -> None:
    benchmarks = [SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 50, protocols=("loglikelihood",))]
    answerers = {"teacher": 0.8, "student": 0.7}
    shutil.copytree(plain.page.parent, tmp_path / "out")
    assert (tmp_path / "out" / "gap.csv").is_file()
    # The stale gap.csv of an earlier call is removed.
    made = compare([make_run(tmp_path / "run", benchmarks, answerers)], tmp_path / "out")
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == set(made.files)
    assert not (tmp_path / "out" / "gap.csv").exists()
    assert "gap.csv" not in made.page.read_text()


def test_incomplete_students_are_marked(tmp_path: Path) -> None:
    benchmarks = [
        SyntheticBenchmark("arc_easy", "ARC-Easy", "knowledge", 60),
        SyntheticBenchmark("piqa", "PIQA", "common_sense", 60),
    ]
    truth = [
        SyntheticCheckpoint(name, lambda *_: 0.7, "student" if name != "t" else "teacher")
        for name in ("t", "a", "b")
    ]
    run = make_run(tmp_path / "run", benchmarks, truth)
    edit_rows(run, "piqa", "generation", lambda _, row: row if row["checkpoint"] != "b" else None)
    lines = compare([run], tmp_path / "out").markdown.splitlines()
    assert [r"\*" in next(line for line in lines if f"**{name}**" in line) for name in "ab"] == [False, True]
    assert lines.count(r"\* Incomplete: averaged over the benchmarks that have scores; no rank.") == 1


def test_benchmarks_without_scores_are_not_counted(tmp_path: Path) -> None:
    names = [f"b{number}" for number in range(8)]
    benchmarks = [
        SyntheticBenchmark(name, name.upper(), "knowledge", 60, protocols=("loglikelihood",))
        for name in names
    ]
    models = [SyntheticCheckpoint(role, lambda *_: 0.7, role) for role in ("teacher", "student")]
    run = make_run(tmp_path / "run", benchmarks, models)
    for name in names[2:]:
        edit_rows(run, name, "loglikelihood", lambda *_: None)
    made = compare([run], tmp_path / "out")
    page = made.page.read_text()
    assert page.count("2 of 8 benchmarks") == 1
    assert "benchmarks: 2 of 8 · documents: 120" in made.markdown
    assert "incomplete, no rank: missing b2, b3, b4 and 3 more" in page


def test_page_is_deterministic(small_run: Path, plain: Comparison, tmp_path: Path) -> None:
    assert compare([small_run], tmp_path).page.read_bytes() == plain.page.read_bytes()


class Tags(HTMLParser):
    """Collects the tags of a page and where it points."""

    def __init__(self) -> None:
        """Parse nothing yet."""
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str | None] = []
        """Types of the script elements."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append(dict(attrs).get("type"))
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs), f"an event handler in <{tag}>"


def test_html_in_labels_is_escaped(tmp_path: Path) -> None:
    answerers = [
        SyntheticCheckpoint(EVIL, lambda b, p, c: 0.8, "teacher", lineage={"recipe": EVIL}),
        SyntheticCheckpoint(f"</script><script>{EVIL}", lambda b, p, c: 0.6, lineage={"mixers": [EVIL] * 3}),
    ]
    benchmarks = [SyntheticBenchmark("f", f"F {EVIL}", "knowledge", 60)]
    run = make_run(tmp_path / "run", benchmarks, answerers)
    page = compare(
        [run], tmp_path / "out", questions=lambda b, ids: dict.fromkeys(ids, f"{EVIL}</script>")
    ).page.read_text()
    tags = Tags()
    tags.feed(page)
    assert "img" not in tags.tags
    assert tags.scripts.count(None) == len(SCRIPTS)
    assert set(tags.scripts) == {None, "application/json", "text/plain"}
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert all(link.startswith(("#", "data:,")) or link in files for link in tags.links)
    assert "students.csv" in tags.links
    assert "&lt;img src=x" in page
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "<img" not in markdown
    assert "\\|" in markdown
    verdict = run_gate([run], policy_from_options(min_recovery=0.9), out=tmp_path / "gate")
    assert "<img" not in (tmp_path / "gate" / "gate.md").read_text()
    assert verdict.results[0].checkpoint.startswith("</script>")


def test_formulas_in_labels_are_quoted_in_csv(tmp_path: Path) -> None:
    answerers = [SyntheticCheckpoint("=1+1", lambda b, p, c: 0.8, "teacher")]
    run = make_run(tmp_path / "run", [SyntheticBenchmark("f", "F", "knowledge", 20)], answerers)
    compare([run], tmp_path / "out")
    assert "'=1+1" in (tmp_path / "out" / "leaderboard.csv").read_text()


def test_samples_are_every_document_with_every_response(small_run: Path, plain: Comparison) -> None:
    rows = sample_rows(plain.page.parent)
    cell = [row for row in rows if row["cell"] == "arc_easy.loglikelihood"]
    stored = all_rows(small_run, "arc_easy", "loglikelihood")
    assert len(cell) == 400 == len({row["doc_id"] for row in stored})
    by_document = {(row["checkpoint"], row["doc_id"]): row for row in stored}
    for row in cell:
        assert set(row["responses"]) == {0, 1, 2}
        for label, response in zip(("teacher", "strong", "weak"), row["responses"].values(), strict=True):
            source = by_document[label, row["id"]]
            assert response["value"] == source["values"]["acc"]
            assert response["choice"] == source["choices"]["acc"]
            assert response["logprobs"] == pytest.approx(source["detail"]["logprobs"], abs=0.006)
            assert row["gold"] == source["detail"]["gold"]
    generated = [row for row in rows if row["cell"] == "arc_easy.generation"]
    assert {row["responses"][2]["outcome"] for row in generated} >= {"looped", "ok"}
    needles = [row for row in rows if row["cell"] == "niah.generation"]
    assert {row["context"] for row in needles} == {512, 1024}
    assert all("question" not in row for row in rows)


@pytest.mark.long
def test_samples_of_an_earlier_report_are_removed(small_run: Path, plain: Comparison, tmp_path: Path) -> None:
    shutil.copytree(plain.page.parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "samples" / "gone.generation.js").write_text("x")
    (tmp_path / "samples" / "mine.parquet").write_text("x")
    page = compare([small_run], tmp_path).page.read_text()
    assert not (tmp_path / "samples" / "gone.generation.js").exists()
    assert 'id="sample-open"' in page
    page = compare([small_run], tmp_path, samples=False).page.read_text()
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["mine.parquet"]
    assert 'id="sample-open"' not in page
    assert "data-key" not in page.partition("<script")[0]


def test_question_texts_are_joined_on_request_and_redacted(small_run: Path, tmp_path: Path) -> None:
    def questions(benchmark: str, documents: list[str]) -> dict[str, str]:
        return dict.fromkeys(documents, f"{benchmark}: " + "why? " * 1000)

    compare([small_run], tmp_path / "local", questions=questions)
    texts = [row["question"] for row in sample_rows(tmp_path / "local")]
    assert {len(text) for text in texts} == {4000}
    compare([small_run], tmp_path / "public", questions=questions, redacted=True)
    assert all("question" not in row for row in sample_rows(tmp_path / "public"))


def test_redacted_samples_have_short_responses(small_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")

    def long(_: int, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"detail": row["detail"] | {"response": "so " * 2000}}

    edit_rows(run, "arc_easy", "generation", long)
    for redacted, length in ((False, 2000), (True, 240)):
        compare([run], tmp_path / f"{redacted}", redacted=redacted)
        rows = [row for row in sample_rows(tmp_path / f"{redacted}") if row["cell"] == "arc_easy.generation"]
        texts = [each["text"] for row in rows for each in row["responses"].values()]
        assert {len(text) for text in texts} == {length}


def test_warnings_are_on_the_page(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("f", "F", "knowledge", 50)],
        [SyntheticCheckpoint("a", lambda b, p, c: 0.5)],
    )
    made = compare([run], tmp_path / "out")
    page = made.page.read_text()
    assert "no teacher" in made.text
    assert "No teacher among the checkpoints" in page
    assert "without a teacher there is no recovery" in page


def test_doctor_warnings_appear_in_the_report(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in small_run.iterdir():
        if path.name != "scores.parquet":
            (run / path.name).symlink_to(path)
    weights = read_manifest(small_run).checkpoints[0].weights_id
    checks = [{"name": "batched", "status": "warning", "text": "4 % changed", "changed": 0.04}]
    doctor = {"schema": 1, "checkpoints": [{"label": "teacher", "weights_id": weights, "checks": checks}]}
    (run / "doctor.json").write_text(json.dumps(doctor))
    warnings = compare([run], tmp_path / "out").report.warnings
    assert "Doctor, 'teacher': batched: 4 % changed" in warnings
    assert any("'strong': its gap of 1.5 points is within what" in warning for warning in warnings)
    (run / "doctor.json").write_text(json.dumps(doctor | {"checkpoint": []}))
    with pytest.raises(ConfigError, match=r"doctor\.json: unknown key 'checkpoint'"):
        compare([run], tmp_path / "out")


def test_optional_sections_appear_with_their_data(tmp_path: Path) -> None:
    def made(tokens: int) -> dict[str, Any]:
        return {
            "recipe": {"name": "r", "hash": "h"},
            "mixers": ["gla"] * 7 + ["softmax"],
            "tokens": tokens,
            "seed": 0,
        }

    answerers = [SyntheticCheckpoint("t", lambda b, p, c: 0.8, "teacher")]
    answerers += [SyntheticCheckpoint(f"s{n}", lambda b, p, c: 0.6, lineage=made(n)) for n in (10**6, 10**7)]
    run = make_run(tmp_path / "run", [SyntheticBenchmark("f", "F", "knowledge", 60)], answerers)
    plain = compare([run], tmp_path / "plain").page.read_text()
    assert "Recovery by training tokens" in plain
    assert "1 × softmax + 7 × GLA" in plain
    assert 'id="cost"' not in plain
    costs = [
        {
            "schema": 2,
            "label": "t",
            "weights_id": answerers[0].weights_id,
            "engine": "torch",
            "device": "CPU",
            "dtype": "float32",
            "parameters": 1,
            "kind": "request",
            "context": c,
            "batch": 1,
            "status": "ok",
            "step_ms": {"median": 0.1, "low": 0.1, "high": 0.1, "repeats": 1},
        }
        for c in (512, 2048)
    ]
    (run / "efficiency.jsonl").write_text("".join(json.dumps(cost) + "\n" for cost in costs))
    history = [{"tokens": 1000, "layers": [1]}, {"tokens": 2000, "layers": [7]}]
    selection = {
        "schema": 2,
        "selector": "ga_s2",
        "layers": [7],
        "scores": [0.1] * 7 + [0.9],
        "history": history,
    }
    (run / "selection.json").write_text(json.dumps(selection))
    page = compare([run], tmp_path / "more").page.read_text()
    assert "Decode speed of one sequence by context" in page
    assert "Selects layer 7." in page
    assert "importance by layer" in page
    assert "stability of the selection" not in page
    assert "cost" not in page.split("Selects layer 7")[1].split("</p>")[0]
    (run / "selection.json").write_text(
        json.dumps({**selection, "scores": [-0.5] * 7 + [-0.4], "measure": "minus KL", "seconds": 100})
    )
    page = compare([run], tmp_path / "below").page.read_text()
    assert "Minus KL (relative to the lowest, -0.5)" in page
    assert "Selects layer 7; cost 100 s." in page


def test_policy_adds_its_verdict_to_page_and_files(
    small_run: Path, plain: Comparison, tmp_path: Path
) -> None:
    policy = policy_from_options(min_recovery=0.9, max_gap=5)
    made = compare([small_run], tmp_path / "out", policy=policy)
    alone = run_gate([small_run], policy, out=tmp_path / "gate")
    assert made.verdict == alone
    assert made.verdict.exit_code == 1
    for name in ("junit.xml", "gate.md", "gate.json"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "gate" / name).read_text()
        assert tmp_path / "out" / name in made.files
    page = made.page.read_text()
    assert 'id="gate"' in page
    assert page.count('<span class="outcome') == len(alone.results) == 6
    failing = next(d for d in alone.results if d.outcome == "regression" and d.metric == "recovery")
    assert failing.finding.replace("'", "&#39;").replace("<", "&lt;") in page
    assert all(f"<code>{document}</code>" in page for document in failing.look_at)
    assert "## Gate: proven regression" in (tmp_path / "out" / "report.md").read_text()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["gate"]["exit_code"] == 1
    assert "gate: proven regression" in made.text
    assert 'id="gate"' not in plain.page.read_text()


def test_redacted_page_has_no_absolute_paths(tmp_path: Path) -> None:
    lineage = {"teacher": {"path": "/home/me/teacher", "weights_id": "0"}, "recipe": "C:\\\\me\\r.yaml"}
    answerers = [
        SyntheticCheckpoint("t", lambda b, p, c: 0.8, "teacher"),
        SyntheticCheckpoint("s", lambda b, p, c: 0.6, lineage=lineage),
    ]
    run = make_run(tmp_path / "run", [SyntheticBenchmark("f", "F", "knowledge", 40)], answerers)
    plan = (run / "run.json").read_text().replace('"path": "students/s', '"path": "/home/me/students/s')
    (run / "run.json").write_text(plan)
    (run / "environment.json").write_text(json.dumps({"data": "/home/me/data", "python": "3.11"}))
    public, private = tmp_path / "public", tmp_path / "private"
    compare([run], private)
    compare([run], public, redacted=True)
    for name in ("index.html", "report.json"):
        assert "/home/me" in (private / name).read_text()
        redacted = (public / name).read_text()
        assert "/home/me" not in redacted
        assert str(tmp_path) not in redacted
        assert "teacher" in redacted
    assert "This page is redacted for publication" in (public / "index.html").read_text()
    assert json.loads((public / "report.json").read_text())["redacted"] is True
    assert (public / "leaderboard.csv").read_text() == (private / "leaderboard.csv").read_text()


@pytest.mark.parametrize(
    ("benchmark", "truth", "message"),
    [
        ({"documents": 1}, 0.9999, "one document under log-likelihood is too few"),
        ({"documents": 2}, 0.9999, "S"),
        ({"documents": 40}, 1e-9, "is undefined: the teacher's score is not above zero"),
        ({"documents": 40, "chance": None}, 0.6, "S"),
        ({"documents": 30, "protocols": ("generation",), "seeds": (0, 1, 2)}, 0.6, "S"),
        (
            {"documents": 30, "protocols": ("loglikelihood",), "perplexity": True},
            3.0,
            "no recovery is defined",
        ),
    ],
)
def test_degenerate_runs_are_reported(
    tmp_path: Path, benchmark: dict[str, Any], truth: float, message: str
) -> None:
    answerers = [
        SyntheticCheckpoint("T", lambda b, p, c: truth, "teacher"),
        SyntheticCheckpoint("S", lambda b, p, c: 0.6 if truth < 1 else truth + 0.1),
    ]
    run = make_run(tmp_path / "run", [SyntheticBenchmark("a", "A", "knowledge", **benchmark)], answerers)
    made = compare([run], tmp_path / "out")
    assert message in made.text
    assert message in made.page.read_text().replace("&#39;", "'")
    assert run_gate([run], policy_from_options(min_recovery=0.99)).exit_code in (2, 3)
