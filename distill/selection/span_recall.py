"""`span_recall`: search by how well text that comes back is predicted, without training."""

from collections.abc import Collection, Sequence
from typing import Any

import torch

from evalsuite.distill.recall import LENGTHS, held_out_rows
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.one_swap.candidates import hybrid_from_linear
from evalsuite.distill.selection.result import SelectionResult, Snapshot
from evalsuite.foundation import progress
from evalsuite.models import build_student
from evalsuite.models.diagnostics.repeated_spans import repeated_spans, span_scores

WINDOW, SINKS = 64, 4
"""Tokens that the other layers attend to: the latest, and the first."""
GAP = 512
"""Tokens between the two occurrences of a span, at most half of the teacher's positions."""


class WindowedRecall:
    """Recall of the teacher with full attention in some layers and a window in all others.

    A window stands for what a student keeps anyway; it needs no training, since the attention is the
    teacher's. Sets are measured once and logged.
    """

    def __init__(self, context: SelectionContext) -> None:
        options, tokenizer = context.options, context.tokenizer
        gap = min(GAP, context.max_length // 2)
        stream = held_out_rows(context.training_recipe, tokenizer, options.held_out * LENGTHS[-1]).reshape(-1)
        self._spans = repeated_spans(
            stream, gap, options.num_examples, seed=options.seed, end=tokenizer.eos_token_id
        )
        student = build_student(
            context.teacher, "sliding_window", options={"sliding_window": {"window": WINDOW, "sinks": SINKS}}
        )
        self._context, self._windowed = context, context.prepare(student)
        about = {key: getattr(options, key) for key in ("held_out", "num_examples", "seed")}
        about |= {"gap": gap, "window": WINDOW, "sinks": SINKS}
        self._progress_log = context.progress_log("span-recall", about)
        self._known: dict[frozenset[int], dict[str, Any]] = {
            frozenset(row["layers"]): row for row in self._progress_log.rows
        }

    def __call__(self, softmax: Collection[int]) -> dict[str, Any]:
        """`gain`: nats by which a span's tokens are likelier when it returns; `recall`: share predicted."""
        key = frozenset(softmax)
        if key not in self._known:
            self._measure([key])
        return self._known[key]

    def best(self, candidates: Sequence[frozenset[int]], what: str) -> frozenset[int]:
        """Return the candidate with the highest gain; of equal ones the first."""
        new = [each for each in candidates if each not in self._known]
        world = self._context.process_group.world_size
        with progress(total=len(candidates), what=what, unit="set", quiet=self._context.quiet) as bar:
            bar.update(len(candidates) - len(new))
            for start in range(0, len(new), world):
                self._measure(new[start : start + world])
                bar.update(len(new[start : start + world]))
        return max(candidates, key=lambda each: self(each)["gain"])

    def _measure(self, sets: Sequence[frozenset[int]]) -> None:
        """Measure up to one set per process and share the values."""
        group = self._context.process_group
        values = torch.zeros(len(sets), 2, dtype=torch.float64, device=self._context.device)
        if group.rank < len(sets):
            chosen = sorted(sets[group.rank])
            with hybrid_from_linear(self._windowed, self._context.all_softmax, chosen) as student:
                scores = span_scores(student, self._spans)
            values[group.rank] = torch.tensor([scores.gain.mean(), scores.right.mean()])
        group.all_reduce(values)
        for key, (gain, recall) in zip(sets, values.tolist(), strict=True):
            self._known[key] = {"layers": sorted(key), "gain": gain, "recall": recall}
            self._progress_log.append(self._known[key])


def span_recall(context: SelectionContext, k: int) -> SelectionResult:
    """Restore full attention in one layer after the other, each time where spans gain most.

    All other layers attend to a window. The score of a layer is what it adds alone.
    """
    measure = WindowedRecall(context)
    all_layers = frozenset(range(context.layers))
    single = [frozenset([layer]) for layer in range(context.layers)]
    chosen: frozenset[int] = frozenset()
    history = []
    for depth in range(1, k + 1):
        candidates = [chosen | {layer} for layer in sorted(all_layers - chosen)]
        chosen = measure.best(candidates, f"layer {depth} of {k}")
        history.append(Snapshot(step=depth, tokens=0, layers=tuple(sorted(chosen))))
    windows = measure(frozenset())
    return SelectionResult(
        layers=tuple(sorted(chosen)),
        scores=tuple(measure(each)["gain"] - windows["gain"] for each in single),
        measure="gain of returning spans by full attention in this layer alone, nats per token",
        history=tuple(history),
        details={
            "selected": measure(chosen),
            "windows": windows,
            "teacher": measure(all_layers),
            "path": [measure(each.layers) for each in history],
        },
    )
