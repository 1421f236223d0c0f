"""All records of one benchmark and protocol, from all runs, with what must not be compared taken out.

Each step says in a note what it left out, for the page to show.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from evalsuite.foundation import DataError
from evalsuite.reports.merging import Subject
from evalsuite.reports.reading import read_records
from evalsuite.reports.records import records_path
from evalsuite.reports.run_folder import BenchmarkPlan, ProtocolPlan


class Place(NamedTuple):
    """A benchmark under a protocol, and how it is asked."""

    benchmark: BenchmarkPlan
    protocol: str
    plan: ProtocolPlan


@dataclass(slots=True)
class Notes:
    """What reading the records brought to light."""

    journals: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """(subject, benchmark, protocol) → answers that could not be had"""
    records: int = 0


def read_place(
    place: Place, runs: Sequence[Path], subjects: Sequence[Subject], notes: Notes
) -> pd.DataFrame | None:
    """Read and clean the records of one benchmark and protocol.

    Returns:
        Columns subject (index), seed, context, doc_id, prompt_hash, chance, outcome, value, units, line,
        journal (index into `notes.journals`); one row per subject, seed, context and document. None
        without records.

    Raises:
        DataError: records that are not sound, a score outside 0 … 1, two answers where there can be one.
    """
    frames = [_read(place, run, notes) for run in runs]
    frames = [frame for frame in frames if frame is not None]
    if not frames:
        notes.warnings.append(f"{place.benchmark.title}: no {place.protocol} records yet.")
        return None
    frame = pd.concat(frames, ignore_index=True)
    frame = _of_subjects(frame, place, subjects, notes)
    frame = _one_sampling(frame, place, notes)
    frame = _one_fingerprint(frame, place, subjects, notes)
    frame = _without_repeats(frame, subjects, notes)
    return _without_errors(frame, place, subjects, notes)


def _read(place: Place, run: Path, notes: Notes) -> pd.DataFrame | None:
    metric, units = place.plan.metric, place.plan.units
    path = records_path(run, place.benchmark.name, place.protocol)
    if not path.exists() or path.stat().st_size == 0:
        return None
    frame = read_records(path, [metric, *([units] if units else [])])
    for name, stated in (("benchmark", place.benchmark.name), ("protocol", place.protocol)):
        if frame[name].iloc[0] != stated:
            raise DataError(f"{path}: holds records of {name} '{frame[name].iloc[0]}'")
    value = frame[f"value.{metric}"]
    outside = value.notna() & ~value.between(0, 1)
    if place.plan.direction == "higher" and outside.any():
        bad = frame[outside].iloc[0]
        raise DataError(
            f"{path}, line {bad['line']}: {metric} = {bad[f'value.{metric}']:g}; "
            "a score is a fraction between 0 and 1"
        )
    columns = ["seed", "context", "doc_id", "prompt_hash", "chance", "line"]
    columns += ["weights_id", "fingerprint", "sampling", "outcome"]
    kept = frame[columns].astype(dict.fromkeys(columns[6:], "str"))
    kept["value"] = value
    kept["units"] = frame[f"value.{units}"] if units else np.ones(len(frame))
    kept["journal"] = np.full(len(frame), len(notes.journals))
    notes.journals.append(path)
    notes.records += len(frame)
    return kept


def _of_subjects(
    frame: pd.DataFrame, place: Place, subjects: Sequence[Subject], notes: Notes
) -> pd.DataFrame:
    index = {subject.plan.weights_id: i for i, subject in enumerate(subjects)}
    frame["subject"] = frame["weights_id"].map(index)
    strangers = frame["subject"].isna()
    if strangers.any():
        who = ", ".join(sorted(frame.loc[strangers, "weights_id"].unique()))
        notes.warnings.append(
            f"{place.benchmark.title}: records of weights {who} are in no plan and are left out."
        )
    return frame[~strangers].astype({"subject": int})


def _one_sampling(frame: pd.DataFrame, place: Place, notes: Notes) -> pd.DataFrame:
    wanted = place.plan.sampling
    found = sorted(frame["sampling"].unique())
    if found == [wanted] or (not wanted and len(found) == 1):
        return frame
    if wanted not in found:
        raise DataError(
            f"{place.benchmark.name}: the plan says sampling '{wanted}', the {place.protocol} records have "
            f"{', '.join(map(repr, found))}"
        )
    others = ", ".join(repr(name) for name in found if name != wanted)
    notes.warnings.append(
        f"{place.benchmark.title}: {place.protocol} records with sampling {others} are left out."
    )
    return frame[frame["sampling"] == wanted]


def _one_fingerprint(
    frame: pd.DataFrame, place: Place, subjects: Sequence[Subject], notes: Notes
) -> pd.DataFrame:
    """Of weights that ran under several fingerprints keep the one with most records, then the latest."""
    counts = frame.groupby(["subject", "fingerprint"], as_index=False).agg(
        records=("line", "size"), journal=("journal", "max")
    )
    if not counts["subject"].duplicated().any():
        return frame
    counts = counts.sort_values(["records", "journal"], ascending=False)
    dropped = counts[counts["subject"].duplicated()]
    for subject, fingerprint, records in zip(
        dropped["subject"], dropped["fingerprint"], dropped["records"], strict=True
    ):
        notes.warnings.append(
            f"{place.benchmark.title}: '{subjects[subject].label}' was run more than once under "
            f"{place.protocol}, with different engines, number formats or package versions; the {records:,} "
            f"records of {fingerprint} are left out."
        )
    kept = counts[~counts["subject"].duplicated()]
    pairs = pd.MultiIndex.from_frame(kept[["subject", "fingerprint"]])
    return frame[pd.MultiIndex.from_frame(frame[["subject", "fingerprint"]]).isin(pairs)]


def _without_repeats(frame: pd.DataFrame, subjects: Sequence[Subject], notes: Notes) -> pd.DataFrame:
    """The same record in two runs counts once; two different ones are refused."""
    key = ["subject", "seed", "context", "doc_id"]
    repeated = frame.duplicated(key, keep=False)
    if not repeated.any():
        return frame
    distinct = frame[repeated].drop_duplicates([*key, "value", "prompt_hash", "outcome"])
    twice = distinct[distinct.duplicated(key, keep=False)].sort_values(key)
    if not twice.empty:
        one, two = (
            f"{notes.journals[journal]}, line {line}"
            for journal, line in zip(twice["journal"].iloc[:2], twice["line"].iloc[:2], strict=True)
        )
        raise DataError(
            f"'{subjects[int(twice['subject'].iloc[0])].label}' has two different answers to document "
            f"{twice['doc_id'].iloc[0]}, seed {twice['seed'].iloc[0]}: {one}, and {two}"
        )
    return frame.drop_duplicates(key)


def _without_errors(
    frame: pd.DataFrame, place: Place, subjects: Sequence[Subject], notes: Notes
) -> pd.DataFrame:
    failed = (frame["outcome"] == "error") | frame["value"].isna()
    for subject, count in enumerate(np.bincount(frame.loc[failed, "subject"], minlength=len(subjects))):
        if count:
            notes.errors[subject, place.benchmark.name, place.protocol] = int(count)
            notes.warnings.append(
                f"{place.benchmark.title}: {count:,} {place.protocol} answers of "
                f"'{subjects[subject].label}' ended in an error; those documents are not compared."
            )
    return frame[~failed]
