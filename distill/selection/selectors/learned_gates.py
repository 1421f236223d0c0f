"""`layer_gates` and `head_gates`: gates between attention and recurrence, learned together."""

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from evalsuite.distill.recipe.config import Tokens
from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.result import Cost, SelectionResult
from evalsuite.distill.selection.selector import SELECTORS, Requirement, Selector, Unit
from evalsuite.foundation.strict import parse

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext


class LearnedGates(Selector):
    """Gates that mix softmax attention and recurrence, trained together with all weights frozen."""

    source: ClassVar[str] = "arXiv 2606.30562, by its abstract"
    requires: ClassVar[Requirement] = "all_linear"

    tokens: Tokens = 1_000_000
    """Tokens that the gates are trained on, of the recipe's first stage of knowledge distillation."""
    lr: float = Field(default=0.05, gt=0)
    """Learning rate of the gates' logits, which falls linearly to 0."""
    penalty: float = Field(default=1.0, ge=0)
    """What open gates cost, all together, in nats per token: a gate stays open if it saves more KL than its
    share of this."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        from evalsuite.distill.selection.gates import GatedStudent, train_gates

        value = context.kd_stage.model_dump() | {"tokens": self.tokens}
        stage = parse(value, type(context.kd_stage), "--option tokens")
        student = GatedStudent(context, by_head=self.unit == "head")
        train_gates(context, student, stage, lr=self.lr, penalty=self.penalty)
        # Gates themselves round to 0 and 1.
        scores = [float(logit) for logits in student.logits for logit in logits.detach()]
        details = {
            "mean_gate": float(student.gates.detach().mean()),
            "gated_kl": context.held_out.kl(student.model),
        }
        for name, kept in (("selected_kl", top_layers(scores, k)), ("linear_kl", ())):
            student.keep(kept)
            details[name] = context.held_out.kl(student.model)
        tokens = stage.steps * stage.tokens_per_step
        rest: dict[str, Any] = {
            "measure": f"logit of the gate that keeps the {self.unit}'s attention",
            "cost": Cost(
                student_tokens=tokens, teacher_tokens=tokens, all_linear_tokens=context.all_linear_tokens
            ),
            "details": details,
        }
        if self.unit == "head":
            return SelectionResult.of_head_scores(scores, context.heads, k, **rest)
        return SelectionResult.of_scores(scores, k, **rest)


@SELECTORS.register("layer_gates")
class LayerGates(LearnedGates):
    """Gates of layers between softmax attention and recurrence, learned together under a sparsity penalty."""


@SELECTORS.register("head_gates")
class HeadGates(LearnedGates):
    """Gates of heads between softmax attention and recurrence, learned together under a sparsity penalty."""

    unit: ClassVar[Unit] = "head"
