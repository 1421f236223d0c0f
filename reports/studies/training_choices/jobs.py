"""Jobs of a study: the teacher's responses, the selection of layers, and one run after the other."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.distill import load_recipe
from evalsuite.reports.studies.training_choices.design import (
    BASE,
    TEACHER,
    Study,
    StudyRun,
    load_study,
    study_runs,
)

SELECTION = "selection"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of one call share."""

    study: str
    """A design: a name or a YAML file."""
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


def study_design(name: str, study: Study) -> dict[str, Any]:
    """Return what a report needs of a study: its name, its axes, and the run behind every label."""
    runs = [
        {"name": run.name, "student": run.student, "arm": run.arm, "seed": run.seed}
        for run in study_runs(study)
    ]
    axes = {name: axis.model_dump(mode="json") for name, axis in study.axes.items()}
    selected = [] if study.selection is None else study.selection.students
    return {
        "name": Path(name).stem,
        "recipe": study.recipe,
        "suite": study.suite,
        "axes": axes,
        "hybrids": [name for name in study.students if name in selected or _has_softmax(study, name)],
        "runs": runs,
    }


def _has_softmax(study: Study, student: str) -> bool:
    return bool(load_recipe(f"{study.recipe}:{student}").student.softmax_layers)


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
    recipe = load_recipe(study.recipe)
    arm = recipe.overrides(run.arm) if run.arm in recipe.variants else {}
    if selected and "student.softmax_layers" not in arm:
        overrides.append(f"student.softmax_layers={json.dumps(str(setting.layers))}")
    return overrides


def _distil(run: StudyRun, setting: Setting) -> None:
    from evalsuite.distill import distill

    target, folder = setting.student(run.name), setting.out / "training" / run.name
    if target.exists():
        return
    study = load_study(setting.study)
    recipe = load_recipe(f"{study.recipe}:{','.join(run.variants)}", run_overrides(run, study, setting))
    (made,) = distill(recipe, folder, device=setting.device, quiet=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    made.rename(target)


def _select(setting: Setting) -> None:
    from evalsuite.distill.selection import load_selector, select

    study = load_study(setting.study)
    selection = study.selection
    assert selection is not None
    start = setting.student(StudyRun(selection.all_linear, BASE, study.seeds[0]).name)
    overrides = [f"teacher={json.dumps(setting.teacher)}", *setting.overrides]
    select(
        load_recipe(f"{study.recipe}:{selection.all_linear}", overrides),
        load_selector(selection.selector, [*selection.options, f"all_linear={json.dumps(str(start))}"]),
        setting.layers,
        budget=selection.budget,
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
    from evalsuite.reports.studies.training_choices.exposure import write_exposure

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
