"""One piece of the study: students of one teacher, trained, and their responses.

    python -m evalsuite.reports.studies.decision.piece smollm2 --seed 0 1 --teacher T --data DATA --out OUT

Every GPU trains a part of the students; then all GPUs respond. `--requests` adds responses to the requests of
a run folder (`evalsuite run … --build-only`). With the first student and seed come the teacher and the
untrained windows. A student that diverged is named at the end, and the others respond. Students stay in
`OUT/students`; what is brought home is `OUT/<piece>.tar.xz`, a shard that
`evalsuite run --score-only --merge-shards` reads. Repeat it to resume.
"""

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from evalsuite.executors.gpus import VISIBLE, visible_gpus
from evalsuite.foundation import CheckpointError, ConfigError, nearest
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser
from evalsuite.reports.studies.decision.protocol import Protocol, Teacher, control, load_protocol

NAME = "evalsuite.reports.studies.decision.piece"
WORKERS_PER_GPU = 3
"""Processes that respond on one GPU: a model of 135M parameters leaves it idle between launches."""


class Job(NamedTuple):
    """Students of one seed that one process trains."""

    seed: int
    students: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and evaluate one piece."""
    protocol = load_protocol()
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="teacher of the protocol")
    parser.add_argument("--seed", type=int, nargs="+", required=True, dest="seeds")
    parser.add_argument("--students", nargs="+", help="of the protocol; all by default")
    parser.add_argument(
        "--without-teacher",
        action="store_true",
        help="leave out the teacher and the untrained windows, which have responded",
    )
    parser.add_argument("--teacher", required=True, help="checkpoint of the teacher")
    parser.add_argument("--data", help="frozen data, for training")
    parser.add_argument(
        "--requests", type=Path, help="run folder with built requests; without it, only train"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    teacher = teacher_of(protocol, given.name)
    for seed in given.seeds:
        if seed not in protocol.seeds:
            raise ConfigError(f"--seed {seed}: the protocol has {', '.join(map(str, protocol.seeds))}")
    names = given.students or list(teacher.students)
    for name in names:
        if name not in teacher.students:
            raise ConfigError(f"--students {name}: unknown{nearest(name, teacher.students)}")
    if given.data is not None:
        os.environ["EVALSUITE_DATA"] = given.data
    students = given.out / "students"
    gpus = visible_gpus() if given.device == "auto" else ()
    jobs = [
        job._replace(students=missing)
        for job in share(given.seeds, names, max(1, len(gpus)))
        if (
            missing := tuple(each for each in job.students if not (students / label(each, job.seed)).exists())
        )
    ]
    failed = []
    if len(gpus) > 1:
        failed = train_on(gpus, jobs, given)
    else:
        for job in jobs:
            overrides = [f"teacher={json.dumps(given.teacher)}", f"seed={job.seed}", *given.overrides]
            failed += train(teacher, job, overrides, students, given.device)
    trained = [students / label(name, seed) for seed in given.seeds for name in names]
    checkpoints = [str(folder) for folder in trained if folder.exists()]
    first = protocol.seeds[0] in given.seeds and next(iter(teacher.students)) in names
    if first and not given.without_teacher:
        checkpoints += [given.teacher, *untrained(teacher, given.teacher, students)]
    if given.requests is not None:
        piece = "-".join([given.name, *(f"seed{seed}" for seed in given.seeds)])
        respond(given.requests, checkpoints, given.out / piece, given.device, len(gpus))
    if failed:
        raise CheckpointError("\n".join(failed))


def label(student: str, seed: int) -> str:
    """Name of a run, by which the analysis finds it."""
    return f"{student}-seed{seed}"


def teacher_of(protocol: Protocol, name: str) -> Teacher:
    """Return a teacher of the protocol by its name there.

    Raises:
        ConfigError: there is none.
    """
    if name not in protocol.teachers:
        raise ConfigError(f"unknown teacher '{name}'{nearest(name, protocol.teachers)}")
    return protocol.teachers[name]


def share(seeds: Sequence[int], students: Sequence[str], gpus: int) -> list[Job]:
    """Share the students of each seed out: one job a seed, or several if there are more GPUs than seeds."""
    parts = min(len(students), max(1, gpus // len(seeds)))
    return [Job(seed, tuple(students[part::parts])) for seed in seeds for part in range(parts)]


def train_on(gpus: Sequence[str], jobs: Sequence[Job], given: argparse.Namespace) -> list[str]:
    """Train each job in a process with a GPU of its own; return what to say of those that failed."""
    free: queue.SimpleQueue[str] = queue.SimpleQueue()
    for gpu in gpus:
        free.put(gpu)

    def run(job: Job) -> str:
        gpu = free.get()
        command = [
            sys.executable,
            "-m",
            NAME,
            given.name,
            "--teacher",
            given.teacher,
            "--out",
            str(given.out),
        ]
        command += ["--seed", str(job.seed), "--students", *job.students]
        command += ["--data", given.data] if given.data is not None else []
        command += ["--set", *given.overrides] if given.overrides else []
        log = given.out / f"{folder_name(job)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            code = subprocess.run(
                command, env={**os.environ, VISIBLE: gpu}, stdout=file, stderr=file, check=False
            ).returncode
        free.put(gpu)
        return f"seed {job.seed}, {', '.join(job.students)}: exit code {code}, see {log}" if code else ""

    with ThreadPoolExecutor(len(gpus)) as pool:
        return [text for text in pool.map(run, jobs) if text]


def folder_name(job: Job) -> str:
    """Name of a job's training folder."""
    return f"training-seed{job.seed}-{job.students[0]}"


