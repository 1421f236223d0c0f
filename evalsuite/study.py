"""Run a study: distil every run of a recipe's `study` block and compute its responses, several at a time.

    python -m evalsuite.study gap-study-pocket-10m --teacher ./teacher --requests runs/requests --out study

The folder of --requests is a run of the study's suite whose requests are built (`evalsuite run SUITE
--build-only`) for the tokenizer of the teacher. Repeating the command resumes: finished runs are skipped,
interrupted trainings continue. Below --out lie

    shards/NAME.tar.xz      responses and loss curves, for `evalsuite run --score-only --merge-shards`
    exposure/NAME.jsonl     see `evalsuite.exposure`
    students/NAME           checkpoints
    study.json, runs.jsonl  the design, and the time of every run
"""

import json
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from evalsuite.cli.parser import Parser
from evalsuite.distill import load_recipe
from evalsuite.distill.study import BASE, Study, StudyRun, study_runs
from evalsuite.foundation import ConfigError, EvalsuiteError, append_jsonl, write_json

TEACHER = "teacher"
SELECTION = "selection"
DESIGN = "study.json"
"""File below --out with the axes and runs, which the report reads."""
STOP_SECONDS = 30.0
"""Time that workers have to save their states when the time of a call is over."""
LONGEST_WAIT = 60.0
"""Seconds after which the time of a call is looked at again; `wait` takes no infinity."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of one call share."""

    recipe: str
    teacher: str
    requests: Path
    out: Path
    overrides: tuple[str, ...] = ()
    device: str | None = None

    def shard(self, name: str) -> Path:
        """Return the file whose existence says that a run is finished."""
        return self.out / "shards" / f"{name}.tar.xz"

    def student(self, name: str) -> Path:
        """Return the folder of a run's student."""
        return self.out / "students" / name

    @property
    def layers(self) -> Path:
        """File of the selected softmax layers."""
        return self.out / "softmax_layers.json"


@dataclass(frozen=True)
class Job:
    """Work for one process: the teacher's responses, the selection of layers, or one run."""

    name: str
    run: StudyRun | None = None
    needs: tuple[Path, ...] = ()
    done: Path = Path()

    def is_ready(self) -> bool:
        """Return whether the files that it starts from exist."""
        return all(path.exists() for path in self.needs)


def study_jobs(study: Study, setting: Setting) -> list[Job]:
    """Return the jobs of a study in their order; runs with selected layers wait for the selection."""
    teacher = setting.shard(TEACHER)
    jobs = [Job(TEACHER, done=teacher)]
    selection = study.selection
    if selection is not None:
        first = StudyRun(selection.all_linear, BASE, study.seeds[0])
        jobs.append(Job(SELECTION, needs=(setting.student(first.name),), done=setting.layers))
    for run in study_runs(study):
        waits = selection is not None and run.student in selection.students
        needs = (teacher, setting.layers) if waits else (teacher,)
        jobs.append(Job(run.name, run, needs, setting.shard(run.name)))
    return jobs


def study_design(recipe: str, study: Study) -> dict[str, Any]:
    """Return what a report needs of a study: its axes, and the run behind every label."""
    runs = [
        {"name": run.name, "student": run.student, "arm": run.arm, "seed": run.seed}
        for run in study_runs(study)
    ]
    axes = {name: axis.model_dump(mode="json") for name, axis in study.axes.items()}
    hybrids = [] if study.selection is None else study.selection.students
    return {"recipe": recipe, "suite": study.suite, "axes": axes, "hybrids": hybrids, "runs": runs}


def run_job(job: Job, setting: Setting) -> None:
    """Carry out one job in this process.

    Raises:
        EvalsuiteError: as `distill`, `select` and `evaluate`.
        KeyboardInterrupt: after SIGTERM, once the state is saved.
    """
    if job.run is None and job.name == SELECTION:
        _select(setting)
    elif job.run is None:
        _respond(job.name, setting.teacher, setting)
    else:
        _distil(job.run, setting)
        _respond(job.name, str(setting.student(job.name)), setting)
        shutil.rmtree(setting.out / "training" / job.name, ignore_errors=True)


def run_overrides(run: StudyRun, study: Study, setting: Setting) -> list[str]:
    """Return what a run overrides besides its variants: seed, teacher and selected layers."""
    overrides = [f"teacher={json.dumps(setting.teacher)}", f"seed={run.seed}", *setting.overrides]
    selected = study.selection is not None and run.student in study.selection.students
    arm = load_recipe(setting.recipe).variants.get(run.arm, {})
    if selected and "student.softmax_layers" not in arm:
        overrides.append(f"student.softmax_layers={json.dumps(str(setting.layers))}")
    return overrides


def _study(setting: Setting) -> Study:
    study = load_recipe(setting.recipe).study
    if study is None:
        raise ConfigError(f"recipe {setting.recipe} has no 'study' block")
    return study


