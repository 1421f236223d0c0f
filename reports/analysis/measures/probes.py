"""Probes of recurrent states: how fast they decay, how full they are, and what they hold of a needle.

A document counts once: its heads are averaged, or the head with the longest memory is taken. Intervals are
Student's t over documents. The readout is that of the head whose mean over the documents is largest, as
single heads retrieve (arXiv 2404.15574).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Literal

import numpy as np
import pandas as pd

from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.records.probes import SEGMENTS
from evalsuite.reports.statistics.intervals import Interval, student_quantile

METHOD = "Student's t over documents"
FOUND, MISSED = "found", "missed"
DEPTHS = ((0.0, 25.0), (25.0, 50.0), (50.0, 75.0), (75.0, 100.0))
"""Ranges of depths in percent; the last bound belongs to its range."""
_NUMBERS = ("log_decay", "slowest_log_decay", "beta", "write", "norm", "rank", "retained", "readout")
SHARE, POSITIVE = (0.0, 1.0), (0.0, inf)
"""Ranges of values."""
LEAST = 2
"""Documents that an interval needs."""
Kind = Literal["all", "answer", "depth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One layer of one checkpoint on one segment of some documents."""

    checkpoint: int
    benchmark: str
    context: int
    kind: Kind
    """What `group` names."""
    group: str
    """`all`; `found` or `missed`, whether all tokens of the answer are the most likely ones; or depths."""
    layer: int
    mixer: str
    segment: str
    """`before`, `needle`, `after` or `question`."""
    documents: int
    found: int
    """Documents whose answer is right in all tokens."""
    tokens_right: Estimate
    """Share of the answer's tokens that are the most likely one, given the answer before them."""
    half_life: Estimate
    """Tokens after which half of the state is left, by the median head and its mean over channels; undefined
    without decay."""
    longest_half_life: Estimate
    """The same by the head and channel that decays least."""
    beta: Estimate
    """Write strength of the delta rule; undefined for additive mixers."""
    write: Estimate
    """Norm of a write ÷ norm of the state after the segment."""
    norm: Estimate
    """Frobenius norm of the state after the segment."""
    rank: Estimate
    """Effective rank of that state."""
    retained: Estimate
    """Share of the write of the needle's value that the state still holds; undefined before the needle."""
    readout: Estimate
    """Share of the readout of the best head that goes to the value; of the question alone."""
    readout_head: int | None
    """That head."""


def probe_rows(tensor: ResultTensor, frame: pd.DataFrame | None) -> list[ProbeRow]:
    """Rows of every checkpoint of the report, benchmark, context, group, layer and segment.

    Segments are told apart over all documents; the groups of answers and of depths have the question alone.

    Args:
        tensor: names the checkpoints.
        frame: as `evalsuite.reports.records.probes.read_probes` returns it; None for no rows.
    """
    if frame is None:
        return []
    found: list[ProbeRow] = []
    frame = frame.sort_values(["doc_id", "head"], kind="stable")
    for checkpoint, each in enumerate(tensor.checkpoints):
        mine = frame[frame["weights_id"] == each.plan.weights_id]
        for benchmark, context in sorted(set(zip(mine["benchmark"], mine["context"], strict=True))):
            part = mine[(mine["benchmark"] == benchmark) & (mine["context"] == context)]
            for kind, group, rows in _groups(part):
                for layer, segment, of_layer in _layers(rows):
                    found.append(_row(checkpoint, benchmark, context, kind, group, layer, segment, of_layer))
    return found


def _groups(frame: pd.DataFrame) -> Iterator[tuple[Kind, str, pd.DataFrame]]:
    """Groups of two documents or more."""
    question = frame[frame["segment"] == "question"]
    right = question["answer_right"] == question["answer_tokens"]
    parts: list[tuple[Kind, str, pd.DataFrame]] = [
        ("all", "all", frame),
        ("answer", FOUND, question[right]),
        ("answer", MISSED, question[~right]),
    ]
    for low, high in DEPTHS:
        last = high == DEPTHS[-1][1]
        inside = question["depth"].between(low, high, inclusive="both" if last else "left")
        parts.append(("depth", f"{low:g}-{high:g} %", question[inside]))
    yield from ((kind, group, rows) for kind, group, rows in parts if rows["doc_id"].nunique() >= LEAST)


