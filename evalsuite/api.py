"""The Python interface: distill, evaluate, compare, gate, and runs as pandas tables.

    from evalsuite.api import RunConfig, distill, evaluate, load_run

    students = distill("pocket", "students", mixers=["kda"])
    evaluate(RunConfig(suite="pocket-quick", teacher="pocket", checkpoints=students, out="runs/first"))
    load_run("runs/first").leaderboard

Importing this module imports neither torch nor a harness; `compare`, `gate` and `load_run` never do. Every
error that is raised on purpose is an `EvalsuiteError` that names the file, the field and the way out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from evalsuite.config import CompareConfig, GateConfig, RunConfig, read_run_config
from evalsuite.foundation import EvalsuiteError
from evalsuite.foundation.dependencies import missing_dependency

if TYPE_CHECKING:
    import pandas as pd

    from evalsuite.distill.recipe import Recipe
    from evalsuite.evaluation.estimate import Estimate
    from evalsuite.evaluation.run import Summary
    from evalsuite.reports.comparison import Comparison
    from evalsuite.reports.gate.plan import Plan
    from evalsuite.reports.gate.policy import Policy
    from evalsuite.reports.gate.verdict import Verdict
    from evalsuite.reports.records.run_selection import RunSelection
    from evalsuite.reports.report import Report
    from evalsuite.reports.run import Manifest
    from evalsuite.reports.table import Table

__all__ = [
    "CompareConfig",
    "EvalsuiteError",
    "GateConfig",
    "Run",
    "RunConfig",
    "compare",
    "distill",
    "estimate",
    "evaluate",
    "export",
    "gate",
    "import_logs",
    "load_run",
    "plan_gate",
    "read_run_config",
]


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _naming_extras(verb: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Refuse with the extra to install, as the command line does, where an optional package is missing."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return function(*args, **kwargs)
            except ModuleNotFoundError as error:
                missing = missing_dependency(error, verb)
                if missing is None:
                    raise
                raise missing from error

        return call

    return decorate


@_naming_extras("distill")
def distill(
    recipe: "str | Path | Recipe",
    out: Path | str,
    *,
    mixers: Sequence[str] = (),
    overrides: Iterable[str] = (),
    device: str | None = None,
    branch_from: Path | str | None = None,
    quiet: bool = False,
) -> list[str]:
    """Train the students of a recipe, or resume an interrupted call.

        distill("pocket", "students", mixers=["kda"], overrides=["stage.tokens=65536"])

    Args:
        recipe: a name from `evalsuite show recipes`, a YAML file, or a recipe.
        out: folder of the students.
        mixers: students to train instead of the recipe's.
        overrides: ``key=value`` as for `evalsuite distill --set`; only for a name or a file.
        device: ``cpu``, ``cuda`` or ``cuda:1``; None: CUDA if available.
        branch_from: run folder to begin with the state of, whose stages so far are the recipe's too.
        quiet: no progress bars.

    Returns:
        Paths of the students: one Hugging Face folder each, as `RunConfig.checkpoints` takes them.

    Raises:
        ConfigError, DataError, CheckpointError: before training starts.
        RunFolderError: `out` holds another run, is in use, or cannot be written; or `branch_from` has no
            state that this run can begin with.
        TrainingError: a loss became NaN or diverged.
    """
    from evalsuite.distill import distill as train
    from evalsuite.distill import load_recipe
    from evalsuite.foundation import ConfigError

    if isinstance(recipe, str | Path):
        recipe = load_recipe(recipe, overrides)
    elif list(overrides):
        raise ConfigError("overrides apply to a recipe's name or file: pass those to load_recipe instead")
    folders = train(
        recipe,
        Path(out),
        mixers=list(mixers) or None,
        device=device,
        quiet=quiet,
        branch_from=None if branch_from is None else Path(branch_from),
    )
    return [str(folder) for folder in folders]


@_naming_extras("run")
def evaluate(config: RunConfig) -> "Summary":
    """Evaluate checkpoints on a suite; repeating the call resumes.

        evaluate(RunConfig(suite="quick", teacher="./teacher", checkpoints=["./student"], out="runs/first"))

    Returns:
        What was computed; `str` of it is the table that `evalsuite run` prints, `scores` is a DataFrame.

    Raises:
        EvalsuiteError: see `evalsuite.evaluation.evaluate`.
    """
    from evalsuite.evaluation import evaluate as run

    return run(config)


@_naming_extras("run")
def estimate(config: RunConfig) -> "Estimate":
    """Count the requests and tokens of a run and estimate its time; nothing is written.

    print(estimate(RunConfig(suite="quick", checkpoints=["./student"], out="runs/first")))
    """
    from evalsuite.evaluation import estimate_run

    return estimate_run(config)


@_naming_extras("compare")
def compare(config: CompareConfig) -> "Comparison":
    """Write the report of runs; checkpoints are evaluated first.

        compare(CompareConfig(inputs=["runs/first"], out="report")).page

    Returns:
        The report: `page` and `files` that were written, `text` of the leaderboard, `verdict` of a policy.

    Raises:
        EvalsuiteError: see `evalsuite.reports.compare`.
    """
    return compare_with_texts(config)[0]


def compare_with_texts(config: CompareConfig) -> "tuple[Comparison, dict[str, str]]":
    """Compare as `compare` does; also return why benchmarks have no question texts: benchmark → reason."""
    from evalsuite.reports import compare as write_report
    from evalsuite.reports import load_policy

    policy = None if config.policy is None else load_policy(Path(config.policy))
    runs, selection = config.runs, config.selection
    if not runs:
        evaluate(config.run_config())
        runs = [Path(config.out) / "run"]
        # The teacher was given as a path; the run states its label.
        selection = replace(selection, teacher=None)
    questions = None
    if (config.questions or config.data is not None) and not config.redact:
        from evalsuite.evaluation.prompts import QuestionTexts

        questions = QuestionTexts(runs, config.data)
    comparison = write_report(
        runs,
        Path(config.out),
        selection=selection,
        questions=questions,
        redacted=config.redact,
        policy=policy,
        samples=config.samples,
        printed=None if config.printed is None else Path(config.printed),
    )
    if config.export_samples:
        from evalsuite.reports.exports.samples.folder import export_samples

        export_samples(comparison.report, Path(config.out), redacted=config.redact)
    return comparison, {} if questions is None else dict(questions.missing)


def gate(config: GateConfig) -> "Verdict":
    """Apply a policy to finished runs, or to a report.

        gate(GateConfig(runs=["runs/first"], min_recovery=0.9)).exit_code

    Returns:
        The verdict; `exit_code` is 0 pass, 1 proven regression, 2 inconclusive, 3 could not be measured.

    Raises:
        EvalsuiteError: see `evalsuite.reports.run_gate`.
    """
    from evalsuite.reports import run_gate
    from evalsuite.reports.gate.from_report import gate_report

    out = None if config.out is None else Path(config.out)
    if config.report is not None:
        return gate_report(config.report, config.load_policy(), checkpoints=config.checkpoints, out=out)
    runs = [Path(run) for run in config.runs]
    return run_gate(runs, config.load_policy(), out=out, selection=config.selection)


def plan_gate(
    policy: "Path | str | Policy",
    *,
    documents: Sequence[int] = (),
    runs: Sequence[Path | str] = (),
    checkpoints: Sequence[str] = (),
    benchmarks: Sequence[str] = (),
    over: Literal["documents", "runs"] | None = None,
    run_spread: float | None = None,
    **assumptions: float,
) -> "Plan":
    """Compute how often a policy would notice a loss, and how often it would fail without one.

        print(plan_gate("gate.yaml", documents=[1319], loss=5).text)

    Args:
        policy: a file or a `Policy`.
        documents: number of documents of each benchmark that a rule averages.
        runs: run folders whose manifests state the documents instead; scores are not read.
        checkpoints: what the policy is applied to; empty: as the policy states, else the students of the
            runs, else one.
        benchmarks, over, run_spread: as in `GateConfig`.
        assumptions: `loss` in points (5), `churn` (0.15), `score` (0.7) and `power` (0.8) as fractions.

    Raises:
        ConfigError: an invalid policy or number; neither or both of documents and runs.
    """
    from evalsuite.reports import load_policy
    from evalsuite.reports.gate.plan import Assumptions, plan_policy
    from evalsuite.reports.run import read_manifest

    rules = load_policy(Path(policy)) if isinstance(policy, str | Path) else policy
    return plan_policy(
        rules.with_options(benchmarks=tuple(benchmarks), over=over, run_spread=run_spread),
        documents=documents,
        manifests=[read_manifest(Path(run)) for run in runs],
        students=len(checkpoints) or None,
        assumptions=Assumptions(**assumptions),
    )


def import_logs(
    logs: Iterable[Path | str],
    out: Path | str,
    *,
    format: str | None = None,
    benchmarks: Sequence[str] = (),
    data: Path | str | None = None,
) -> list[Path]:
    """Import the logs of other harnesses as run folders, for `compare`, `gate`, `export` and `load_run`.

        runs = import_logs(["lm-eval-logs"], "imported")
        compare(CompareConfig(inputs=runs, teacher="big-model", out="report"))

    Args:
        logs: files or folders.
        out: folder for the run folders.
        format: lm-eval, evalscope, inspect, every-eval-ever or a plugin's; None: recognised by the files.
        benchmarks: only these; all if empty.
        data: frozen data, whose ids documents get: logs of different harnesses are paired by them. None:
            documents have ids of their harness.

    Raises:
        EvalsuiteError: logs that cannot be read or paired; see `evalsuite.reports.imports.import_logs`.
    """
    from evalsuite.imported_logs import find_source, import_as_runs

    sources = [find_source(log) if format is None else (format, Path(log)) for log in logs]
    return import_as_runs(sources, Path(out), benchmarks=benchmarks, data=data)


def export(
    runs: Sequence[Path | str],
    format: str,
    out: Path | str,
    *,
    teacher: str | None = None,
    same: Sequence[str] = (),
) -> list[Path]:
    """Write results in the format of others: `model-card`, `model-index`, `eval-results`, `every-eval-ever`.

    Args:
        runs: run folders.
        teacher: label, weights_id or path of the only teacher; None: as the manifests state.
        same: what is one checkpoint, as in `CompareConfig`.

    Returns:
        The files.

    Raises:
        EvalsuiteError: see `evalsuite.reports.exports.exporter.export`.
    """
    from evalsuite.reports import RunSelection
    from evalsuite.reports.exports import formats

    selection = RunSelection(teacher=teacher, same=tuple(same))
    return list(formats.export([Path(run) for run in runs], format, Path(out), selection=selection).files)


@dataclass(frozen=True)
class Run:
    """Results of one or more run folders as pandas tables, computed when they are first used."""

    folders: tuple[Path, ...]
    selection: "RunSelection"
    """Teacher, checkpoints and partial cells of the report."""

    @cached_property
    def manifests(self) -> "tuple[Manifest, ...]":
        """The manifest of each run: suite, benchmarks, checkpoints and engines."""
        from evalsuite.reports.run import read_manifest

        return tuple(read_manifest(folder) for folder in self.folders)

    @cached_property
    def report(self) -> "Report":
        """Every number of the report, as the page shows it."""
        from evalsuite.reports.report import build_report

        return build_report(list(self.folders), self.selection)

    @cached_property
    def samples(self) -> "pd.DataFrame":
        """One row per checkpoint, document, protocol and seed: the score rows with the labels of manifests.

        Columns: the key of a score row (`weights_id`, `fingerprint`, `benchmark`, `protocol`, `seed`,
        `context`, `doc_id`, `prompt_hash`, `sampling`), `checkpoint`, `outcome`, `chance`, `error`,
        `cluster`, ``value.METRIC`` per metric, ``choice.METRIC`` (the index of the choice that a metric
        picks) under log-likelihood, and `response` and `extracted` under generation.
        """
        import pandas as pd

        from evalsuite.reports.records.score_files import read_rows, score_paths

        rows = []
        for folder, manifest in zip(self.folders, self.manifests, strict=True):
            for benchmark, protocol in manifest.cells():
                for path in score_paths(folder, benchmark.name, protocol):
                    rows += [_sample(row, manifest) for row in read_rows(path).values()]
        return pd.DataFrame(rows)

    @cached_property
    def tables(self) -> "dict[str, Table[Any]]":
        """The tables of the report by name: those that have a CSV, also without rows."""
        from evalsuite.reports.measures import computed

        return {table.name: table for table in computed(self.report)[0]}

    def table(self, name: str) -> "pd.DataFrame":
        """A table of the report, such as `pairs`: NAME.csv as a DataFrame, empty without rows.

        Raises:
            ConfigError: there is no such table.
        """
        from evalsuite.foundation.errors import ConfigError, nearest

        if name not in self.tables:
            raise ConfigError(f"unknown table '{name}'{nearest(name, self.tables)}")
        return self.tables[name].frame(self.report)

    @property
    def scores(self) -> "pd.DataFrame":
        """One row per checkpoint, benchmark, protocol and context: scores.csv of the report."""
        return self.table("scores")

    @property
    def leaderboard(self) -> "pd.DataFrame":
        """One row per checkpoint, protocol and scope: leaderboard.csv of the report."""
        return self.table("leaderboard")

    @property
    def gap(self) -> "pd.DataFrame":
        """One row per student, benchmark and context, gap.csv of the report; empty without both protocols."""
        return self.table("gap")


def load_run(
    *folders: Path | str,
    teacher: str | None = None,
    checkpoints: Sequence[str] = (),
    min_coverage: float | None = None,
    errors: Literal["wrong", "exclude"] | None = None,
    same: Sequence[str] = (),
) -> Run:
    """Open finished or unfinished runs.

        run = load_run("runs/first")
        run.leaderboard[["label", "protocol", "recovery"]]
        run.samples.groupby(["checkpoint", "benchmark", "protocol"])["value.acc"].mean()

    Args:
        folders: run folders.
        teacher, checkpoints, min_coverage, errors, same: as in `CompareConfig`.

    Raises:
        ConfigError: no folder, or a value out of range.
        RunFolderError: a folder is no run folder.
    """
    from evalsuite.foundation import ConfigError, RunFolderError
    from evalsuite.reports.records.run_selection import RunSelection
    from evalsuite.reports.run import is_run_folder

    if not folders:
        raise ConfigError("no run folder given: load_run('runs/first')")
    paths = tuple(Path(folder) for folder in folders)
    for path in paths:
        if not is_run_folder(path):
            raise RunFolderError(f"{path}: not a run folder (no run.json); `evaluate` makes one")
    return Run(paths, RunSelection(teacher, tuple(checkpoints), min_coverage, errors, same=tuple(same)))


def _sample(row: dict[str, Any], manifest: "Manifest") -> dict[str, Any]:
    detail = row["detail"] or {}
    checkpoint = manifest.checkpoint(row["weights_id"], row["fingerprint"])
    flat = {name: row[name] for name in row if name not in ("values", "detail", "choices", "checkpoint")}
    return {
        "checkpoint": row["checkpoint"] if checkpoint is None else checkpoint.label,
        **flat,
        **{f"value.{metric}": value for metric, value in row["values"].items()},
        **{f"choice.{metric}": choice for metric, choice in row["choices"].items()},
        "response": detail.get("response"),
        "extracted": detail.get("extracted"),
    }
