"""How long a report of a million records takes, and how much memory.

    python -m evalsuite.reports.throughput --out reports/published/statistics

Writes a synthetic run (ten checkpoints, five benchmarks of 10,000 documents under both protocols), rebuilds
its report in a process of its own, as `evalsuite compare RUN` does, and writes throughput.json. The report
is one thread: on a machine that does other work besides, `processor_seconds` is what an idle core would need.
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
from evalsuite.reports.run_folder import BenchmarkPlan, CheckpointPlan, Plan, ProtocolPlan, write_plan

CHECKPOINTS = 10
BENCHMARKS = 5
SEED = 20_250_414
COMPARE = (
    "import sys; from pathlib import Path; from evalsuite.reports import compare; "
    "compare([Path(sys.argv[1])], Path(sys.argv[2])); "
    "assert 'torch' not in sys.modules"
)


def write_run(run: Path, documents: int) -> int:
    """Write a run of dice and return its number of records.

    Args:
        run: the folder.
        documents: of each benchmark; a hard document is hard for every checkpoint.
    """
    names = [f"benchmark_{i}" for i in range(BENCHMARKS)]
    labels = ["teacher", *(f"student-{i}" for i in range(1, CHECKPOINTS))]
    write_plan(run, _plan(names, labels))
    rng = np.random.default_rng(SEED)
    (run / "records").mkdir()
    for name in progress(names, what="records"):
        hard = rng.standard_normal(documents)
        for protocol in ("loglikelihood", "generation"):
            with open(run / "records" / f"{name}.{protocol}.jsonl", "w", encoding="utf-8") as file:
                for number, label in enumerate(labels):
                    luck = rng.standard_normal(documents)
                    right = 0.8 * hard + 0.6 * luck < 0.7 - 0.08 * number
                    file.writelines(_lines(name, protocol, number, label, right, rng))
    return BENCHMARKS * 2 * CHECKPOINTS * documents


def _plan(names: Sequence[str], labels: Sequence[str]) -> Plan:
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
                    "loglikelihood": ProtocolPlan(metric="acc"),
                    "generation": ProtocolPlan(metric="acc", sampling="greedy"),
                },
            )
            for name in names
        ),
        checkpoints=tuple(
            CheckpointPlan(label=label, weights_id=f"{i:016x}", role="student" if i else "teacher")
            for i, label in enumerate(labels)
        ),
    )


def _lines(
    name: str, protocol: str, number: int, label: str, right: np.ndarray, rng: np.random.Generator
) -> list[str]:
    """Records as long as real ones: four log-probabilities, or a response of two sentences."""
    chances = np.round(-rng.gamma(4.0, 2.0, (len(right), 4)), 4).tolist()
    lines = []
    for i, is_right in enumerate(right.tolist()):
        if protocol == "loglikelihood":
            detail = f'{{"logprobs": {chances[i]}, "gold": {i % 4}, "greedy": [false, false, false, false]}}'
            values = f'{{"acc": {float(is_right)}, "acc_norm": {float(is_right)}}}'
        else:
            said = "ABCD"[(i + (not is_right)) % 4]
            response = f"The heavier object needs the larger force, so the answer follows. ANSWER: {said}"
            detail = f'{{"response": "{response}", "extracted": "{said}", "target": "{"ABCD"[i % 4]}"}}'
            values = f'{{"acc": {float(is_right)}}}'
        lines.append(
            f'{{"schema": 1, "weights_id": "{number:016x}", "fingerprint": "{number:016x}", '
            f'"benchmark": "{name}", "protocol": "{protocol}", "seed": 0, "context": null, '
            f'"doc_id": "{i:016x}", "prompt_hash": "{i:015x}p", '
            f'"sampling": "{"" if protocol == "loglikelihood" else "greedy"}", "checkpoint": "{label}", '
            f'"values": {values}, "chance": 0.25, "outcome": "ok", "detail": {detail}}}\n'
        )
    return lines


def usage_of(command: Sequence[str]) -> resource.struct_rusage:
    """What this one process used; other children of ours do not count. Raises as `subprocess.run` checked."""
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write throughput.json; 0 if it took less than 60 s of a processor and 3 GB, else 65."""
    parser = argparse.ArgumentParser(prog="python -m evalsuite.reports.throughput", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for throughput.json")
    parser.add_argument("--records", type=int, default=1_000_000, help="about (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        records = write_run(run, max(2, round(options.records / (BENCHMARKS * 2 * CHECKPOINTS))))
        size = sum(path.stat().st_size for path in (run / "records").iterdir())
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
        "records": records,
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
    return 0 if busy < 60 and peak < 3e9 else 65


if __name__ == "__main__":
    raise SystemExit(main())
