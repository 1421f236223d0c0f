"""How evenly an executor spreads a run: wall time of inference against the workers' own time.

    python -m evalsuite.reports.studies.throughput.executor_balance --executor ray --workers 2 --out ray.json

Ten checkpoints (the pocket teacher with noise on its weights) respond to the eight benchmarks of the pocket
world, needles at two contexts. The ratio is (wall time from the first message of a worker) ÷ (sum of the
times that workers spent on their parts ÷ workers); 1 is perfect, and start-up is left out. Exit code: 0 if
the ratio is at most `--max-ratio` (1.15).
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evalsuite.cli.exit_codes import guarded
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.executors import EXECUTORS, Channel, Executor, Job, Worker, open_executor
from evalsuite.foundation import write_json
from evalsuite.foundation.parser import Parser
from evalsuite.models.checkpoints.load import load_checkpoint
from evalsuite.reports.run import read_environment

CHECKPOINTS = 10
SUITE = """
name: balance
title: Balance
limit: {limit}
benchmarks: [pocket_facts, pocket_cloze, pocket_instructions, pocket_arithmetic, pocket_recall,
    {{benchmark: pocket_niah_single_1, contexts: [256, 512]}},
    {{benchmark: pocket_niah_single_2, contexts: [256, 512]}},
    {{benchmark: pocket_niah_single_3, contexts: [256, 512]}}]
"""


def write_checkpoints(folder: Path) -> list[str]:
    """Write pocket teachers with noise, and return their paths."""
    paths = []
    for seed in range(CHECKPOINTS):
        checkpoint = load_checkpoint("pocket", device="cpu", dtype="float32")
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in checkpoint.model.parameters():
                parameter.add_(1e-3 * torch.randn_like(parameter))
        paths.append(str(folder / f"pocket-{seed}"))
        checkpoint.model.save_pretrained(paths[-1])
        checkpoint.tokenizer.save_pretrained(paths[-1])
    return paths


class Timed:
    """An executor that notes when the first message arrives, and when the last job ends."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.started = self.ended = 0.0

    def workers(self, gpus: int | None) -> int:
        """As the executor's."""
        return self._executor.workers(gpus)

    def prepare(self, warm_up: Callable[[], None], gpus: int | None) -> None:
        """As the executor's."""
        self._executor.prepare(warm_up, gpus)

    def close(self) -> None:
        """As the executor's."""
        self._executor.close()

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """As the executor's."""
        timed = self

        class Clock:
            set_description = channel.set_description

            def send(self, message: Mapping[str, Any]) -> None:
                timed.started = timed.started or time.monotonic()
                channel.send(message)

        yield from self._executor.map(make_worker, jobs, Clock(), folder)
        self.ended = time.monotonic()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write the ratio."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--executor", default="ray")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=100, help="documents of a benchmark")
    parser.add_argument("--max-ratio", type=float, default=1.15)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(arguments)
    local = {"cluster": "local", "gpus": 0} if options.executor == "slurm" else {}
    timed = Timed(open_executor(options.executor, {"num_workers": options.workers, **local}))
    EXECUTORS.add("timed", lambda: timed)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "balance.yaml").write_text(SUITE.format(limit=options.limit))
        evaluate(
            RunConfig(
                suite=folder / "balance.yaml",
                checkpoints=write_checkpoints(folder),
                out=folder / "run",
                executor="timed",
                device="cpu",
                phases=("build", "infer"),
            )
        )
        spent = read_environment(folder / "run")["inference"]
    work = sum(each["seconds"] for each in spent)
    wall = timed.ended - timed.started
    found = {
        "executor": options.executor,
        "workers": options.workers,
        "checkpoints": len(spent),
        "responses": sum(each["responses"] for each in spent),
        "worker_seconds": round(work, 1),
        "wall_seconds": round(wall, 1),
        "ratio": round(wall / (work / options.workers), 3),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(found, indent=2))
    if options.out is not None:
        write_json(options.out, found)
    return 0 if found["ratio"] <= options.max_ratio else 1


if __name__ == "__main__":
    sys.exit(guarded("executor_balance", main, resumable=False))
