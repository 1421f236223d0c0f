"""`beam_add`, `beam_replace` and `greedy`: search by perplexity, without training (arXiv 2603.26556).

The perplexity is the mean over recall, knowledge and plain text (section 4.1.1 and Appendix D).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import GENDISTILL, SELECTORS, Start
from evalsuite.distill.selection.selectors.hybrid_search import HybridSearch
from evalsuite.foundation.strict import Seed

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.measured_sets import MeasuredSets

COMPONENTS = ("recall", "knowledge", "text")


class PerplexitySearch(HybridSearch):
    """Search by the mean perplexity of hybrids over recall, knowledge and text."""

    source: ClassVar[str] = f"{GENDISTILL}, Appendix D"
    criterion: ClassVar[str] = "mean"
    lower_is_better: ClassVar[bool] = True

    num_examples: int = Field(default=200, gt=0)
    """Questions of the recall set and of the knowledge set (500 in the paper)."""
    num_pairs: int = Field(default=40, gt=4, le=80)
    """Key-value pairs of each question of the recall set."""
    seed: Seed = 0
    """Seed of the questions."""
    knowledge: str | None = None
    """Knowledge set: a data source of the recipe with prompts and completions, or a benchmark. Default:
    `pocket_facts` for the pocket tokenizer, otherwise the training questions of `arc_easy`."""

    def criterion_title(self) -> str:
        return "mean perplexity over recall, knowledge and text"

    def hybrids(self, context: "SelectionContext") -> Mapping[Start, "MeasuredSets"]:
        from evalsuite.distill.selection.hybrids import measured_hybrids
        from evalsuite.distill.selection.questions import knowledge_questions
        from evalsuite.distill.selection.tasks import QuestionSet, draw_questions

        recall, knowledge = (
            QuestionSet(questions, context.tokenizer, context.device, context.max_length)
            for questions in (
                draw_questions("kv", count=self.num_examples, seed=self.seed, pairs=self.num_pairs),
                knowledge_questions(context, self.knowledge, self.num_examples, self.seed),
            )
        )

        def evaluate(student: Any) -> tuple[float, ...]:
            values = (
                recall.evaluate(student).perplexity,
                knowledge.evaluate(student).perplexity,
                context.held_out.perplexity(student),
            )
            return (*values, sum(values) / len(values))

        about = self.model_dump(include={"num_examples", "num_pairs", "seed", "knowledge"})
        columns = (*COMPONENTS, "mean")
        return measured_hybrids(
            context, "perplexity", about, columns, evaluate, cost=lambda row: (row["mean"],)
        )


@SELECTORS.register("greedy")
class Greedy(PerplexitySearch):
    """The K layers whose restoration alone lowers perplexity most.

    "Selects top-k layers by individual perplexity impact" (Appendix D).
    """

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        hybrids = self.hybrids(context)
        measure = hybrids[self.start]
        measure.all([frozenset([layer]) for layer in range(context.layers)], "layers")
        best = frozenset(top_layers(self.scores(context, measure), k))
        return self.result(context, hybrids, [best])


class BeamSearch(PerplexitySearch):
    """Beam search by perplexity."""

    beam_width: int = Field(default=4, gt=0)
    """Configurations that each depth keeps: those with the lowest mean perplexity; the paper does not state
    its number."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        return self.search(context, k, self.beam_width)


@SELECTORS.register("beam_add")
class BeamAdd(BeamSearch):
    """Beam search by perplexity, adding layers to the all-linear student."""

    source: ClassVar[str] = f"{GENDISTILL}, section 4.1.1, Appendix D"


@SELECTORS.register("beam_replace")
class BeamReplace(BeamSearch):
    """Beam search by perplexity, replacing layers of the teacher."""

    start: ClassVar[Start] = "teacher"
