"""Time and memory of a report of a million score rows.

    python -m tests.performance.report_throughput --out reports/results/statistics

Writes a synthetic run (ten checkpoints, five benchmarks of 10,000 documents under both protocols), rebuilds
its report in a separate process, as `evalsuite compare RUN` does, and writes throughput.json. The report uses
one thread; on a busy machine, `processor_seconds` is the time that an idle core would need. Exit code: 0 if
the report needs less than 60 s of processor time and 3 GB, 1 if not, 64 or more if it was not measured.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evalsuite.foundation import progress, write_json
from evalsuite.reports.records.run_folder import BenchmarkPlan, CheckpointPlan, Plan, ProtocolPlan, write_plan
from evalsuite.reports.records.schema import ScoreRow
from evalsuite.reports.records.score_files import ScoreFileInfo, ScorerVersion, write_score_file
from tests.parity.exit_codes import exit_with

CHECKPOINTS = 10
BENCHMARKS = 5
SEED = 20_250_414
COMPARE = (
    "import sys; from pathlib import Path; from evalsuite.reports import compare; "
    "compare([Path(sys.argv[1])], Path(sys.argv[2])); "
    "assert 'torch' not in sys.modules"
)


def write_run(run: Path, documents: int) -> int:
    """Write a simulated run and return its number of score rows.

    Args:
        run: the folder.
        documents: documents of each benchmark; difficulty is shared by all checkpoints.
    """
    names = [f"benchmark_{i}" for i in range(BENCHMARKS)]
    labels = ["teacher", *(f"student-{i}" for i in range(1, CHECKPOINTS))]
    write_plan(run, _plan(names, labels, documents))
    rng = np.random.default_rng(SEED)
    for name in progress(names, what="score rows"):
        hard = rng.standard_normal(documents)
        for protocol in ("loglikelihood", "generation"):
            for number, label in enumerate(labels):
                luck = rng.standard_normal(documents)
                right = 0.8 * hard + 0.6 * luck < 0.7 - 0.08 * number
                write_score_file(run, _rows(name, protocol, number, label, right, rng), _info(documents))
    return BENCHMARKS * 2 * CHECKPOINTS * documents


def _plan(names: Sequence[str], labels: Sequence[str], documents: int) -> Plan:
    return Plan(
        suite="throughput",
        created="2026-01-01T00:00:00Z",
        benchmarks=tuple(
            BenchmarkPlan(
                name=name,
                title=name,
                category="knowledge",
                chance=0.25,
                protocols={
                    "loglikelihood": ProtocolPlan(metric="acc", documents=documents),
                    "generation": ProtocolPlan(metric="acc", documents=documents, sampling="greedy"),
                },
            )
            for name in names
        ),
        checkpoints=tuple(
            CheckpointPlan(label=label, weights_id=f"{i:016x}", role="student" if i else "teacher")
            for i, label in enumerate(labels)
        ),
    )


def _info(rows: int) -> ScoreFileInfo:
    scorer = ScorerVersion(scorer="synthetic", version="1", harness="simulation", harness_version="1")
    return ScoreFileInfo(scorer=scorer, inputs="synthetic", rows=rows)


def _rows(
    name: str, protocol: str, number: int, label: str, right: np.ndarray, rng: np.random.Generator
) -> list[ScoreRow]:
    """Score rows of realistic length: four log-probabilities, or a response of two sentences."""
    logprobs = np.round(-rng.gamma(4.0, 2.0, (len(right), 4)), 4).tolist()
    rows = []
    for i, is_right in enumerate(right.tolist()):
        picked = (i + (not is_right)) % 4
        values, choices, detail = {"acc": float(is_right)}, {}, {}
        if protocol == "loglikelihood":
            values["acc_norm"] = float(is_right)
            choices = {"acc": picked, "acc_norm": picked}
            detail = {"logprobs": logprobs[i], "gold": i % 4, "greedy": [False] * 4}
        else:
            text = (
                f"The heavier object needs the larger force, so the answer follows. ANSWER: {'ABCD'[picked]}"
            )
            detail = {"response": text, "extracted": "ABCD"[picked], "target": "ABCD"[i % 4]}
        rows.append(
            ScoreRow(
                weights_id=f"{number:016x}",
                fingerprint=f"{number:016x}",
                benchmark=name,
                protocol=protocol,
                seed=0,
                context=None,
                doc_id=f"{i:016x}",
                prompt_hash=f"{i:015x}p",
                sampling="" if protocol == "loglikelihood" else "greedy",
                checkpoint=label,
                values=values,
                chance=0.25,
                outcome="ok",
                choices=choices,
                detail=detail,
            )
        )
    return rows


def usage_of(command: Sequence[str]) -> resource.struct_rusage:
    """Resources used by this process alone. Raises CalledProcessError if it fails."""
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write throughput.json; 0 if it took less than 60 s of processor time and 3 GB, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.performance.report_throughput", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for throughput.json")
    parser.add_argument(
        "--score-rows", type=int, default=1_000_000, help="approximate number (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        score_rows = write_run(run, max(2, round(options.score_rows / (BENCHMARKS * 2 * CHECKPOINTS))))
        size = sum(path.stat().st_size for path in (run / "scores").iterdir())
        load = os.getloadavg()[0]
        start = time.monotonic()
        command = [sys.executable, "-c", COMPARE, str(run), str(Path(folder) / "report")]
        used = usage_of(command)
        seconds = time.monotonic() - start
        page = (Path(folder) / "report" / "index.html").stat().st_size
    # Linux counts in KiB, macOS in bytes.
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    busy = used.ru_utime + used.ru_stime
    found = {
        "score_rows": score_rows,
        "journal_bytes": size,
        "seconds": round(seconds, 1),
        "processor_seconds": round(busy, 1),
        "load": round(load, 1),
        "processors": os.cpu_count(),
        "peak_bytes": peak,
        "page_bytes": page,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    write_json(options.out / "throughput.json", found)
    print(json.dumps(found, indent=2))
    return 0 if busy < 60 and peak < 3e9 else 1


if __name__ == "__main__":
    exit_with(main)
