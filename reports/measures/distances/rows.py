"""Distance from the teacher: KL divergence and top-1 agreement of next-token distributions, with a yardstick.

Averages are token means Σ KL ÷ Σ tokens; over the answers of several benchmarks the macro mean of those.
Intervals are bootstraps over documents of the linearized ratio (Cochran 1977, section 6.4). A student is
placed among roundings of its teacher by interpolating log KL: "as far as rounding to 4.5 bits". Weights of a
recipe that was trained again stand next to the checkpoint, never in its place; the gate does not read them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from evalsuite.foundation import content_hash
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, Estimate, ResampledStratum
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.records.distances import ANSWERS
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.contrasts import Contrast
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.statistics.yardstick import equivalent_bits

Kind = Literal["all", "source", "token_class", "positions"]
METHOD = "bootstrap over documents"
Model = tuple[str, int | None]
"""weights_id, and the bits of a rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceRow:
    """The distance of one model from its teacher, on one text or a part of it."""

    checkpoint: int | None
    """None for a rounded teacher."""
    is_retrained: bool
    """Whether other weights than the checkpoint's were compared: those of its recipe, trained again."""
    bits: int | None
    """Of a rounded teacher; None for a student."""
    teacher: int
    text: str
    """`answers`, or the name of a text."""
    kind: Kind
    """What `group` names."""
    group: str
    """`all`, or a benchmark or source, a token class, or a range of positions."""
    documents: int
    tokens: int
    kl: Interval
    """KL(teacher ‖ model) in nats per token."""
    agreement: Interval
    """Share of tokens with the same most likely token."""
    equivalent_bits: Estimate
    """Bits of the rounding at the same distance; undefined for roundings and beyond the scale."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The models of a teacher on one text or a part of it."""

    models: tuple[Model, ...]
    data: BootstrapSample
    """Columns: the KL divergence of each model, then the agreement of each."""
    tokens: int


def distance_rows(tensor: ResultTensor, frame: pd.DataFrame | None) -> list[DistanceRow]:
    """Rows of every teacher, text, part and model, models in the order of the report, then the roundings.

    Args:
        tensor: names the checkpoints.
        frame: as `evalsuite.reports.records.distances.DISTANCE_FILE` reads it; None for no rows.
    """
    if frame is None:
        return []
    # Of several checkpoints of the same weights the first one: a distance is one of weights.
    index: dict[str, int] = {}
    for i, each in enumerate(tensor.checkpoints):
        index.setdefault(each.weights_id, i)
    pairs = frame[["weights_id", "same_recipe_as"]].dropna().drop_duplicates()
    retrained = {
        weights_id: index[original]
        for weights_id, original in pairs.itertuples(index=False)
        if original in index and weights_id not in index
    }
    models = index | retrained
    known = frame[frame["teacher"].isin(index) & frame["weights_id"].isin(models)]
    found = []
    for names, part in known.groupby(["teacher", "text"], sort=True):
        teacher, text = map(str, names)
        for kind, group, rows in _groups(part, text, _merged(tensor, index[teacher], part)):
            summed = _part(rows, text, kind)
            if summed is not None:
                found += _rows(summed, models, retrained, index[teacher], text, kind, group)
    return found


def answer_distance(
    tensor: ResultTensor, frame: pd.DataFrame, checkpoint: int, benchmark: str | None = None
) -> tuple[Contrast, int] | None:
    """KL divergence of a student at the answers, in nats per token, with its number of documents.

    Args:
        tensor, frame: as in `distance_rows`.
        checkpoint: index of the student.
        benchmark: only this one; None for the macro mean of all.

    Returns:
        None if it was not measured.
    """
    teacher = tensor.checkpoints[checkpoint].teacher
    if teacher is None:
        return None
    rows = frame[
        (frame["teacher"] == tensor.checkpoints[teacher].weights_id)
        & (frame["weights_id"] == tensor.checkpoints[checkpoint].weights_id)
        & (frame["text"] == ANSWERS)
        & frame["bits"].isna()
    ]
    if benchmark is None:
        rows = rows[~rows["source"].isin(_merged(tensor, teacher, rows))]
    else:
        rows = rows[rows["source"] == benchmark]
    summed = _part(rows, ANSWERS, "all")
    return None if summed is None else (summed.data.mean({0: 1.0}), summed.data.documents)


def _merged(tensor: ResultTensor, teacher: int, frame: pd.DataFrame) -> set[str]:
    """Benchmarks among the sources whose requests are another source's."""
    sources = set(frame["source"])
    cells = [c for c in tensor.cells if c.benchmark.name in sources and teacher in c.present]
    return set(tensor.counting.benchmarks([c for c in cells if c.protocol == "loglikelihood"]))


