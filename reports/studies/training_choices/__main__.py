"""Command line of studies."""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import evalsuite.reports.studies.training_choices
from evalsuite.cli.exit_codes import guarded
from evalsuite.cli.interrupts import interruptible
from evalsuite.executors.gpus import visible_gpus
from evalsuite.foundation import append_jsonl, write_json
from evalsuite.foundation.parser import Parser
from evalsuite.reports.studies.training_choices.design import DESIGN, load_study
from evalsuite.reports.studies.training_choices.jobs import Setting, study_design, study_jobs
from evalsuite.reports.studies.training_choices.processes import run_study

NAME = "evalsuite.reports.studies.training_choices"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study from the command line. Returns 0 if all runs are finished, 1 otherwise."""
    description = (evalsuite.reports.studies.training_choices.__doc__ or "").splitlines()[0]
    parser = Parser(prog=f"python -m {NAME}", description=description)
    parser.add_argument("study", help="a design: a name in designs/, or a YAML file")
    parser.add_argument("--teacher", required=True, help="checkpoint of the teacher")
    parser.add_argument("--requests", type=Path, required=True, help="run folder with built requests")
    parser.add_argument("--out", type=Path, required=True, help="folder; repeat the command to resume")
    parser.add_argument("--workers", type=int, default=1, help="processes, spread over the visible GPUs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--runs", type=int, help="only the first N jobs of the study")
    parser.add_argument("--device", help="device of all processes: cpu, cuda or cuda:1")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--dry-run", action="store_true", help="write the design, print the jobs, and exit")
    given = parser.parse_args(arguments)
    return interruptible(NAME, lambda: guarded(NAME, lambda: _run(given), resumable=True))


def _run(given: Namespace) -> int:
    setting = Setting(
        study=given.study,
        teacher=given.teacher,
        requests=given.requests,
        out=given.out,
        overrides=tuple(given.overrides),
        device=given.device,
    )
    study = load_study(given.study)
    jobs = study_jobs(study, setting)[: given.runs]
    write_json(setting.out / DESIGN, study_design(given.study, study))
    if given.dry_run:
        print("\n".join(f"{'done' if job.done.exists() else '    '} {job.name}" for job in jobs))
        return 0
    gpus = () if given.device else visible_gpus()
    for each in run_study(setting, jobs, workers=given.workers, seconds=given.seconds, gpus=gpus):
        row = each._asdict() | {"seconds": round(each.seconds, 1), "time": round(time.time())}
        append_jsonl(setting.out / "runs.jsonl", [row])
        print(f"{each.name}: {each.error or f'{each.seconds:.0f} s'}", flush=True)
    left = [job.name for job in jobs if not job.done.exists()]
    print(f"{len(jobs) - len(left)} of {len(jobs)} jobs are finished; repeat the command to resume")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
