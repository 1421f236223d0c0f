"""`span_recall`: search by how well text that comes back is predicted, without training."""

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import SELECTORS, Requirement, Selector
from evalsuite.foundation.strict import Seed

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.measured_sets import MeasuredSets

LENGTH = 4096
"""Tokens of each held-out sequence."""
WINDOW, SINKS = 64, 4
"""Tokens that the other layers attend to: the latest, and the first."""
GAP = 512
"""Tokens between the two occurrences of a span, at most half of the teacher's positions."""


def windowed_recall(context: "SelectionContext", num_examples: int, seed: int) -> "MeasuredSets":
    """Recall of the teacher with full attention in some layers and a window in all others.

    A window stands for what a student keeps anyway; it needs no training, since the attention is the
    teacher's.

    Returns:
        `gain`: nats by which a span's tokens are likelier when it returns; `recall`: share predicted.
    """
    from evalsuite.distill.selection.hybrids import with_blocks_of
    from evalsuite.distill.selection.measured_sets import MeasuredSets
    from evalsuite.distill.training.held_out import held_out_text
    from evalsuite.models import build_student
    from evalsuite.models.diagnostics.repeated_spans import repeated_spans, span_scores

    tokenizer, held_out = context.tokenizer, context.options.held_out
    gap = min(GAP, context.max_length // 2)
    stream = held_out_text(context.training_recipe, tokenizer, held_out * LENGTH, LENGTH).reshape(-1)
    spans = repeated_spans(stream, gap, num_examples, seed=seed, end=tokenizer.eos_token_id)
    options = {"sliding_window": {"window": WINDOW, "sinks": SINKS}}
    windowed = context.prepare(build_student(context.teacher, "sliding_window", options=options))

    def measure(softmax: Collection[int]) -> tuple[float, float]:
        scores = span_scores(with_blocks_of(windowed, context.teacher, softmax), spans)
        return scores.gain.mean(), scores.right.mean()

    about = {"held_out": held_out, "num_examples": num_examples, "seed": seed}
    about |= {"gap": gap, "window": WINDOW, "sinks": SINKS}
    columns = ("gain", "recall")
    return MeasuredSets(
        context, "span-recall", about, columns, measure, cost=lambda row: (-row["gain"],), unit="set"
    )


@SELECTORS.register("span_recall")
class SpanRecall(Selector):
    """Greedy search by recall of returning text, with windows in the other layers of the teacher.

    Restores full attention in one layer after the other, each time where spans gain most. The score of a
    layer is what it adds alone.
    """

    source: ClassVar[str] = "this package"
    requires: ClassVar[Requirement] = "teacher"

    num_examples: int = Field(default=200, gt=0)
    """Spans."""
    seed: Seed = 0
    """Seed of the spans."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        measure = windowed_recall(context, self.num_examples, self.seed)
        (chosen,), history = measure.search((), k)
        windows = measure(())
        return SelectionResult(
            layers=tuple(sorted(chosen)),
            scores=tuple(measure([layer])["gain"] - windows["gain"] for layer in range(context.layers)),
            measure="gain of returning spans by full attention in this layer alone, nats per token",
            history=tuple(history),
            details={
                "selected": measure(chosen),
                "windows": windows,
                "teacher": measure(range(context.layers)),
                "path": [measure(each.layers) for each in history],
            },
        )
