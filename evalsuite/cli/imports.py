"""Logs of other harnesses among the inputs of `compare` and `gate`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


def add_import_options(
    parser: argparse.ArgumentParser, benchmarks_of: str = "imported logs", data_for: str = ""
) -> None:
    """Add what names logs of other harnesses: the same options for `compare`, `export` and `gate`.

    Args:
        parser: of the command.
        benchmarks_of: what `--benchmark` selects from.
        data_for: what the command reads frozen data for, besides logs.
    """
    parser.add_argument(
        "--import",
        nargs="+",
        default=[],
        metavar="FORMAT:PATH",
        dest="imports",
        help="logs of another harness: lm-eval, evalscope, inspect or every-eval-ever (default: an input "
        "that is no run folder is recognised by its files)",
    )
    parser.add_argument(
        "--benchmark",
        nargs="+",
        default=[],
        metavar="NAME",
        dest="benchmarks",
        help=f"only these benchmarks of {benchmarks_of} (default: all)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="frozen data, as written by `evalsuite prepare`: logs get the ids of its documents, by which "
        f"those of different harnesses are paired{data_for}",
    )


class Inputs(NamedTuple):
    """What `compare` and `gate` were given."""

    runs: list[Path]
    """Run folders, those of imported logs included."""
    checkpoints: list[str]
    """Neither run folders nor logs."""
    imported: bool
    """Whether there were logs."""


def read_inputs(
    inputs: Sequence[str],
    options: argparse.Namespace,
    out: Path | None,
    *,
    suite: Path | str | None = None,
    of_runs: bool = False,
    reads_data: bool = False,
) -> Inputs:
    """Sort inputs into run folders, logs and checkpoints, and import the logs into `<out>/imported`.

    Args:
        inputs: paths, and names of checkpoints if there is a suite.
        options: with those of `add_import_options`.
        out: folder of the command's output.
        suite: evaluates checkpoints; without it an input that is neither a run folder nor a log is refused.
        of_runs: whether the command selects the benchmarks of run folders, too.
        reads_data: whether the command has another use of `--data`.

    Raises:
        ConfigError: no inputs, an `--import` that is not FORMAT:PATH, `--benchmark` or `--data` without logs
            (unless `of_runs` and `reads_data`), logs without `out`, a path that several formats match, or one
            that is neither a run folder nor a log.
        DataError: a log that cannot be read or paired.
    """
    from evalsuite.foundation import ConfigError
    from evalsuite.imported_logs import import_as_runs, named_source
    from evalsuite.reports.imports import find_importer
    from evalsuite.reports.run import is_run_folder

    runs = [Path(name) for name in inputs if is_run_folder(Path(name))]
    sources = [named_source(given) for given in options.imports]
    others = []
    for each in inputs:
        if Path(each) in runs:
            continue
        # A checkpoint may hold the results of other harnesses next to its weights.
        is_checkpoint = suite is not None and (Path(each) / "config.json").is_file()
        found = None if is_checkpoint else find_importer(Path(each))
        if found is None:
            others.append(each)
        else:
            sources.append((found, Path(each)))
    if not (runs or others or sources):
        raise ConfigError("nothing to compare: pass run folders, logs of another harness, or --import")
    if others and (suite is None or runs or sources):
        raise ConfigError(f"{others[0]}: {_unknown(Path(others[0]))}")
    if options.benchmarks and not (sources or of_runs):
        raise ConfigError("--benchmark applies to imported logs; the inputs are none")
    if options.data is not None and not (sources or reads_data):
        raise ConfigError("--data applies to imported logs; the inputs are none")
    if len(harnesses := sorted({name for name, _ in sources})) > 1 and options.data is None:
        print(f"logs of {' and '.join(harnesses)} are paired by document with --data only", file=sys.stderr)
    if sources:
        if out is None:
            raise ConfigError(
                f"{sources[0][1]}: a log of {sources[0][0]}; state with --out where to import it"
            )
        runs += import_as_runs(sources, out / "imported", benchmarks=options.benchmarks, data=options.data)
    return Inputs(runs, others, bool(sources))


def _unknown(path: Path) -> str:
    """What a path is that is neither a run folder nor a log, and what to pass."""
    from evalsuite.reports.imports import IMPORTERS
    from evalsuite.reports.imports.listing import files_below, found_below
    from evalsuite.reports.run import EARLIER, FILE

    below = [str(file.parent) for file in files_below(path) if file.name in (FILE, EARLIER[0])]
    if below:
        more = f" and {len(below) - 3:,} more" if len(below) > 3 else ""
        return (
            f"not a run folder (no run.json), but run folders lie below it; pass {' '.join(below[:3])}{more}"
        )
    return (
        f"not a run folder (no run.json), and no log of {', '.join(IMPORTERS.names())}{found_below(path)}; "
        "to evaluate a checkpoint, use `compare` with --suite and without runs or logs"
    )
