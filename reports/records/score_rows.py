"""Score rows of one benchmark and protocol from all runs, without those that must not be compared.

Each step logs a warning for what it excludes; the page shows the warnings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, names_answer
from evalsuite.reports.records.merging import CheckpointEntry, MergedPlan
from evalsuite.reports.records.reading import NO_CHOICE, NO_CONTEXT, read_score_files
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.score_files import FLAGS, UNKNOWN_SCORER, ScorerVersion, score_paths
from evalsuite.reports.run import Benchmark, ProtocolSettings

ROUNDING = 1e-3
"""Nats by which a text of probability 1 may seem more probable, in bfloat16."""
SUMMED = "acc"
"""The metric that picks the choice of the highest summed log-probability."""


class BenchmarkProtocol(NamedTuple):
    """One benchmark under one protocol, with its plan."""

    benchmark: Benchmark
    protocol: str
    plan: ProtocolSettings

    @property
    def protocol_title(self) -> str:
        """Name of the protocol in texts."""
        return PROTOCOL_TITLES[self.protocol]

    @property
    def extracts_answers(self) -> bool:
        """Whether responses hold an answer that can be compared: generated, and not the text as a whole."""
        return (
            self.protocol == "generation"
            and self.plan.direction == "higher"
            and self.benchmark.category != "instruction_following"
        )


@dataclass(slots=True)
class ReadLog:
    """Files, warnings and counts collected while score rows are read."""

    score_files: list[Path] = field(default_factory=list)
    """Score files"""
    scorers: list[ScorerVersion] = field(default_factory=list)
    """Of each score file, what scored it"""
    warnings: list[str] = field(default_factory=list)
    unscored: dict[str, list[str]] = field(default_factory=dict)
    """Title of a protocol → benchmarks without any score under it"""
    errors: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """(checkpoint, benchmark, protocol) → number of responses with outcome `error`"""
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Benchmark → the extracted answers that the codes of its column `answer` stand for"""
    score_rows: int = 0

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """One sentence per protocol that names the benchmarks without scores, then the others, each once."""
        holes = (
            f"No {protocol} scores yet: {'; '.join(titles)}." for protocol, titles in self.unscored.items()
        )
        return (*holes, *dict.fromkeys(self.warnings))


def collect_score_rows(
    source: BenchmarkProtocol, merged: MergedPlan, selection: RunSelection, log: ReadLog
) -> pd.DataFrame | None:
    """Read and filter the score rows of one benchmark and protocol.

    Returns:
        Columns checkpoint (index), seed, context, doc_id, cluster, prompt_hash, chance, outcome, value,
        units, `FLAGS`, row, answer and scored_answer (codes, −1 for none), failed (whether the
        response is an error; its value is 0, or NaN for a perplexity), file (index into `log.score_files`);
        one row per checkpoint, seed, context and document. None without score rows.

    Raises:
        DataError: invalid score rows, a score outside 0 … 1, or two different scores for one key.
    """
    checkpoints = merged.checkpoints
    frames = [_read(source, run, log) for run in merged.runs]
    frames = [frame for frame in frames if frame is not None]
    if frames:
        frame = _of_known_checkpoints(pd.concat(frames, ignore_index=True), source, merged, log)
        frame = _planned(frame, source, log)
    if not frames or frame.empty:
        log.unscored.setdefault(source.protocol_title, []).append(source.benchmark.title)
        return None
    frame = _one_sampling(frame, source, log)
    frame = _one_fingerprint(frame, source, checkpoints, log)
    frame = _without_repeats(frame, checkpoints, log)
    _compare_scorers(frame, source, checkpoints, log)
    if source.protocol == "generation":
        codes, names = pd.factorize(_answers(frame), sort=True)
        frame["answer"] = codes.astype(np.int32)
        log.answers[source.benchmark.name] = tuple(map(str, names))
    return _with_errors(frame, source, checkpoints, selection, log)


def _read(source: BenchmarkProtocol, run: Path, log: ReadLog) -> pd.DataFrame | None:
    paths = score_paths(run, source.benchmark.name, source.protocol)
    if not paths:
        return None
    metric, units = source.plan.metric, source.plan.units
    has_choices = source.protocol == "loglikelihood"
    frame, scorers = read_score_files(
        paths,
        [metric, *([units] if units else [])],
        list(dict.fromkeys([SUMMED, metric])) if has_choices else [],
        extracted=source.extracts_answers,
    )
    _refuse_missing_clusters(frame, source, paths)
    value = frame[f"value.{metric}"]
    if source.plan.direction == "higher":
        outside = value.notna() & ~value.between(0, 1)
        for _, bad in frame[outside].head(1).iterrows():
            raise DataError(
                f"{_place(paths, bad)}: {metric} = {bad[f'value.{metric}']:g}; "
                "a score is a fraction between 0 and 1"
            )
    else:
        for _, bad in frame[value < -ROUNDING].head(1).iterrows():
            raise DataError(
                f"{_place(paths, bad)}: {metric} = {bad[f'value.{metric}']:g}; a negative log-likelihood "
                "below 0 would be a perplexity below 1"
            )
        for _, bad in frame[frame[f"value.{units}"] < 0].head(1).iterrows() if units else ():
            raise DataError(f"{_place(paths, bad)}: {bad[f'value.{units}']:g} {units}; expected 0 or more")
    columns = ["seed", "context", "doc_id", "prompt_hash", "chance", "row", "cluster", *FLAGS]
    names = ["weights_id", "fingerprint", "sampling", "outcome"]
    selected = frame[columns + names].astype(dict.fromkeys(names, "str"))
    selected["value"] = value
    selected["units"] = frame[f"value.{units}"] if units else np.ones(len(frame))
    if has_choices:
        selected["answer"], selected["scored_answer"] = frame[f"choice.{SUMMED}"], frame[f"choice.{metric}"]
    else:
        selected["answer"] = frame["extracted"] if source.extracts_answers else None
        selected["scored_answer"] = np.full(len(frame), NO_CHOICE, dtype=np.int32)
    selected["file"] = frame["file"] + len(log.score_files)
    log.score_files += paths
    log.scorers += scorers
    log.score_rows += len(frame)
    return selected


