"""The page of a study: from a synthetic run folder with known scores to Markdown, CSV and the figure."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from evalsuite.foundation import ConfigError, DataError
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.records.score_files import score_path
from evalsuite.reports.studies.training_choices.page.__main__ import main
from evalsuite.reports.studies.training_choices.page.documents import document_scores, write_documents
from evalsuite.reports.studies.training_choices.page.effects_page import write_page
from evalsuite.reports.studies.training_choices.page.reading import read_study
from evalsuite.reports.studies.training_choices.page.states_page import state_bytes
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

BENCHMARKS = [
    SyntheticBenchmark("options", "Options", "knowledge", documents=150),
    SyntheticBenchmark("needles", "Needles", "recall", documents=60, contexts=(512, 1024)),
]
NAMES = ["options", "needles"]
LEVELS = {
    ("hybrid", "base"): (0.95, 0.85),
    ("hybrid", "ce"): (0.95, 0.55),
    ("hybrid", "uniform"): (0.80, 0.70),
    ("kda", "base"): (0.90, 0.45),
    ("kda", "ce"): (0.90, 0.20),
}
RUNS = [
    {"name": f"{student}-{arm}-seed{seed}", "student": student, "arm": arm, "seed": seed}
    for student, arm in LEVELS
    for seed in range(2)
]
AXES = {
    "objective": {"base": "KL", "arms": ["ce"], "compared_with": "base", "students": None},
    "layers": {"base": "selected", "arms": ["uniform"], "compared_with": "base", "students": ["hybrid"]},
}
MISSING = "hybrid-uniform-seed1"
STATES = {"ce": 1024, "uniform": 2048, "base": 4096}
"""Arm → bytes of state of a layer."""


def _checkpoint(label: str, levels: tuple[float, float], **options: object) -> SyntheticCheckpoint:
    return SyntheticCheckpoint(label, lambda _, p, __: levels[p == "generation"], **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run folder and the output of a study, in which one run failed; tests only read them."""
    tmp_path = tmp_path_factory.mktemp("study")
    models = [_checkpoint("the teacher", (0.99, 0.99), role="teacher")]
    for each in RUNS:
        if each["name"] != MISSING:
            endings = {"looped": 0.9} if each["name"] == "kda-ce-seed0" else {"truncated": 0.3}
            levels = LEVELS[str(each["student"]), str(each["arm"])]
            lineage = {"mixers": ["kda", "kda"], "state_bytes": 2 * STATES[str(each["arm"])]}
            models.append(_checkpoint(str(each["name"]), levels, bad_endings=endings, lineage=lineage))
    run, folder = make_run(tmp_path / "run", BENCHMARKS, models), tmp_path / "study"
    for spec in BENCHMARKS:
        frame = read_run_scores(run, spec.name, "generation").drop_duplicates("doc_id")
        documents = [
            {"doc_id": doc_id, "context": None if context < 0 else int(context), "row": {"prompt": "A B C D"}}
            for doc_id, context in zip(frame["doc_id"], frame["context"], strict=True)
        ]
        (run / "documents").mkdir(exist_ok=True)
        lines = "".join(json.dumps(each) + "\n" for each in documents)
        (run / "documents" / f"{spec.name}.jsonl").write_text(lines)
    (folder / "exposure").mkdir(parents=True)
    design = {
        "name": "gap-study-x",
        "recipe": "gap-study-x",
        "suite": "x",
        "axes": AXES,
        "hybrids": ["hybrid"],
        "runs": RUNS,
    }
    (folder / "study.json").write_text(json.dumps(design))
    row = {
        "benchmark": "options",
        "doc_id": "d",
        "context": None,
        "forced": [True, True],
        "free": [True, False],
    }
    for model in models[1:]:
        path = folder / "exposure" / f"{model.label}.jsonl"
        path.write_text(json.dumps({**row, "logprob": [-0.1, -0.4]}) + "\n")
    # Two jobs at once on a GPU, which is busy for 150 s, and a later one of 30 s on another.
    jobs = [
        {"name": "kda-base-seed0", "seconds": 90.0, "time": 1000, "error": "", "gpu": "0"},
        {"name": "kda-base-seed1", "seconds": 100.0, "time": 1060, "error": "", "gpu": "0"},
        {
            "name": MISSING,
            "seconds": 30.0,
            "time": 1050,
            "error": "Traceback\nOutOfMemory: too large",
            "gpu": "1",
        },
    ]
    (folder / "runs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    return run, folder


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _names(path: Path) -> list[str]:
    texts = ElementTree.fromstring(path.read_text()).iterfind("{*}text[@class='name']")
    return [str(each.text) for each in texts]


def _number(text: str) -> float:
    return float(re.sub(r"[^\d.+−-]", "", text.partition(" (")[0]).replace("−", "-"))


def test_the_page_states_drops_effects_and_causes(study: tuple[Path, Path], tmp_path: Path) -> None:
    run, folder = study
    out = tmp_path / "page"
    rule = tmp_path / "rule.yaml"
    rule.write_text("min_documents: 120")
    assert main([str(run), "--study", str(folder), "--out", str(out), "--rule", str(rule)]) == 0
    page = (out / "README.md").read_text()
    assert "The best pure student is `kda` (runs of the base: 2)" in page
    assert "The paper's finding holds here" in page
    drops = {row["student"]: row for row in _rows(out / "drops.csv")}
    assert _number(drops["`kda`"]["drop, log-likelihood"]) == pytest.approx(9, abs=6)
    assert _number(drops["`kda`"]["drop, generation"]) == pytest.approx(54, abs=8)
    effects = {(row["choice"], row["student"]): row for row in _rows(out / "effects.csv")}
    assert set(effects) == {
        ("objective: ce for KL", "`hybrid`"),
        ("objective: ce for KL", "`kda`"),
        ("objective: ce for KL", "mean"),
        ("layers: uniform for selected", "`hybrid`"),
    }
    assert _number(effects["objective: ce for KL", "mean"]["generation"]) == pytest.approx(-27.5, abs=8)
    assert abs(_number(effects["objective: ce for KL", "mean"]["log-likelihood"])) < 6
    # Table 12: uniform 37.1, beam add 41.0.
    assert effects["layers: uniform for selected", "`hybrid`"]["paper, generation"] == "−3.8"
    assert _names(out / "effects.svg") == [
        "objective: ce, hybrid",
        "objective: ce, kda",
        "objective: ce, mean",
        "layers: uniform, hybrid",
    ]
    assert _names(out / "drops.svg") == ["hybrid", "kda"]


def test_an_effect_names_the_arm_that_it_is_compared_with(study: tuple[Path, Path], tmp_path: Path) -> None:
    run, folder = study
    design = json.loads((folder / "study.json").read_text())
    design["axes"]["layers"] |= {"arms": ["ce", "uniform"], "compared_with": "ce"}
    (tmp_path / "study.json").write_text(json.dumps(design))
    for name in ("exposure", "runs.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    write_page(read_study(run, tmp_path, NAMES), tmp_path / "page")
    row = next(each for each in _rows(tmp_path / "page" / "effects.csv") if "uniform" in each["choice"])
    assert row["choice"] == "layers: uniform for ce"


def test_the_parts_of_the_gap_add_up_on_the_page(study: tuple[Path, Path], tmp_path: Path) -> None:
    write_page(read_study(*study, NAMES), tmp_path / "page")
    rows = _rows(tmp_path / "page" / "decomposition.csv")
    drops = {row["student"]: row for row in _rows(tmp_path / "page" / "drops.csv")}
    for student in ("`hybrid`", "`kda`"):
        parts = [_number(row[student]) for row in rows[:-1]]
        assert sum(parts) == pytest.approx(_number(rows[-1][student]), abs=0.06 * len(parts))
        assert _number(rows[-1][student]) == pytest.approx(_number(drops[student]["gap"]), abs=0.051)
        assert parts[1] > 0


def test_drops_can_be_recomputed_from_the_scores_of_documents(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    data = read_study(*study, NAMES)
    write_page(data, tmp_path)
    write_documents(data, tmp_path)
    frame = pd.read_parquet(tmp_path / "documents.parquet")
    assert len(frame) == 270
    assert frame.groupby("benchmark", sort=False)["context"].unique().map(sorted).to_dict() == {
        "options": [-1],
        "needles": [512, 1024],
    }
    means = frame.drop(columns=["doc_id", "context"]).groupby("benchmark").mean().mean()
    drops = {row["student"]: row for row in _rows(tmp_path / "drops.csv")}
    for protocol, column in (("loglikelihood", "drop, log-likelihood"), ("generation", "drop, generation")):
        runs = [means[f"{protocol}/kda-base-seed{seed}"] for seed in (0, 1)]
        drop = 100 * (means[f"{protocol}/teacher"] - sum(runs) / 2)
        assert drop == pytest.approx(_number(drops["`kda`"][column]), abs=0.051)


def test_scores_of_all_checkpoints_need_no_study(study: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = study
    assert main([str(run), "--page", "scores", "--out", str(tmp_path)]) == 0
    data = read_study(*study, NAMES)
    documents = pd.read_parquet(tmp_path / "documents.parquet")
    expected = document_scores(data)
    assert sorted(documents.columns) == sorted(expected.columns)
    assert documents[expected.columns].equals(expected)
    scores = pd.read_csv(tmp_path / "scores.csv")
    key = ["benchmark", "protocol", "context", "seed", "label"]
    assert scores[key].equals(scores[key].drop_duplicates().sort_values(key, ignore_index=True))
    assert len(scores) == 10 * 2 * 3
    for row in scores.fillna({"context": -1}).itertuples():
        here = (documents["benchmark"] == row.benchmark) & (documents["context"] == row.context)
        assert row.documents == here.sum()
        values = documents.loc[here, f"{row.protocol}/{row.label}"]
        assert row.score == pytest.approx(values.mean(), abs=5.1e-5)
        assert 0 < row.low < row.score <= row.high <= 1
    counts = scores.groupby("label")[["looped", "truncated"]].sum()
    for label, responses in data.responses.items():
        found = [(responses.outcome == name).sum() for name in counts.columns]
        assert list(counts.loc[label]) == found
    assert counts.loc["kda-ce-seed0", "looped"] > 0


def test_scores_of_a_benchmark_with_one_protocol_are_nan_under_the_other(tmp_path: Path) -> None:
    alone = SyntheticBenchmark("found", "Found", "recall", documents=40, protocols=("generation",))
    models = [_checkpoint("base", (0.9, 0.7), role="teacher"), _checkpoint("kda", (0.8, 0.5))]
    run = make_run(tmp_path / "run", [BENCHMARKS[0], alone], models)
    assert main([str(run), "--page", "scores", "--out", str(tmp_path / "out")]) == 0
    documents = pd.read_parquet(tmp_path / "out" / "documents.parquet")
    found = documents["benchmark"] == "found"
    assert found.sum() == 40
    assert documents.loc[found].filter(like="loglikelihood/").isna().all(axis=None)
    assert documents.loc[~found].notna().all(axis=None)
    scores = pd.read_csv(tmp_path / "out" / "scores.csv").set_index(["benchmark", "protocol", "label"])[
        "score"
    ]
    assert ("found", "loglikelihood", "kda") not in scores.index
    mean = documents.loc[found, "generation/kda"].mean()
    assert scores["found", "generation", "kda"] == pytest.approx(mean, abs=5.1e-5)


def test_any_checkpoint_can_be_the_teacher_and_those_with_too_few_documents_have_no_column(
    study: tuple[Path, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(study[0], tmp_path / "run")
    frame = read_run_scores(run, "needles", "generation").set_index("checkpoint")
    fingerprint = frame["fingerprint"].loc["kda-ce-seed1"].iloc[0]
    score_path(run, "needles", "generation", fingerprint).unlink()
    arguments = [str(run), "--page", "scores", "--out", str(tmp_path), "--teacher", "kda-base-seed0"]
    assert main([*arguments, "--without", "options"]) == 0
    documents = pd.read_parquet(tmp_path / "documents.parquet")
    expected = document_scores(read_study(*study, ["needles"]))
    assert documents["generation/teacher"].equals(expected["generation/kda-base-seed0"])
    assert documents["generation/the teacher"].equals(expected["generation/teacher"])
    assert not [name for name in documents if name.endswith("/kda-ce-seed1")]
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert set(scores["benchmark"]) == {"needles"}
    assert set(scores.loc[scores["label"] == "kda-ce-seed1", "protocol"]) == {"loglikelihood"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "--page effects: needs --study"),
        (["--page", "scores", "--study", "study"], "--page scores: takes no --study"),
        (["--page", "scores"], "'teacher' and the teacher, 'base', would have one name"),
    ],
)
def test_what_scores_cannot_be_written_of_is_refused(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", BENCHMARKS[:1], {"base": 0.9, "teacher": 0.5})
    assert main([str(run), "--out", str(tmp_path / "page"), *options]) == 64
    assert why in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_missing_and_collapsed_runs_are_named(study: tuple[Path, Path], tmp_path: Path) -> None:
    page = write_page(read_study(*study, NAMES), tmp_path / "page").read_text()
    assert "9 of 10 runs, 270 documents of 2 benchmarks" in page
    assert f"Missing: `{MISSING}` (OutOfMemory: too large)." in page
    assert "Collapsed (loops in more than half of the responses), kept in all tables: `kda-ce-seed0`." in page
    assert "GPU time of all jobs that ended: 3 minutes" in page


def test_the_page_of_orders_says_what_an_arm_reverses(study: tuple[Path, Path], tmp_path: Path) -> None:
    """`uniform` leaves the hybrid below kda under log-likelihood; `ce` keeps it ahead under generation."""
    run, folder = study
    design = json.loads((folder / "study.json").read_text())
    design["axes"]["objective"]["published_for"] = ["kda"]
    (tmp_path / "study.json").write_text(json.dumps(design))
    for name in ("exposure", "runs.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    out = tmp_path / "page"
    rule = tmp_path / "rule.yaml"
    rule.write_text("min_documents: 120")
    arguments = [str(run), "--study", str(tmp_path), "--out", str(out), "--rule", str(rule)]
    assert main([*arguments, "--page", "orders"]) == 0
    rows = {(r["defect"], r["present"], r["protocol"]): r for r in _rows(out / "orders.csv")}
    reversed_row = rows["uniform", "in every mixer", "log-likelihood"]
    assert (reversed_row["pair"], reversed_row["order"]) == ("`hybrid` − `kda`", "reversed")
    assert _number(reversed_row["with"]) == pytest.approx(-10, abs=6)
    for present, shift in (("in every mixer", -5), ("where published", 25)):
        row = rows["ce", present, "generation"]
        assert row["order"] == "kept"
        assert _number(row["shift"]) == pytest.approx(shift, abs=8)
    page = (out / "README.md").read_text()
    assert "the order of mixers is reversed by uniform (in every mixer: `kda` ahead of `hybrid`)" in page
    assert "generation: the order of mixers is reversed by no defect" in page
    has_it = {(r["defect"], r["mixer"]): r["published code has it"] for r in _rows(out / "defects.csv")}
    assert (has_it["ce", "`kda`"], has_it["ce", "`hybrid`"], has_it["ce", "mean"]) == ("yes", "no", "–")
    assert f"Missing: `{MISSING}` (OutOfMemory: too large)." in page


def test_an_unknown_key_of_an_axis_is_refused(study: tuple[Path, Path], tmp_path: Path) -> None:
    run, folder = study
    design = json.loads((folder / "study.json").read_text())
    design["axes"]["layers"]["student"] = ["hybrid"]
    (tmp_path / "study.json").write_text(json.dumps(design))
    with pytest.raises(ConfigError, match=r"axes.layers: unknown key 'student'; did you mean 'students'"):
        read_study(run, tmp_path, NAMES)


def test_the_page_of_states_shows_every_benchmark_and_how_many_runs_a_size_has(
    study: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under generation the hybrid gains 15 points per doubling; kda has two sizes, too few for a line."""
    run, folder = study
    design = json.loads((folder / "study.json").read_text())
    for name in ("exposure", "runs.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    out = tmp_path / "page"
    arguments = [str(run), "--study", str(tmp_path), "--out", str(out), "--page", "states"]
    (tmp_path / "study.json").write_text(json.dumps(design))
    assert main(arguments) == 64
    assert "has 2 axes (objective, layers)" in capsys.readouterr().err
    design["axes"] = {"width": {**AXES["objective"], "arms": ["ce", "uniform"]}}
    (tmp_path / "study.json").write_text(json.dumps(design))
    assert main(arguments) == 0
    slopes = {(r["student"], r["benchmark"], r["protocol"]): r for r in _rows(out / "slopes.csv")}
    assert {student for student, _, _ in slopes} == {"hybrid"}
    for title in ("Options", "Needles"):
        row = slopes["hybrid", title, "generation"]
        assert (row["runs"], row["as states grow"]) == ("5", "rises")
        assert _number(row["points per doubling"]) == pytest.approx(15, abs=5)
    sizes = {(r["student"], r["bytes of state"]): r for r in _rows(out / "sizes.csv")}
    assert sizes["hybrid", "4,096"]["runs"] == "1 of 2"
    assert sizes["hybrid", "8,192"]["width"] == "KL"
    assert {r["bytes of state"] for r in _rows(out / "runs.csv")} == {"", "2048", "4096", "8192"}
    page = (out / "README.md").read_text()
    assert f"Missing: `{MISSING}` (OutOfMemory: too large)." in page
    assert "Options counts in no average: 150 documents have both protocols (at least 500 needed)." in page
    html = (out / "states.html").read_text()
    assert "Needles, generation" in html
    assert "9 of 10 runs" in html


@pytest.mark.parametrize(
    ("lineage", "why"),
    [({}, "states no bytes of state"), ({"mixers": ["kda", "softmax"]}, "has softmax layers")],
)
def test_a_student_without_a_state_of_one_size_is_refused(
    study: tuple[Path, Path], lineage: dict[str, object], why: str
) -> None:
    data = read_study(*study, NAMES)
    changed = {"kda-ce-seed0": replace(data.checkpoints["kda-ce-seed0"], lineage=lineage)}
    with pytest.raises(DataError, match=f"kda-ce-seed0: {why}"):
        state_bytes(replace(data, checkpoints={**data.checkpoints, **changed}))


def test_benchmarks_that_are_not_admitted_are_left_out(study: tuple[Path, Path]) -> None:
    data = read_study(*study, ["needles"])
    assert data.scores.names == ("needles",)
    assert len(data.scores.benchmarks) == 120
    assert data.exposure["kda-base-seed0"] == []
    with pytest.raises(DataError, match="no benchmark needle with both protocols; it has options, needles"):
        read_study(*study, ["needle"])


def test_the_rule_of_admission_decides_which_documents_count(
    study: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = study
    rule = tmp_path / "rule.yaml"
    rule.write_text("min_documents: 130")
    options = [str(run), "--study", str(folder), "--out", str(tmp_path / "page")]
    assert main([*options, "--rule", str(rule)]) == 0
    page = (tmp_path / "page" / "README.md").read_text()
    assert "150 documents of 1 benchmark that" in page
    assert "- Not counted: Needles: 120 documents have both protocols (at least 130 needed)." in page
    assert main(options) == 64
    assert "no benchmark is admitted" in capsys.readouterr().err


def test_a_benchmark_can_be_left_out_of_the_page(
    study: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = study
    rule = tmp_path / "rule.yaml"
    rule.write_text("min_documents: 20")
    options = [str(run), "--study", str(folder), "--out", str(tmp_path / "page"), "--rule", str(rule)]
    assert main([*options, "--without", "needles"]) == 0
    page = (tmp_path / "page" / "README.md").read_text()
    assert "150 documents of 1 benchmark that" in page
    assert "- Not counted: Needles: left out by --without." in page
    assert "`documents.parquet` of the page of all benchmarks" in page
    assert main([*options, "--without", "needle"]) == 64
    assert "--without needle: no admitted benchmark; did you mean 'needles'?" in capsys.readouterr().err


def test_a_run_without_a_teacher_is_refused(
    study: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [_checkpoint("kda-base-seed0", (0.9, 0.5))]
    run = make_run(tmp_path / "other", BENCHMARKS[:1], models)
    assert main([str(run), "--study", str(study[1]), "--out", str(tmp_path / "page")]) == 64
    assert "has 0 teachers" in capsys.readouterr().err


def test_a_protocol_without_scores_is_refused(study: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "unfinished"
    shutil.copytree(study[0], run)
    for path in (run / "scores").glob("needles.generation.*"):
        path.unlink()
    with pytest.raises(DataError, match="needles has no scores under generation"):
        read_study(run, study[1], NAMES)