def train(teacher: Teacher, job: Job, overrides: list[str], students: Path, device: str) -> list[str]:
    """Distil the students of one job, all in one process; return what to say of those that diverged."""
    from evalsuite.distill import TrainingError, distill, load_recipe

    start = time.time()
    recipe = load_recipe(teacher.recipe, [*overrides, f"student.mixers={json.dumps(job.students)}"])
    folder = students.parent / folder_name(job)
    failed = []
    try:
        distill(recipe, folder, device=None if device == "auto" else device)
    except TrainingError as error:
        failed.append(str(error))
    students.mkdir(parents=True, exist_ok=True)
    finished = [name for name in job.students if (folder / name / "lineage.json").exists()]
    for name in finished:
        (folder / name).rename(students / label(name, job.seed))
    print(f"seed {job.seed}: {', '.join(finished)} in {time.time() - start:.0f} s", flush=True)
    return failed


def untrained(teacher: Teacher, path: str, students: Path) -> list[str]:
    """Write the teacher's weights with windows in every layer, as controls, and return their folders."""
    from evalsuite.models.checkpoints.load import load_checkpoint
    from evalsuite.models.student import build_student

    folders = []
    for name, options in teacher.untrained.items():
        folder = students / control(name)
        if not (folder / "config.json").exists():
            loaded = load_checkpoint(path, as_decoder=False)
            student = build_student(loaded.model, "sliding_window", options={"sliding_window": options})
            student.save_pretrained(folder)
            loaded.tokenizer.save_pretrained(folder)
        folders.append(str(folder))
    return folders


def respond(requests: Path, checkpoints: list[str], folder: Path, device: str, gpus: int) -> None:
    """Compute the responses of the checkpoints to the built requests, and export them as one shard."""
    from evalsuite.config import RunConfig
    from evalsuite.evaluation import evaluate
    from evalsuite.evaluation.shards.export import export_shard

    if not folder.exists():
        shutil.copytree(requests, folder)
    start = time.time()
    workers = {"num_workers": WORKERS_PER_GPU * gpus, "workers_per_gpu": WORKERS_PER_GPU} if gpus else {}
    evaluate(
        RunConfig(
            checkpoints=checkpoints,
            out=folder,
            phases=("infer",),
            device=device,
            executor_args=workers,
            cache=False,
        )
    )
    export_shard(folder, folder.with_suffix(".tar.xz"))
    print(f"{len(checkpoints)} checkpoints responded in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    run_module(NAME, main)