def _answers(frame: pd.DataFrame) -> pd.Series:
    """Extracted answers that responses name. [rows]

    None for a checkpoint with fractions, such as F1, which compare texts.
    """
    fractions = frame.loc[frame["value"].notna() & ~frame["value"].isin([0.0, 1.0]), "checkpoint"].unique()
    return frame["answer"].where(frame["outcome"].map(names_answer) & ~frame["checkpoint"].isin(fractions))


def _place(paths: Sequence[Path], row: pd.Series) -> str:
    return f"{paths[row['file']]}, row {row['row']}"


def _refuse_missing_clusters(frame: pd.DataFrame, source: BenchmarkProtocol, paths: Sequence[Path]) -> None:
    """Raise DataError for a score row without a cluster: as independent it would narrow the intervals."""
    column, missing = source.benchmark.cluster_column, frame["cluster"].isna()
    if column is not None and missing.any():
        raise DataError(
            f"{_place(paths, frame[missing].iloc[0])}: 'cluster' is missing, but documents of benchmark "
            f"'{source.benchmark.name}' are resampled by column '{column}'; score again with "
            "`evalsuite run … --score-only`"
        )


def _of_known_checkpoints(
    frame: pd.DataFrame, source: BenchmarkProtocol, merged: MergedPlan, log: ReadLog
) -> pd.DataFrame:
    identity = ["weights_id", "fingerprint"]
    pairs = frame[identity].drop_duplicates()
    index = {member: i for i, checkpoint in enumerate(merged.checkpoints) for member in checkpoint.members}
    pairs["checkpoint"] = [index.get(member) for member in pairs.itertuples(index=False, name=None)]
    frame = frame.merge(pairs, "left", identity)
    unknown = frame["checkpoint"].isna()
    # Checkpoints of the plans that are not selected are left out on purpose.
    left_out = pairs.loc[pairs["checkpoint"].isna(), identity].itertuples(index=False, name=None)
    strangers = sorted(pair for pair in left_out if not merged.has_plan_of(*pair))
    if strangers:
        who = ", ".join(f"{weights_id} with fingerprint {name}" for weights_id, name in strangers)
        log.warnings.append(
            f"{source.benchmark.title}: score rows of weights_id {who} belong to no plan and are ignored."
        )
    return frame[~unknown].astype({"checkpoint": int})


def _planned(frame: pd.DataFrame, source: BenchmarkProtocol, log: ReadLog) -> pd.DataFrame:
    """Leave out seeds and contexts that the plan does not have."""
    contexts = [NO_CONTEXT if context is None else context for context in source.plan.contexts]
    for column, planned in (("seed", source.plan.seeds), ("context", contexts)):
        other = ~frame[column].isin(planned)
        if other.any():
            found = ", ".join(map(str, sorted(frame.loc[other, column].unique())))
            log.warnings.append(
                f"{source.benchmark.title}: {int(other.sum()):,} {source.protocol_title} score rows of "
                f"{column} "
                f"{found} are not in the plan and are ignored."
            )
            frame = frame[~other]
    return frame


def _one_sampling(frame: pd.DataFrame, source: BenchmarkProtocol, log: ReadLog) -> pd.DataFrame:
    wanted = source.plan.sampling
    found = sorted(frame["sampling"].unique())
    if found == [wanted] or (not wanted and len(found) == 1):
        return frame
    if wanted not in found:
        raise DataError(
            f"{source.benchmark.name}: the plan has sampling '{wanted}', the {source.protocol_title} "
            "score rows "
            f"have {', '.join(map(repr, found))}"
        )
    others = ", ".join(repr(name) for name in found if name != wanted)
    log.warnings.append(
        f"{source.benchmark.title}: {source.protocol_title} score rows with sampling {others} are ignored."
    )
    return frame[frame["sampling"] == wanted]


