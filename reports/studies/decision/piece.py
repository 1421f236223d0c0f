"""One piece of the study: the students of one teacher and seed, trained, and their responses.

    python -m evalsuite.reports.studies.decision.piece smollm2 --seed 0 --teacher T --data DATA --out OUT

`--requests` adds responses to the requests of a run folder (`evalsuite run … --build-only`). With the first
seed come the teacher and the untrained windows. Students stay in `OUT/students`; what is brought home is
`OUT/<piece>.tar.xz`, a shard that `evalsuite run --score-only --merge-shards` reads. Repeat it to resume.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.module_entry import run_module
from evalsuite.reports.studies.decision.protocol import Protocol, Teacher, control, load_protocol


def main() -> None:
    """Train and evaluate one piece."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="teacher of the protocol")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--teacher", required=True, help="checkpoint of the teacher")
    parser.add_argument("--data", help="frozen data, for training")
    parser.add_argument(
        "--requests", type=Path, help="run folder with built requests; without it, only train"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    protocol = load_protocol()
    teacher = teacher_of(protocol, given.name)
    if given.seed not in protocol.seeds:
        raise ConfigError(f"--seed {given.seed}: the protocol has {', '.join(map(str, protocol.seeds))}")
    students = given.out / "students"
    overrides = [f"teacher={json.dumps(given.teacher)}", f"seed={given.seed}", *given.overrides]
    if given.data is not None:
        os.environ["EVALSUITE_DATA"] = given.data
    train(teacher, given.seed, overrides, students, given.device)
    checkpoints = [str(students / f"{name}-seed{given.seed}") for name in teacher.students]
    if given.seed == protocol.seeds[0]:
        checkpoints += [given.teacher, *untrained(teacher, given.teacher, students)]
    if given.requests is not None:
        respond(given.requests, checkpoints, given.out / f"{given.name}-seed{given.seed}", given.device)


def teacher_of(protocol: Protocol, name: str) -> Teacher:
    """Return a teacher of the protocol by its name there.

    Raises:
        ConfigError: there is none.
    """
    if name not in protocol.teachers:
        raise ConfigError(f"unknown teacher '{name}'{nearest(name, protocol.teachers)}")
    return protocol.teachers[name]


def train(teacher: Teacher, seed: int, overrides: list[str], students: Path, device: str) -> None:
    """Distil the students of one seed that are not in `students` yet, all in one process."""
    from evalsuite.distill import distill, load_recipe

    missing = [name for name in teacher.students if not (students / f"{name}-seed{seed}").exists()]
    if not missing:
        return
    start = time.time()
    recipe = load_recipe(teacher.recipe, [*overrides, f"student.mixers={json.dumps(missing)}"])
    folder = students.parent / f"training-seed{seed}"
    made = distill(recipe, folder, device=None if device == "auto" else device)
    students.mkdir(parents=True, exist_ok=True)
    for checkpoint in made:
        checkpoint.rename(students / f"{checkpoint.name}-seed{seed}")
    print(f"seed {seed}: {len(made)} students in {time.time() - start:.0f} s", flush=True)


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


def respond(requests: Path, checkpoints: list[str], folder: Path, device: str) -> None:
    """Compute the responses of the checkpoints to the built requests, and export them as one shard."""
    from evalsuite.config import RunConfig
    from evalsuite.evaluation import evaluate
    from evalsuite.evaluation.shards.export import export_shard

    if not folder.exists():
        shutil.copytree(requests, folder)
    start = time.time()
    evaluate(RunConfig(checkpoints=checkpoints, out=folder, phases=("infer",), device=device))
    export_shard(folder, folder.with_suffix(".tar.xz"))
    print(f"{len(checkpoints)} checkpoints responded in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    run_module("evalsuite.reports.studies.decision.piece", main)
