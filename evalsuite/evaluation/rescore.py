"""Scores a finished run again with another scorer, in a folder of its own and without inference."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalsuite.evaluation.phases import count_errors
from evalsuite.evaluation.plan import benchmarks_in
from evalsuite.evaluation.run import Summary
from evalsuite.evaluation.run_paths import read_built, read_documents
from evalsuite.evaluation.score import score
from evalsuite.foundation import ConfigError, RunFolderError, locked, nearest
from evalsuite.protocols.generation import RowConverter
from evalsuite.protocols.scorers import SCORERS
from evalsuite.reports.records.score_table import write_scores
from evalsuite.reports.run import Manifest, is_run_folder, write_manifest
from evalsuite.tasks.benchmark import Benchmark, Generation

LINKED = ("documents", "requests")
"""Folders whose files are only ever replaced, so that two runs can share them."""
COPIED = ("responses", "scores", "training", "environment.json")


def rescore(
    run: Path,
    out: Path | None = None,
    *,
    scorer: str | None = None,
    benchmarks: Sequence[str] = (),
    metric: str | None = None,
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Summary:
    """Score the responses of a run again.

    Args:
        run: a run with responses.
        out: run folder for the new scores; None: `run` with the scorer's name after it.
        scorer: a name from `evalsuite show scorers`; None: the run's own, in `run` itself.
        benchmarks: those with a generation protocol that the scorer is for; empty: all whose documents it
            can read.
        metric: the scorer's main metric; None: the benchmark's if the scorer has it, else its first.
        trust_remote_code: allow task files that are neither lm-eval's nor ours.
        quiet: no progress bar.

    Raises:
        ConfigError: an unknown scorer, benchmark or metric, or documents that the scorer cannot read.
        RunFolderError: `out` holds another run.
        DataError: as `evalsuite.evaluation.score.score`.
    """
    run = Path(run)
    manifest = read_built(run)
    if scorer is None:
        if out is not None or benchmarks or metric is not None:
            raise ConfigError("--out, --benchmark and --metric belong to another scorer: pass --scorer, too")
        out = run
    else:
        out = Path(out) if out is not None else run.with_name(f"{run.resolve().name}-{scorer}")
        manifest = _with_scorer(run, manifest, scorer, benchmarks, metric)
    with locked(out / ".lock", wait=False):
        if scorer is not None:
            _copy(run, out, manifest)
        missing = score(out, manifest, trust_remote_code=trust_remote_code, quiet=quiet)
        scores = write_scores(out)
    summary = Summary(run=out, missing=missing, scores=scores, errors=count_errors(out))
    summary.way_out = "`evalsuite run` computes them"
    return summary


def _with_scorer(
    run: Path, manifest: Manifest, scorer: str, chosen: Sequence[str], metric: str | None
) -> Manifest:
    known = {
        name: each
        for name, each in benchmarks_in(manifest).items()
        if any(other.name == name and "generation" in other.protocols for other in manifest.benchmarks)
    }
    for name in chosen:
        if name not in known:
            raise ConfigError(f"benchmark '{name}' has no generated responses in {run}{nearest(name, known)}")
    changed: dict[str, Generation] = {}
    problems: dict[str, str] = {}
    for name in chosen or known:
        try:
            changed[name] = _changed(run, known[name], scorer, metric)
        except _UnreadableError as error:
            problems[name] = str(error)
    if problems and (chosen or not changed):
        raise ConfigError(next(iter(problems.values())))
    if not changed:
        raise ConfigError(f"{run}: has no generated responses, which scorers are for")
    entries = []
    for entry in manifest.config["entries"]:
        how = changed.get(entry["benchmark"]["name"])
        if how is not None:
            stored = known[entry["benchmark"]["name"]].model_copy(update={"generation": how})
            metrics = entry["metrics"] | {"generation": how.metric}
            entry = entry | {"benchmark": stored.model_dump(mode="json"), "metrics": metrics}
        entries.append(entry)
    stated = tuple(
        replace(
            each,
            protocols=each.protocols
            | {"generation": replace(each.protocols["generation"], metric=changed[each.name].metric)},
        )
        if each.name in changed
        else each
        for each in manifest.benchmarks
    )
    return replace(manifest, config=manifest.config | {"entries": entries}, benchmarks=stated)


class _UnreadableError(Exception):
    """A scorer cannot read the documents of a benchmark; the message says why."""


def _changed(run: Path, benchmark: Benchmark, name: str, metric: str | None) -> Generation:
    """Return the generation protocol of a benchmark with another scorer, tried on its first document."""
    scorer = SCORERS.get_or_raise(name, "--scorer")
    scorer.check_packages(f"scorer '{name}'")
    spec = benchmark.generation
    assert spec is not None
    row: dict[str, Any] = read_documents(run, benchmark.name)[0].row
    try:
        values = list(scorer(RowConverter(spec).convert(row), "").values)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        why = f"needs the column {error}" if isinstance(error, KeyError) else f"fails ({error!r})"
        raise _UnreadableError(
            f"scorer '{name}' cannot read the documents of {benchmark.name}: it {why}; they have "
            f"{', '.join(row)}"
        ) from None
    if metric is not None and metric not in values:
        raise ConfigError(f"--metric {metric}: not a metric of scorer '{name}'{nearest(metric, values)}")
    update: dict[str, Any] = {"scorer": name, "dataset": "evalsuite"}
    update["metric"] = metric or (spec.metric if spec.metric in values else values[0])
    if spec.scorer is None:
        # Requests are built already: EvalScope's prompts stay.
        update |= {"prompt_template": "", "dataset_args": {}}
    return spec.model_copy(update=update)


def _copy(run: Path, out: Path, manifest: Manifest) -> None:
    """Make a folder with the run's files and another manifest."""
    if is_run_folder(out):
        there = read_built(out)
        if (there.config, there.checkpoints) != (manifest.config, manifest.checkpoints):
            raise RunFolderError(f"{out}: holds another run; choose another --out")
    for name in (*LINKED, *COPIED):
        if (run / name).is_dir():
            copy: Callable[[str, str], object] = _link if name in LINKED else shutil.copy2
            shutil.copytree(run / name, out / name, copy_function=copy, dirs_exist_ok=True)
        elif (run / name).is_file():
            shutil.copy2(run / name, out / name)
    write_manifest(out, manifest)


def _link(source: str, target: str) -> str:
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