def _layers(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    parts = dict(iter(frame.groupby(["layer", "segment"], sort=True)))
    for layer in sorted(frame["layer"].unique()):
        for segment in SEGMENTS:
            rows = parts.get((layer, segment))
            if rows is not None and rows["doc_id"].nunique() >= LEAST:
                yield int(layer), segment, rows


def _row(
    checkpoint: int,
    benchmark: str,
    context: int,
    kind: Kind,
    group: str,
    layer: int,
    segment: str,
    rows: pd.DataFrame,
) -> ProbeRow:
    """Estimates of one layer; `rows` are its documents and heads on one segment, heads within documents."""
    heads = int(rows["head"].max()) + 1
    wide = {name: rows[name].to_numpy(dtype=float).reshape(-1, heads) for name in _NUMBERS}
    tokens, right = (rows[f"answer_{name}"].to_numpy()[::heads] for name in ("tokens", "right"))
    best = None if np.isnan(wide["readout"]).any() else int(wide["readout"].mean(axis=0).argmax())
    stateless = "softmax attention has no state"
    missing = stateless if np.isnan(wide["norm"]).all() else ""
    return ProbeRow(
        checkpoint=checkpoint,
        benchmark=benchmark,
        context=context,
        kind=kind,
        group=group,
        layer=layer,
        mixer=str(rows["mixer"].iloc[0]),
        segment=segment,
        documents=len(tokens),
        found=int((right == tokens).sum()),
        tokens_right=_mean(right / tokens, "", bounds=SHARE),
        half_life=_half_life(np.median(wide["log_decay"], axis=1), missing),
        longest_half_life=_half_life(wide["slowest_log_decay"].max(axis=1), missing),
        beta=_mean(wide["beta"].mean(axis=1), missing or "the mixer adds its writes", bounds=POSITIVE),
        write=_mean(wide["write"].mean(axis=1), missing or "no tokens", bounds=POSITIVE),
        norm=_mean(wide["norm"].mean(axis=1), missing, bounds=POSITIVE),
        rank=_mean(wide["rank"].mean(axis=1), missing, bounds=POSITIVE),
        retained=_mean(
            wide["retained"].mean(axis=1), missing or "the needle is not read yet", bounds=POSITIVE
        ),
        readout=Estimate(None, "the question is not read yet")
        if best is None
        else _mean(wide["readout"][:, best], "", bounds=SHARE),
        readout_head=best,
    )


def _mean(values: np.ndarray, why: str, bounds: tuple[float, float] = (-inf, inf)) -> Estimate:
    """Mean over documents with Student's t interval; documents without a value are left out.

    Args:
        values: of the documents.
        why: the reason if fewer than two have a value.
        bounds: range of the values, which the interval respects.
    """
    values = values[np.isfinite(values)]
    if len(values) < LEAST:
        return Estimate(None, why or "fewer than two documents")
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    half = student_quantile(len(values) - 1, 0.975) * deviation / sqrt(len(values))
    return Estimate(Interval(mean, mean - half, mean + half, METHOD).clipped(*bounds))


def _half_life(log_decay: np.ndarray, why: str) -> Estimate:
    """Half-life ln 2 ÷ −(mean log decay) in tokens; its interval is that of the mean, transformed."""
    found = _mean(log_decay, why or "no tokens")
    if found.interval is None:
        return found
    rates = [-found.interval.high, -found.interval.point, -found.interval.low]
    if rates[1] <= 0:
        return Estimate(None, "the state does not decay")
    if rates[0] <= 0:
        return Estimate(None, "the decay is within its interval of none")
    ends: Sequence[float] = [log(2) / rate for rate in rates]
    return Estimate(Interval(ends[1], ends[2], ends[0], METHOD))
