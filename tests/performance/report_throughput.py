"""Time and memory of a report of a million score rows.

    python -m tests.performance.report_throughput --out reports/results/statistics
    python -m tests.performance.report_throughput --out reports/results/statistics --name wide.json \\
        --checkpoints 100 --benchmarks 50 --score-rows 1000000 --max-seconds 300

Writes a synthetic run (by default ten checkpoints, five benchmarks of 10,000 documents under both protocols),
rebuilds its report and its gate in processes of their own, as `evalsuite compare RUN` and `evalsuite gate
RUN` do, and writes the measurements. Both use one thread; on a busy machine, `processor_seconds` is the time
that an idle core would need. Exit code: 0 if each needs less than 3 GB and `--max-seconds` of processor time,
and the page less than 10 MB; 1 if not; 64 or more if it was not measured.
"""

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

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import progress, write_json
from evalsuite.foundation.parser import Parser
from evalsuite.reports.records.schema import ScoreRow
from evalsuite.reports.records.score_files import ScoreFileInfo, ScorerVersion, write_score_file
from evalsuite.reports.run import Benchmark, Checkpoint, Manifest, ProtocolSettings, write_manifest

CHECKPOINTS = 10
BENCHMARKS = 5
SEED = 20_250_414
MAX_BYTES, MAX_PAGE_BYTES = 3e9, 10e6
GATE = (
    "import sys; from pathlib import Path; from evalsuite.reports import policy_from_options, run_gate; "
    "run_gate([Path(sys.argv[1])], policy_from_options(min_recovery=0.5), out=Path(sys.argv[2])); "
    "assert 'torch' not in sys.modules"
)
COMPARE = (
    "import sys; from pathlib import Path; from evalsuite.reports import compare; "
    "compare([Path(sys.argv[1])], Path(sys.argv[2])); "
    "assert 'torch' not in sys.modules"
)


def write_run(run: Path, documents: int, checkpoints: int = CHECKPOINTS, benchmarks: int = BENCHMARKS) -> int:
    """Write a simulated run and return its number of score rows.

    Args:
        run: the folder.
        documents: documents of each benchmark; difficulty is shared by all checkpoints.
        checkpoints: number of checkpoints, the teacher among them.
        benchmarks: number of benchmarks, each under both protocols.
    """
    names = [f"benchmark_{i}" for i in range(benchmarks)]
    labels = ["teacher", *(f"student-{i}" for i in range(1, checkpoints))]
    write_manifest(run, _plan(names, labels, documents))
    rng = np.random.default_rng(SEED)
    for name in progress(names, what="score rows"):
        hard = rng.standard_normal(documents)
        for protocol in ("loglikelihood", "generation"):
            for number, label in enumerate(labels):
                luck = rng.standard_normal(documents)
                right = 0.8 * hard + 0.6 * luck < 0.7 - 0.8 * number / checkpoints
                write_score_file(run, _rows(name, protocol, number, label, right, rng), _info(documents))
    return benchmarks * 2 * checkpoints * documents


def _plan(names: Sequence[str], labels: Sequence[str], documents: int) -> Manifest:
    return Manifest(
        suite="throughput",
        created="2026-01-01T00:00:00Z",
        benchmarks=tuple(
            Benchmark(
                name=name,
                title=name,
                category="knowledge",
                chance=0.25,
                protocols={
                    "loglikelihood": ProtocolSettings(metric="acc", documents=documents),
                    "generation": ProtocolSettings(metric="acc", documents=documents, sampling="greedy"),
                },
            )
            for name in names
        ),
        checkpoints=tuple(
            Checkpoint(label=label, weights_id=f"{i:016x}", role="student" if i else "teacher")
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
                prompt_hash=f"{name}-{i:x}",
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


def measure(code: str, run: Path, out: Path) -> dict[str, float]:
    """Run `code` on a run folder in a process of its own; return its times and peak memory."""
    start = time.monotonic()
    used = usage_of([sys.executable, "-c", code, str(run), str(out)])
    # Linux counts in KiB, macOS in bytes.
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "seconds": round(time.monotonic() - start, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_bytes": peak,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the result; 0 if report and gate stay below their limits, else 1."""
    parser = Parser(prog="python -m tests.performance.report_throughput", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the result")
    parser.add_argument("--name", default="throughput.json", help="file name (default: %(default)s)")
    parser.add_argument(
        "--score-rows", type=int, default=1_000_000, help="approximate number (default: %(default)s)"
    )
    parser.add_argument("--checkpoints", type=int, default=CHECKPOINTS, help="default: %(default)s")
    parser.add_argument("--benchmarks", type=int, default=BENCHMARKS, help="default: %(default)s")
    parser.add_argument("--max-seconds", type=float, default=60, help="processor time (default: %(default)s)")
    options = parser.parse_args(arguments)
    cells = options.benchmarks * 2 * options.checkpoints
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        documents = max(2, round(options.score_rows / cells))
        score_rows = write_run(run, documents, options.checkpoints, options.benchmarks)
        size = sum(path.stat().st_size for path in (run / "scores").iterdir())
        load = os.getloadavg()[0]
        report = measure(COMPARE, run, Path(folder) / "report")
        gate = measure(GATE, run, Path(folder) / "gate")
        page = (Path(folder) / "report" / "index.html").stat().st_size
    found = {
        "checkpoints": options.checkpoints,
        "benchmarks": options.benchmarks,
        "score_rows": score_rows,
        "score_bytes": size,
        **report,
        "gate": gate,
        "page_bytes": page,
        "load": round(load, 1),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    write_json(options.out / options.name, found)
    print(json.dumps(found, indent=2))
    holds = all(
        each["processor_seconds"] < options.max_seconds and each["peak_bytes"] < MAX_BYTES
        for each in (report, gate)
    )
    return 0 if holds and page < MAX_PAGE_BYTES else 1


if __name__ == "__main__":
    sys.exit(guarded("report_throughput", main, resumable=False))
