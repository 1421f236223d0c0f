"""Regression: points lost relative to the same checkpoint of a stored run, for rules of the gate alone."""

import numpy as np

from evalsuite.foundation import ConfigError, content_hash
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, ResampledStratum
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.scopes import weights_of
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.records.merging import CheckpointEntry
from evalsuite.reports.records.names import find
from evalsuite.reports.rules.evidence import SHOWN, Evidence, matches, missing, name_of, nothing
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.rules.metric import RuleMetric
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.power import drop_margin


def regression(
    evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
) -> Measurement | NotMeasured:
    """Points lost relative to the same checkpoint of a stored run."""
    assert protocol is not None
    tensor = evidence.tensor
    baseline = evidence.baseline(str(rule.baseline))
    if isinstance(baseline, str):
        return NotMeasured(baseline)
    try:
        before = _counterpart(baseline, tensor.checkpoints[checkpoint], rule)
    except ConfigError as error:
        return NotMeasured(f"{rule.baseline}: {error}")
    cells = [
        c
        for c in tensor.cells
        if c.protocol == protocol and matches(rule, c) and not c.is_perplexity and checkpoint in c.present
    ]
    lacking = missing(rule, tensor, protocol, [checkpoint], {cell.key for cell in cells})
    if lacking or not cells:
        return NotMeasured(lacking or nothing(rule, tensor, protocol))
    cells = [cells[i] for i in tensor.counting.once(cells)]
    strata, look_at = [], []
    for cell in cells:
        old = next((c for c in baseline.cells if c.key == cell.key and before in c.present), None)
        if old is None:
            gone = baseline.unmeasured(before, cell.key)
            found = gone and gone.sentence([baseline.checkpoints[before].label], cell.benchmark.name)
            return NotMeasured(f"{rule.baseline}: {found or f'{name_of(cell.key)}: not in the baseline'}")
        rows, documents = _paired(old, before, cell, checkpoint)
        if len(rows) < 2 or not tensor.selection.admits(len(rows), len(cell.documents)):
            return NotMeasured(
                f"{name_of(cell.key)}: only {len(rows):,} of {len(cell.documents):,} documents have the "
                "same prompt in the baseline"
            )
        strata.append(ResampledStratum(_stratum(rows, documents, old, before, cell, checkpoint)))
        lost = documents[rows[:, 1] < rows[:, 0]]
        look_at += [f"{cell.benchmark.name}/{document}" for document in lost]
    data = BootstrapSample(strata, weights_of(cells))
    return Measurement(data.difference(0, 1).scaled(100), data.documents, tuple(look_at[:SHOWN]))


def _counterpart(baseline: ResultTensor, checkpoint: CheckpointEntry, rule: Rule) -> int:
    """The named checkpoint of the baseline; by default that of the same answers, weights or label.

    Raises:
        ConfigError: there is none, or several.
    """
    known = baseline.checkpoints
    if rule.baseline_checkpoint is not None:
        return find(rule.baseline_checkpoint, known, "baseline_checkpoint")
    same = [i for i, each in enumerate(known) if not checkpoint.weights.isdisjoint(each.weights)]
    answers = [i for i in same if not checkpoint.members.isdisjoint(known[i].members)]
    for found in (answers, same):
        if len(found) == 1:
            return found[0]
    return find(checkpoint.label, known, "name it as baseline_checkpoint")


def _paired(old: Cell, before: int, new: Cell, after: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores [documents, 2] before and after on documents with the same prompt, and the documents."""
    documents, a, b = np.intersect1d(old.documents, new.documents, assume_unique=True, return_indices=True)
    same_prompt = old.prompt_hashes[a] == new.prompt_hashes[b]
    scores = [
        cell.scores()[cell.present.index(checkpoint)][at[same_prompt]]
        for cell, checkpoint, at in ((old, before, a), (new, after, b))
    ]
    return np.column_stack(scores), documents[same_prompt]


def _stratum(
    rows: np.ndarray, documents: np.ndarray, old: Cell, before: int, new: Cell, after: int
) -> Stratum:
    """Stratum of the scores [documents, 2] before and after, with the clusters and seeds of their cells."""
    cells = ((old, before, "before"), (new, after, "after"))
    at = np.searchsorted(new.documents, documents)
    return Stratum(
        rows,
        tuple(name for _, _, name in cells),
        content_hash([new.key, documents.tolist()]),
        None if new.clusters is None else np.unique(new.clusters[at], return_inverse=True)[1],
        np.array([cell.seed_variance()[cell.present.index(who)] for cell, who, _ in cells]),
        np.array([max(1, len(cell.seeds) - 1) for cell, _, _ in cells]),
    )


MEASURES.add(
    "regression",
    Measure(
        metrics={
            "regression": RuleMetric(
                measure=regression,
                bound="max",
                unit="points",
                hint="points lost relative to the same checkpoint in `baseline`",
                needs_baseline=True,
                unchanged=0.0,
                planned=drop_margin,
            )
        }
    ),
)