def _one_fingerprint(
    frame: pd.DataFrame, source: BenchmarkProtocol, checkpoints: Sequence[CheckpointEntry], log: ReadLog
) -> pd.DataFrame:
    """Keep one fingerprint of what was declared the same checkpoint: the one with most score rows.

    Raises:
        DataError: both are of different weights, as logs of two names are.
    """
    if not frame[["checkpoint", "fingerprint"]].drop_duplicates()["checkpoint"].duplicated().any():
        return frame
    counts = frame.groupby(["checkpoint", "fingerprint"], as_index=False).agg(score_rows=("row", "size"))
    # Equal counts are decided by name: the order of the runs changes nothing.
    counts = counts.sort_values(["score_rows", "fingerprint"], ascending=False)
    dropped = counts[counts["checkpoint"].duplicated()]
    first = counts.drop_duplicates("checkpoint")
    kept = dict(zip(first["checkpoint"], first["fingerprint"], strict=True))
    for checkpoint, fingerprint, count in zip(
        dropped["checkpoint"], dropped["fingerprint"], dropped["score_rows"], strict=True
    ):
        weights = {name: weights_id for weights_id, name in checkpoints[checkpoint].members}
        one, other = weights[kept[checkpoint]], weights[fingerprint]
        if one != other:
            raise DataError(
                f"{source.benchmark.name}: two of what --same declares to be "
                f"'{checkpoints[checkpoint].label}' have {source.protocol_title} scores, {one} and {other}, "
                "and no log tells which are right: leave one out"
            )
        log.warnings.append(
            f"{source.benchmark.title}: '{checkpoints[checkpoint].label}' was evaluated more than once "
            f"under {source.protocol_title}, with different engines, dtypes or package versions; the "
            f"{count:,} "
            f"score rows of {fingerprint} are ignored."
        )
    selected = counts[~counts["checkpoint"].duplicated()]
    pairs = pd.MultiIndex.from_frame(selected[["checkpoint", "fingerprint"]])
    return frame[pd.MultiIndex.from_frame(frame[["checkpoint", "fingerprint"]]).isin(pairs)]


def _without_repeats(
    frame: pd.DataFrame, checkpoints: Sequence[CheckpointEntry], log: ReadLog
) -> pd.DataFrame:
    """Count a score row that is in two runs once; refuse two different ones for the same key."""
    key = ["checkpoint", "seed", "context", "doc_id"]
    repeated = frame.duplicated(key, keep=False)
    if not repeated.any():
        return frame
    distinct = frame[repeated].drop_duplicates([*key, "value", "prompt_hash", "outcome", "chance"])
    twice = distinct[distinct.duplicated(key, keep=False)].sort_values(key)
    if not twice.empty:
        one, two = (
            f"{log.score_files[file]}, row {row}"
            for file, row in zip(twice["file"].iloc[:2], twice["row"].iloc[:2], strict=True)
        )
        raise DataError(
            f"'{checkpoints[int(twice['checkpoint'].iloc[0])].label}' has two different scores for document "
            f"{twice['doc_id'].iloc[0]}, seed {twice['seed'].iloc[0]}: {one}, and {two} (in "
            "value, prompt, outcome or chance level)"
        )
    return frame.drop_duplicates(key)


def _compare_scorers(
    frame: pd.DataFrame, source: BenchmarkProtocol, checkpoints: Sequence[CheckpointEntry], log: ReadLog
) -> None:
    """Warn if checkpoints were scored by different versions."""
    versions: dict[ScorerVersion, list[str]] = {}
    scored = frame[["checkpoint", "file"]].drop_duplicates().sort_values(["checkpoint", "file"])
    for checkpoint, number in scored.itertuples(index=False):
        if log.scorers[number] != UNKNOWN_SCORER:
            versions.setdefault(log.scorers[number], []).append(checkpoints[checkpoint].label)
    if len(versions) > 1:
        groups = "; ".join(f"{', '.join(labels)} by {version}" for version, labels in versions.items())
        log.warnings.append(
            f"{source.benchmark.title}: {source.protocol_title} responses were scored by different versions: "
            f"{groups}. Repeat `evalsuite run … --score-only` on the older run."
        )


def _with_errors(
    frame: pd.DataFrame,
    source: BenchmarkProtocol,
    checkpoints: Sequence[CheckpointEntry],
    selection: RunSelection,
    log: ReadLog,
) -> pd.DataFrame:
    """Mark responses that are errors; they score 0 unless the selection excludes them."""
    failed = (frame["outcome"] == "error") | frame["value"].isna()
    is_perplexity = source.plan.direction == "lower"
    frame = frame.assign(failed=failed)
    frame.loc[failed, "value"] = np.nan if is_perplexity else 0.0
    fate = "count as wrong"
    if selection.excludes_errors:
        fate = "are excluded"
    elif is_perplexity:
        fate = "leave the perplexity unmeasured"
    for checkpoint, count in enumerate(
        np.bincount(frame.loc[failed, "checkpoint"], minlength=len(checkpoints))
    ):
        if count:
            log.errors[checkpoint, source.benchmark.name, source.protocol] = int(count)
            log.warnings.append(
                f"{source.benchmark.title}: {count:,} {source.protocol_title} responses of "
                f"'{checkpoints[checkpoint].label}' are errors and {fate}."
            )
    return frame
