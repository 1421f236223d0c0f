"""Distances: the published sums per document give the published table; bad files are refused; the gate."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from evalsuite.foundation import DataError
from evalsuite.reports import policy_from_options, run_gate
from evalsuite.reports.analysis.counting import Counting
from evalsuite.reports.exports.loss_statement import loss_statement
from evalsuite.reports.measures.distances import DISTANCES, distance_of
from evalsuite.reports.measures.distances.rows import DistanceRow, distance_rows
from evalsuite.reports.measures.leaderboard import Entry, leaderboard
from evalsuite.reports.records.distances import COLUMNS as FIELDS
from evalsuite.reports.records.distances import DISTANCE_FILE, FILE
from evalsuite.reports.report import build_report
from evalsuite.reports.run import read_manifest
from evalsuite.reports.statistics.yardstick import equivalent_bits

RESULTS = Path(__file__).parents[3] / "reports" / "results" / "distances"
STUDENTS = ("hybrid", "kda", "kl-only", "linear_attention")
ROUNDINGS = (8, 6, 5, 4, 3, 2)


def published(benchmarks: tuple[str, ...]) -> pd.DataFrame:
    """The published sums at the answers of some benchmarks as rows of `distances.parquet`."""
    sums = pd.read_parquet(RESULTS / "answers.parquet")
    sums = sums[sums["benchmark"].isin(benchmarks)]
    frames = []
    for name, bits in (*((name, None) for name in STUDENTS), *((f"{b}-bit", b) for b in ROUNDINGS)):
        frames.append(
            frame_of(
                weights_id=name if bits is None else "teacher",
                bits=bits,
                source=sums["benchmark"],
                doc_id=sums["doc_id"],
                tokens=sums["tokens"],
                kl=sums[f"{name}.kl"],
                agreement=sums[f"{name}.agreement"],
            )
        )
    return pd.concat(frames, ignore_index=True)


def frame_of(**columns: object) -> pd.DataFrame:
    """Rows with defaults for what a test does not state."""
    base = {
        "weights_id": "s",
        "bits": None,
        "same_recipe_as": None,
        "teacher": "teacher",
        "text": "answers",
        "source": "a",
        "token_class": None,
        "positions": None,
        "tokens": 4,
        "kl": 1.0,
        "agreement": 2,
        "teacher_nll": 1.0,
        "student_nll": 2.0,
    }
    frame = pd.DataFrame(base | columns)
    return frame.assign(bits=frame["bits"].astype("Int64"))[list(FIELDS)]


def tensor_of(*labels: str) -> SimpleNamespace:
    """Checkpoints that are named by their weights, the first of them the teacher."""
    return SimpleNamespace(
        checkpoints=[
            SimpleNamespace(weights_id=name, label=name, teacher=0 if i else None)
            for i, name in enumerate(labels)
        ],
        cells=(),
        counting=Counting(()),
    )


def find(rows: list[DistanceRow], **wanted: object) -> DistanceRow:
    """The only row with these fields."""
    (row,) = (r for r in rows if all(getattr(r, name) == value for name, value in wanted.items()))
    return row


def test_sums_per_document_give_the_published_table(tmp_path: Path) -> None:
    small = ("arc_challenge", "mmlu", "winogrande")
    frame = published(small)
    DISTANCE_FILE.add(tmp_path, frame)
    rows = distance_rows(tensor_of("teacher", *STUDENTS), DISTANCE_FILE.read_all([tmp_path]))
    sums = pd.read_parquet(RESULTS / "answers.parquet")
    for number, name in enumerate(STUDENTS, 1):
        row = find(rows, checkpoint=number, kind="all")
        parts = [part for _, part in sums.groupby("benchmark") if part["benchmark"].iloc[0] in small]
        means = [part[f"{name}.kl"].sum() / part["tokens"].sum() for part in parts]
        assert row.kl.point == pytest.approx(np.mean(means))
        same = [part[f"{name}.agreement"].sum() / part["tokens"].sum() for part in parts]
        assert row.agreement.point == pytest.approx(np.mean(same))
        assert row.kl.low < row.kl.point < row.kl.high
        assert (
            row.equivalent_bits.interval.low < row.equivalent_bits.point < row.equivalent_bits.interval.high
        )
        source = find(rows, checkpoint=number, kind="source", group="mmlu")
        assert source.kl.point == pytest.approx(means[1])
    order = [find(rows, checkpoint=None, bits=bits, kind="all").kl.point for bits in ROUNDINGS]
    assert order == sorted(order)
    assert find(rows, bits=8, kind="all").equivalent_bits.why == "a rounding"


def test_bits_of_the_published_distances() -> None:
    table = pd.read_csv(RESULTS / "distances.csv").set_index("model")
    table = table[table["text"] == "answers"]
    scale = {bits: table.loc[f"{bits}-bit", "kl"] for bits in ROUNDINGS}
    for name in STUDENTS:
        found = float(equivalent_bits(np.array(table.loc[name, "kl"]), scale))
        assert found == pytest.approx(table.loc[name, "equivalent_bits"], abs=0.005)
    assert equivalent_bits(np.array([scale[5]]), scale) == pytest.approx([5])


def test_a_scale_without_order_or_marks_gives_no_bits() -> None:
    assert equivalent_bits(np.array(1.0), {8: 0.1}) == "the yardstick has fewer than two marks"
    assert "does not grow" in equivalent_bits(np.array(1.0), {8: 0.3, 4: 0.2})
    assert equivalent_bits(np.array(1e-9), {8: 0.0, 6: 0.1, 4: 1.0}) == pytest.approx(6.0)


def test_classes_and_positions_are_token_means_over_documents() -> None:
    rng = np.random.default_rng(3)
    rows = [
        {"doc_id": f"d{d}", "token_class": c, "positions": p, "tokens": int(n), "kl": float(n * k)}
        for d in range(30)
        for c in ("copied", "rare")
        for p, n, k in (("0-511", rng.integers(5, 50), rng.random()), ("512-1023", 7, rng.random()))
    ]
    frame = pd.concat([frame_of(**{k: [v] for k, v in row.items()}, text="held-out") for row in rows])
    found = distance_rows(tensor_of("teacher", "s"), frame)
    table = pd.DataFrame(rows)
    for kind, group in (("token_class", "copied"), ("positions", "512-1023")):
        part = table[table[kind] == group]
        row = find(found, kind=kind, group=group)
        assert row.kl.point == pytest.approx(part["kl"].sum() / part["tokens"].sum())
        assert (row.documents, row.tokens) == (30, int(part["tokens"].sum()))
    assert find(found, kind="all").equivalent_bits.why.startswith("the run has no yardstick")


def test_distances_beyond_the_scale_have_a_reason() -> None:
    documents = [f"d{i}" for i in range(20)]
    kl = {None: 9.0, 8: 0.1, 4: 2.0}
    frame = pd.concat(
        [
            frame_of(doc_id=documents, weights_id="s" if bits is None else "teacher", bits=bits, kl=value)
            for bits, value in kl.items()
        ]
    )
    row = find(distance_rows(tensor_of("teacher", "s"), frame), checkpoint=1)
    assert row.equivalent_bits.why == "further from the teacher than rounding it to 4 bits"


def test_a_model_that_lacks_a_benchmark_has_no_macro_mean() -> None:
    frame = pd.concat(
        [
            frame_of(doc_id=["x", "y", "z"], weights_id=name, source=source, kl=[1.0, 2.0, 3.0])
            for name, sources in (("s", "ab"), ("part", "a"))
            for source in sources
        ]
    )
    rows = distance_rows(tensor_of("teacher", "s", "part"), frame)
    assert [row.checkpoint for row in rows if row.kind == "all"] == [1]
    assert {(row.checkpoint, row.group) for row in rows if row.kind == "source"} == {
        (1, "a"),
        (1, "b"),
        (2, "a"),
    }


def test_weights_of_a_recipe_trained_again_stand_next_to_the_checkpoint() -> None:
    documents = [f"d{i}" for i in range(20)]
    frame = pd.concat(
        [
            frame_of(doc_id=documents, weights_id="s", kl=1.0),
            frame_of(doc_id=documents, weights_id="s again", kl=2.0, same_recipe_as="s"),
            frame_of(doc_id=documents, weights_id="lost again", kl=3.0, same_recipe_as="lost"),
            frame_of(doc_id=documents, weights_id="unknown again", kl=4.0, same_recipe_as="unknown"),
        ]
    )
    rows = distance_rows(tensor_of("teacher", "s", "lost"), frame)
    found = [(row.checkpoint, row.is_retrained, row.kl.point) for row in rows if row.kind == "all"]
    assert found == [(1, False, 0.25), (1, True, 0.5), (2, True, 0.75)]


def test_weights_trained_again_are_marked_and_do_not_pass_the_gate(small_run: Path, tmp_path: Path) -> None:
    from shutil import copytree

    run = copytree(small_run, tmp_path / "run")
    ids = {each.label: each.weights_id for each in read_manifest(run).checkpoints}
    documents = [f"d{i}" for i in range(50)]
    for weights_id, original in ((ids["strong"], None), ("weak again", ids["weak"])):
        rows = frame_of(doc_id=documents, kl=0.4, weights_id=weights_id, same_recipe_as=original)
        DISTANCE_FILE.add(run, rows.assign(teacher=ids["teacher"]))
    report = build_report([run])
    column = report.of(leaderboard)[0].column
    entries = [Entry.of(report, report.average(i, "loglikelihood")) for i in (1, 2)]
    assert [column("kl").text(report, entry) for entry in entries] == [
        "0.100",
        "0.100 †",
    ]
    assert [column("distance_trained_again").of(report, entry) for entry in entries] == [0, 1]
    by_label = {line.split(",")[0]: line.split(",")[1] for line in DISTANCES.csv(report).splitlines()}
    assert by_label == {"label": "trained_again", "strong": "0", "weak": "1"}
    strong, weak = run_gate([run], policy_from_options(max_kl=0.5)).results
    assert (strong.outcome, weak.outcome) == ("pass", "unmeasured")
    assert "no distances of 'weak'" in weak.why
    assert "KL divergence" in loss_statement(report, 1)
    assert "Distance from the teacher over the whole vocabulary" in loss_statement(report, 2)


def test_report_columns_and_gate_read_the_run_folder(small_run: Path, tmp_path: Path) -> None:
    from shutil import copytree

    run = copytree(small_run, tmp_path / "run")
    plan = read_manifest(run)
    ids = {each.label: each.weights_id for each in plan.checkpoints}
    rng = np.random.default_rng(5)
    for label, level in (("strong", 0.1), ("weak", 0.9)):
        kl = 4 * level * (1 + 0.2 * rng.standard_normal(50))
        documents = [f"d{i}" for i in range(50)]
        DISTANCE_FILE.add(
            run, frame_of(doc_id=documents, kl=kl, weights_id=ids[label], teacher=ids["teacher"])
        )
    report = build_report([run])
    weak = distance_of(report, 2)
    assert weak.kl.point == pytest.approx(0.9, abs=0.1)
    column = report.of(leaderboard)[0].column
    entry = Entry.of(report, report.average(2, "loglikelihood"))
    assert column("kl").text(report, entry) == f"{weak.kl.point:.3f}"
    informative = Entry.of(report, report.average(2, "loglikelihood", "informative"))
    assert column("kl").text(report, informative) == report.of(leaderboard)[0].column("kl").text(
        report, entry
    )
    assert (
        report.of(leaderboard)[0]
        .column("kl")
        .text(report, Entry.of(report, report.average(2, "loglikelihood", "knowledge")))
        == "–"
    )
    verdict = run_gate([run], policy_from_options(max_kl=0.5))
    assert [(each.checkpoint, each.outcome) for each in verdict.results] == [
        ("strong", "pass"),
        ("weak", "regression"),
    ]
    assert verdict.results[1].sentence.startswith(f"{weak.kl.point:.3f} nats (")
    (run / FILE).unlink()
    missing = run_gate([run], policy_from_options(max_kl=0.5))
    assert missing.exit_code == 3
    assert "no distances of 'strong'" in missing.results[0].why


def test_a_model_that_is_measured_again_replaces_its_rows(tmp_path: Path) -> None:
    DISTANCE_FILE.add(tmp_path, frame_of(doc_id=["a", "b"], kl=1.0))
    DISTANCE_FILE.add(tmp_path, frame_of(doc_id=["a", "b"], kl=1.0, weights_id="other"))
    DISTANCE_FILE.add(tmp_path, frame_of(doc_id=["a"], kl=3.0))
    frame = DISTANCE_FILE.read(tmp_path / FILE)
    assert frame.groupby("weights_id")["kl"].apply(list).to_dict() == {"other": [1.0, 1.0], "s": [3.0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl": [1.0, -1.0]}, "row 2: 'kl' is negative or not finite"),
        ({"kl": [float("inf"), 1.0]}, "row 1: 'kl' is negative or not finite"),
        ({"agreement": [5, 2]}, "row 1: 'agreement' is not between 0 and 'tokens'"),
        ({"tokens": [0, 4], "agreement": 0}, "row 1: 'tokens' is below 1"),
        ({"doc_id": ["a", "a"]}, "row 2: the same model, document and group is there twice"),
        ({"source": [None, "a"]}, "'source' is missing"),
        ({"same_recipe_as": "s"}, "row 1: 'same_recipe_as' is the same weights"),
        ({"same_recipe_as": "t", "bits": 4}, "row 1: a rounded teacher .* has no recipe"),
    ],
)
def test_impossible_rows_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DISTANCE_FILE.add(tmp_path, frame_of(**({"doc_id": ["a", "b"]} | change)))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"no parquet")
    with pytest.raises(DataError, match="not a file of distances"):
        DISTANCE_FILE.read_all([tmp_path])
    frame_of(doc_id=["a"]).to_parquet(path)
    with pytest.raises(DataError, match="not a file of distances"):
        DISTANCE_FILE.read_all([tmp_path])
    assert DISTANCE_FILE.read_all([tmp_path / "nowhere"]) is None
