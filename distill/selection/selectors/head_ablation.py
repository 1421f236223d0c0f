"""`head_ablation`: single heads, by what the teacher loses without them where text comes back."""

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import SELECTORS, Requirement, Selector, Unit
from evalsuite.foundation import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.models import StudentForCausalLM

BATCH_TOKENS = 16_384
"""Tokens of one forward pass."""


def without_heads(model: "StudentForCausalLM", layer: int, heads: Collection[int]) -> "StudentForCausalLM":
    """`model` without the output of query heads of a softmax layer."""
    from evalsuite.distill.selection.hybrids import with_output_projections

    width = model.model.layers[layer].self_attn.head_dim

    def zero(projection: "nn.Linear") -> None:
        for head in heads:
            projection.weight.data[:, head * width : (head + 1) * width] = 0

    return with_output_projections(model, [layer], zero)


def returning_tokens(rows: "NDArray[np.int64]", ngram: int) -> "NDArray[np.bool_]":
    """Which tokens of each row complete an n-gram that stands earlier in the row: [rows, length].

    Raises:
        DataError: none does.
    """
    import numpy as np

    from evalsuite.models.diagnostics.token_classes import previous_places

    found = np.stack([previous_places(row, ngram) >= 0 for row in rows])
    if not found.any():
        raise DataError(
            f"no sequence of {ngram} tokens comes back in {rows.size:,} held-out tokens; set --option "
            "held_out to more rows, seq_len to longer ones, or ngram to fewer tokens"
        )
    return found


def mean_loss(model: "StudentForCausalLM", rows: "NDArray[np.int64]", tokens: "NDArray[np.bool_]") -> float:
    """Mean loss of `tokens` [rows, length] of `rows` in nats; none of them is the first of its row."""
    import numpy as np
    import torch

    from evalsuite.models.diagnostics.distance import SplitModel
    from evalsuite.models.diagnostics.repeated_spans import token_predictions
    from evalsuite.models.inference.batching import to_device

    split, total = SplitModel(model), 0.0
    step = max(1, BATCH_TOKENS // rows.shape[1])
    with torch.inference_mode():
        for part in (slice(at, at + step) for at in range(0, len(rows), step)):
            places = to_device(np.flatnonzero(tokens[part]), split.device)
            total += float(token_predictions(split, to_device(rows[part], split.device), places)[1].sum())
    return total / int(tokens.sum())


@SELECTORS.register("head_ablation")
class HeadAblation(Selector):
    """Increase in loss on returning text when one head of the teacher is zeroed: selects heads, not layers.

    The text is held-out text of the recipe's last stage, and the tokens are those that complete an n-gram
    which stands earlier in their row, as attention can look up.
    """

    source: ClassVar[str] = "arXiv 2602.11374, with text in place of key-value pairs"
    requires: ClassVar[Requirement] = "teacher"
    unit: ClassVar[Unit] = "head"

    seq_len: int = Field(default=1024, ge=2)
    """Tokens of each held-out row, at most the teacher's positions."""
    ngram: int = Field(default=4, ge=2)
    """Tokens that must stand earlier in the same order for the last of them to count as returning."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        from evalsuite.distill.selection.measured_sets import MeasuredSets
        from evalsuite.distill.training.held_out import held_out_text

        for layer in context.teacher.model.layers:
            if layer.self_attn.attention_shape.qk_norm == "all_heads":
                raise ConfigError(
                    "head_ablation: the teacher's QK-norm spans all heads of a layer, none of which can stay "
                    "softmax alone; choose a selector of layers"
                )
        length, held_out = min(self.seq_len, context.max_length), self.held_out
        rows = held_out_text(context.training_recipe, context.tokenizer, held_out * length, length)
        returning = returning_tokens(rows, self.ngram)
        others = ~returning
        others[:, 0] = False

        def measure(heads: Collection[int]) -> tuple[float]:
            model = context.teacher
            for number in heads:
                model = without_heads(model, number // context.heads, [number % context.heads])
            return (mean_loss(model, rows, returning),)

        about = {"held_out": held_out, "seq_len": length, "ngram": self.ngram}
        measured = MeasuredSets(context, "head-ablation", about, ("loss",), measure, unit="head", key="heads")
        numbers = range(context.layers * context.heads)
        whole, *without = measured.all([frozenset(), *(frozenset([each]) for each in numbers)], self.name)
        loss, other_loss = whole["loss"], mean_loss(context.teacher, rows, others)
        notes: tuple[str, ...] = ()
        if loss >= other_loss:
            notes = (
                f"the teacher predicts returning tokens no better than others ({loss:.2f} against "
                f"{other_loss:.2f} nats): what its heads add to them says little",
            )
        return SelectionResult.of_head_scores(
            [row["loss"] - loss for row in without],
            context.heads,
            k,
            measure=f"increase in loss of returning {self.ngram}-grams without the head, nats per token",
            notes=notes,
            details={"loss": loss, "other_loss": other_loss, "returning": int(returning.sum())},
        )