def _distil(run: StudyRun, setting: Setting) -> None:
    from evalsuite.distill import distill

    target, folder = setting.student(run.name), setting.out / "training" / run.name
    if target.exists():
        return
    recipe = load_recipe(
        f"{setting.recipe}:{','.join(run.variants)}", run_overrides(run, _study(setting), setting)
    )
    (made,) = distill(recipe, folder, device=setting.device, quiet=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    made.rename(target)


def _select(setting: Setting) -> None:
    from evalsuite.distill.selection import load_options, select

    study = _study(setting)
    selection = study.selection
    assert selection is not None
    start = setting.student(StudyRun(selection.all_linear, BASE, study.seeds[0]).name)
    overrides = [f"teacher={json.dumps(setting.teacher)}", *setting.overrides]
    select(
        load_recipe(f"{setting.recipe}:{selection.all_linear}", overrides),
        selection.selector,
        setting.layers,
        budget=selection.budget,
        options=load_options([*selection.options, f"all_linear={json.dumps(str(start))}"]),
        work=setting.out / "selection",
        device=setting.device,
        quiet=True,
    )


def _respond(name: str, checkpoint: str, setting: Setting) -> None:
    """Compute the responses of a checkpoint, and the exposure of a student; the shard comes last."""
    from evalsuite.config import RunConfig
    from evalsuite.evaluation import evaluate
    from evalsuite.evaluation.shards.export import export_shard
    from evalsuite.evaluation.shards.validate import open_shard
    from evalsuite.exposure import write_exposure

    # Always anew: what an earlier call left may be of other code, whose responses are not mixed with these.
    folder = setting.out / "responses" / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(setting.requests, folder)
    device = setting.device or "auto"
    evaluate(RunConfig(checkpoints=[checkpoint], out=folder, phases=("infer",), device=device, quiet=True))
    if name != TEACHER:
        with open_shard(setting.shard(TEACHER)) as teacher_run:
            path = setting.out / "exposure" / f"{name}.jsonl"
            write_exposure(path, checkpoint, run=folder, teacher_run=teacher_run, device=device)
    export_shard(folder, setting.shard(name))
    shutil.rmtree(folder)


def _work(connection: Connection, setting: Setting) -> None:
    """Run the jobs that arrive, in a process of its own; reply (name, error or "", seconds)."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while (job := connection.recv()) is not None:
            started = time.monotonic()
            error = ""
            try:
                run_job(job, setting)
            except EvalsuiteError as problem:
                error = str(problem)
            except Exception:
                error = traceback.format_exc()
            connection.send((job.name, error, time.monotonic() - started))
    except (KeyboardInterrupt, EOFError):
        pass


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    job: Job | None = None


def run_study(
    setting: Setting,
    jobs: Sequence[Job],
    *,
    workers: int,
    seconds: float,
    work: Callable[[Connection, Setting], None] = _work,
) -> Iterator[tuple[str, str, float]]:
    """Carry out jobs in several processes; yield (name, error or "", seconds) as they end.

    Args:
        workers: processes, which share the GPU.
        seconds: after which running jobs are stopped; the next call continues them.
        work: what a process runs: replies to each job that it receives, until it receives None.
    """
    deadline = time.monotonic() + seconds
    context = get_context("spawn")
    waiting = [job for job in jobs if not job.done.exists()]
    pool: list[_Worker] = []
    try:
        while time.monotonic() < deadline:
            for worker in [each for each in pool if each.job is None]:
                _hand_out(worker, waiting)
            while len(pool) < workers and any(job.is_ready() for job in waiting):
                here, there = context.Pipe()
                process = context.Process(target=work, args=(there, setting))
                process.start()
                there.close()
                pool.append(_Worker(process, here))
                _hand_out(pool[-1], waiting)
            busy = [each for each in pool if each.job is not None]
            if not busy:
                return
            left = min(max(0.0, deadline - time.monotonic()), LONGEST_WAIT)
            for connection in wait([each.connection for each in busy], left):
                worker = next(each for each in busy if each.connection is connection)
                assert worker.job is not None
                try:
                    yield worker.connection.recv()
                except EOFError:
                    worker.process.join(STOP_SECONDS)
                    code = worker.process.exitcode
                    yield worker.job.name, f"its process ended with code {code}", 0.0
                    pool.remove(worker)
                worker.job = None
    finally:
        for worker in pool:
            if worker.job is None:
                worker.connection.send(None)
            else:
                worker.process.terminate()
        for worker in pool:
            worker.process.join(STOP_SECONDS)
            worker.process.kill()


def _hand_out(worker: _Worker, waiting: list[Job]) -> None:
    job = next((each for each in waiting if each.is_ready()), None)
    if job is not None:
        waiting.remove(job)
        worker.job = job
        worker.connection.send(job)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study from the command line. Returns 0 if all runs are finished, 1 otherwise."""
    parser = Parser(prog="python -m evalsuite.study", description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="a recipe with a study block")
    parser.add_argument("--teacher", required=True, help="checkpoint of the teacher")
    parser.add_argument("--requests", type=Path, required=True, help="run folder with built requests")
    parser.add_argument("--out", type=Path, required=True, help="folder; repeat the command to resume")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the device")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--runs", type=int, help="only the first N jobs of the study")
    parser.add_argument("--device", help="cpu, cuda or cuda:1")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--dry-run", action="store_true", help="write the design, print the jobs, and exit")
    given = parser.parse_args(arguments)
    setting = Setting(
        recipe=given.recipe,
        teacher=given.teacher,
        requests=given.requests,
        out=given.out,
        overrides=tuple(given.overrides),
        device=given.device,
    )
    try:
        study = _study(setting)
        jobs = study_jobs(study, setting)[: given.runs]
        write_json(setting.out / DESIGN, study_design(setting.recipe, study))
    except EvalsuiteError as error:
        print(f"evalsuite.study: {error}", file=sys.stderr)
        return 64
    if given.dry_run:
        print("\n".join(f"{'done' if job.done.exists() else '    '} {job.name}" for job in jobs))
        return 0
    for name, failure, seconds in run_study(setting, jobs, workers=given.workers, seconds=given.seconds):
        row = {"name": name, "seconds": round(seconds, 1), "time": round(time.time()), "error": failure}
        append_jsonl(setting.out / "runs.jsonl", [row])
        print(f"{name}: {failure or f'{seconds:.0f} s'}", flush=True)
    left = [job.name for job in jobs if not job.done.exists()]
    print(f"{len(jobs) - len(left)} of {len(jobs)} jobs are finished; repeat the command to resume")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
