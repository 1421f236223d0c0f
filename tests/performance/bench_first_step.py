"""How long `evalsuite distill` takes to its first step, and what its main process does meanwhile.

    python -m tests.performance.bench_first_step --out DIR gemma-3-270m --mixer kda --set teacher=FILE.gguf

The command runs with an empty cache of kernels, and is stopped after the first row of its metrics. Its stack
is sampled five times a second. The peer is a process that only imports what no distillation can do without.

Exit codes: 0 done, 64 or more an error.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import ConfigError, write_json
from evalsuite.foundation.parser import Parser
from tests.performance.bench_startup import ROOT, python_path, seconds

SAMPLER = Path(__file__).with_name("stack_sampler")
IMPORTS = "import os, torch, transformers.modeling_utils; os._exit(0)"
ROOMS = ("evalsuite", "tasks", "models", "distill", "reports")


class Span(NamedTuple):
    """Seconds from `start` on in which the process was in one function of ours."""

    function: str
    start: float
    seconds: float


def first_step(arguments: Sequence[str], out: Path, patience: float) -> float:
    """Seconds from the start of `distill ARGUMENTS` to the first row of its metrics; samples lie in `out`.

    Raises:
        ConfigError: the command ended before, or has no row after `patience` seconds.
    """
    run, log = out / "run", out / "distill.log"
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "PYTHONPATH": python_path(SAMPLER, ROOT),
        "STACK_SAMPLES": str(out / "samples.txt"),
        "TRITON_CACHE_DIR": str(out / "kernels"),
    }
    command = [sys.executable, "-m", "evalsuite", "distill", *arguments, "--out", str(run)]
    metrics, started = run / "metrics.jsonl", time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        while not (metrics.exists() and metrics.stat().st_size):
            spent = time.perf_counter() - started
            if process.poll() is not None or spent > patience:
                process.kill()
                reason = (log.read_text().strip().splitlines() or ["no message"])[-1]
                raise ConfigError(f"{' '.join(command)} has no first step after {spent:.0f} s: {reason}")
            time.sleep(0.02)
        spent = time.perf_counter() - started
        process.send_signal(signal.SIGINT)
        process.wait()
    return spent


def spans(samples: Sequence[str], until: float) -> Iterator[Span]:
    """The samples before a time, consecutive ones of one function together."""
    timed, before = [], 0.0
    for line in samples:
        stated, *frames = line.split("\t")
        if float(stated) > until:
            break
        timed.append((_ours(frames), before, float(stated) - before))
        before = float(stated)
    for function, group in groupby(timed, key=lambda each: each[0]):
        parts = list(group)
        yield Span(function, parts[0][1], sum(length for _, _, length in parts))


def _ours(frames: Sequence[str]) -> str:
    """The innermost function of this repository; else the outermost frame, such as an import."""
    for frame in frames:
        path, _, function = frame.rpartition(":")
        inside = Path(path).is_relative_to(ROOT) and Path(path).relative_to(ROOT)
        if inside and inside.parts[0] in ROOMS:
            return f"{inside}:{function}"
    return frames[-1] if frames else "?"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and store."""
    parser = Parser(prog="python -m tests.performance.bench_first_step", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="new folder for run, log, samples and times")
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait (default: %(default)s)")
    options, command = parser.parse_known_args(arguments)
    if options.out.exists():
        raise ConfigError(f"{options.out} exists; a run that begins there would be resumed")
    spent = round(first_step(command, options.out, options.patience), 2)
    peer = seconds([sys.executable, "-c", IMPORTS])
    found = list(spans((options.out / "samples.txt").read_text().splitlines(), spent))
    print(f"first step after {spent:.1f} s, imports alone {peer:.1f} s: {spent / peer:.1f} x")
    for span in found:
        if span.seconds >= 0.3:
            print(f"{span.start:7.1f} s {span.seconds:5.1f} s  {span.function}")
    write_json(
        options.out / "first_step.json",
        {
            "command": command,
            "seconds": spent,
            "peer_seconds": round(peer, 2),
            "load": round(os.getloadavg()[0], 1),
            "processors": len(os.sched_getaffinity(0)),
            "spans": [(span.function, round(span.start, 1), round(span.seconds, 1)) for span in found],
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(guarded("bench_first_step", main, resumable=False))
