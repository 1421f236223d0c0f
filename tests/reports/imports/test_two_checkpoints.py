"""lm-eval 0.4.13 on SmolLM2-135M-Instruct and a hybrid student: 200 documents of three tasks each.

The stored logs hold document hashes, log-probabilities, lengths of the choices and scores, but no text.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.imported_logs import import_as_runs
from evalsuite.reports import RunSelection, policy_from_options, run_gate
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.records.score_table import score_table
from evalsuite.reports.report import build_report

STORED = Path(__file__).parent / "fixtures" / "lm_eval"
TEACHER = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of --output_path."""
    folder = tmp_path_factory.mktemp("logs")
    for path in STORED.glob("*.json.gz"):
        stored = read(path)
        inner = folder / path.name.split(".")[0]
        inner.mkdir()
        (inner / f"results_{stored['date']}.json").write_text(json.dumps(stored["results"]))
        for name, rows in stored["samples"].items():
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (inner / f"samples_{name}_{stored['date']}.jsonl").write_text(lines)
    return folder


def read(path: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return stored


@pytest.fixture(scope="module")
def runs(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return import_as_runs([("lm-eval", logs)], tmp_path_factory.mktemp("imported"))


def test_every_score_is_that_of_lm_eval(runs: list[Path]) -> None:
    reported = {
        stored["results"]["model_name"].split("/")[-1]: stored["results"]["results"]
        for stored in map(read, STORED.glob("*.json.gz"))
    }
    compared = 0
    for run in runs:
        for _, row in score_table(run).iterrows():
            assert row["score"] == reported[row["label"]][row["benchmark"]][f"{row['metric']},none"]
            assert row["documents"] == 200
            compared += 1
    assert compared == 10


def test_choices_agree_as_the_log_probabilities_say(runs: list[Path]) -> None:
    """Agreement recomputed from the stored log-probabilities."""
    report = build_report(runs, RunSelection(teacher=TEACHER))
    one, other = (read(STORED / f"{name}.json.gz")["samples"] for name in ("teacher", "student"))
    shares = {
        name: np.mean(
            [
                np.argmax([float(each[0]) for each in a["filtered_resps"]])
                == np.argmax([float(each[0]) for each in b["filtered_resps"]])
                for a, b in zip(one[name], other[name], strict=True)
            ]
        )
        for name in one
    }
    found = {row.benchmark: row for row in report.scores if row.checkpoint == 1}
    assert set(found) == set(shares) == {"arc_easy", "piqa", "winogrande"}
    agreement = agreement_with_teacher(report, 1, "loglikelihood")
    assert agreement is not None
    assert agreement.agreement.point == pytest.approx(np.mean(list(shares.values())))
    for name, row in found.items():
        flips = [a["acc"] - b["acc"] for a, b in zip(one[name], other[name], strict=True)]
        assert (row.losses, row.wins) == (flips.count(1.0), flips.count(-1.0))


def test_the_gate_decides(runs: list[Path], tmp_path: Path) -> None:
    codes = [
        run_gate(
            runs,
            policy_from_options(min_recovery=minimum),
            out=tmp_path,
            selection=RunSelection(teacher=TEACHER),
        ).exit_code
        for minimum in (0.8, 0.95, 1.2)
    ]
    assert codes == [0, 2, 1]