def _groups(frame: pd.DataFrame, text: str, merged: Collection[str]) -> list[tuple[Kind, str, pd.DataFrame]]:
    kinds: tuple[Kind, ...] = ("source", "token_class", "positions")
    once = frame[~frame["source"].isin(merged)] if text == ANSWERS else frame
    found: list[tuple[Kind, str, pd.DataFrame]] = [("all", "all", once)]
    for kind in kinds:
        rows = frame if kind == "source" else once
        names = sorted(rows[kind].dropna().unique())
        if len(names) > 1:
            found += [(kind, name, rows[rows[kind] == name]) for name in names]
    return found


def _part(frame: pd.DataFrame, text: str, kind: Kind) -> _Part | None:
    """Sum per document, and resample; the documents are those that all models have."""
    frame = frame.assign(bits=frame["bits"].fillna(-1).astype(int))
    sources = sorted(frame["source"].unique()) if text == ANSWERS and kind == "all" else [None]
    # A macro mean over fewer benchmarks is not comparable: models that lack one are left out.
    covered = frame.groupby(["weights_id", "bits"])["source"].transform("nunique")
    frame = frame if sources == [None] else frame[covered == len(sources)]
    strata, tokens, models = [], 0, None
    for source in sources:
        rows = frame if source is None else frame[frame["source"] == source]
        sums = rows.groupby(["source", "doc_id", "weights_id", "bits"])[["tokens", "kl", "agreement"]].sum()
        wide = sums.unstack(["weights_id", "bits"]).dropna()
        if len(wide) < 2:
            continue
        models = tuple(wide["tokens"].columns)
        units = wide["tokens"].to_numpy(dtype=float)
        columns = [_linearized(wide[name].to_numpy(dtype=float), units) for name in ("kl", "agreement")]
        names = [f"{model} {bits}" for model, bits in models]
        key = content_hash(["distance", text, [list(each) for each in wide.index]])
        stratum = Stratum(np.hstack(columns), tuple(f"{m} {n}" for m in ("kl", "top1") for n in names), key)
        strata.append(ResampledStratum(stratum))
        tokens += int(units[:, 0].sum())
    if models is None:
        return None
    data = BootstrapSample(strata, [1.0] * len(strata))
    return _Part(tuple((name, None if bits < 0 else bits) for name, bits in models), data, tokens)


def _linearized(values: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Values whose mean is Σ values ÷ Σ units and whose spread is that of the ratio. [documents, models]"""
    level = values.sum(axis=0) / units.sum(axis=0)
    return np.asarray(level + (values - level * units) / units.mean(axis=0))


def _rows(
    part: _Part,
    models: Mapping[str, int],
    retrained: Collection[str],
    teacher: int,
    text: str,
    kind: Kind,
    group: str,
) -> list[DistanceRow]:
    count = len(part.models)
    contrasts = [part.data.mean({i: 1.0}) for i in range(count)]
    scale = {
        bits: contrast.point
        for (_, bits), contrast in zip(part.models, contrasts, strict=True)
        if bits is not None
    }
    rows = [
        DistanceRow(
            checkpoint=models[weights_id] if bits is None else None,
            is_retrained=weights_id in retrained,
            bits=bits,
            teacher=teacher,
            text=text,
            kind=kind,
            group=group,
            documents=part.data.documents,
            tokens=part.tokens,
            kl=contrast.interval(method=METHOD),
            agreement=part.data.mean({count + i: 1.0}).interval(method=METHOD).clipped(0.0, 1.0),
            equivalent_bits=_bits(contrast, scale) if bits is None else Estimate(None, "a rounding"),
        )
        for i, ((weights_id, bits), contrast) in enumerate(zip(part.models, contrasts, strict=True))
    ]
    return sorted(
        rows,
        key=lambda row: (row.bits is not None, -(row.bits or 0), row.checkpoint or 0, row.is_retrained),
    )


def _bits(contrast: Contrast, scale: dict[int, float]) -> Estimate:
    if not scale:
        return Estimate(None, "the run has no yardstick (evalsuite distance --yardstick)")
    finest, coarsest = max(scale), min(scale)
    if contrast.point < scale[finest]:
        return Estimate(None, f"closer to the teacher than rounding it to {finest} bits")
    if contrast.point > scale[coarsest]:
        return Estimate(None, f"further from the teacher than rounding it to {coarsest} bits")
    found = equivalent_bits(np.append(contrast.draws, contrast.point), scale)
    if isinstance(found, str):
        return Estimate(None, found)
    drawn = Contrast(float(found[-1]), found[:-1], contrast.degrees, 0.0)
    ends: Sequence[float] = [float(np.quantile(drawn.draws, tail)) for tail in (0.025, 0.975)]
    return Estimate(Interval(drawn.point, min(ends[0], drawn.point), max(ends[1], drawn.point), METHOD))
