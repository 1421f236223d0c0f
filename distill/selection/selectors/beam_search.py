"""`beam_add`, `beam_replace` and `greedy`: search by perplexity, without training (arXiv 2603.26556).

The perplexity is the mean over recall, knowledge and plain text (section 4.1.1 and Appendix D).
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.result import Cost, SelectionResult, Snapshot
from evalsuite.distill.selection.selector import GENDISTILL, SELECTORS, Requirement, Selector
from evalsuite.foundation.strict import Seed

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.measured_sets import MeasuredSets

COMPONENTS = ("recall", "knowledge", "text")
MEASURE = "mean perplexity over recall, knowledge and text"
ALONE = {
    "all-linear": f"{MEASURE}: reduction from restoring this layer alone in the all-linear student",
    "teacher": f"{MEASURE}: increase from replacing this layer alone in the teacher",
}


class PerplexitySearch(Selector):
    """Search by the mean perplexity of hybrids over recall, knowledge and text."""

    source: ClassVar[str] = f"{GENDISTILL}, Appendix D"
    requires: ClassVar[Requirement] = "all_linear"
    start: ClassVar[Literal["all-linear", "teacher"]] = "all-linear"
    """Where the search starts: attention is restored, or replaced."""

    num_examples: int = Field(default=200, gt=0)
    """Questions of the recall set and of the knowledge set (500 in the paper)."""
    num_pairs: int = Field(default=40, gt=4, le=80)
    """Key-value pairs of each question of the recall set."""
    seed: Seed = 0
    """Seed of the questions."""
    knowledge: str | None = None
    """Knowledge set: a data source of the recipe with prompts and completions, or a benchmark. Default:
    `pocket_facts` for the pocket tokenizer, otherwise the training questions of `arc_easy`."""

    def perplexity(
        self, context: "SelectionContext", start: Literal["all-linear", "teacher"]
    ) -> "MeasuredSets":
        """Perplexity of the student `start`, with attention swapped in some layers."""
        from evalsuite.distill.selection.hybrids import with_mixers_of
        from evalsuite.distill.selection.knowledge import knowledge_questions
        from evalsuite.distill.selection.measured_sets import MeasuredSets
        from evalsuite.distill.selection.tasks import QuestionSet, draw_questions

        # Distil the all-linear student in all processes before any of them measures alone.
        all_linear, all_softmax = context.all_linear, context.teacher
        recall, knowledge = (
            QuestionSet(questions, context.tokenizer, context.device, context.max_length)
            for questions in (
                draw_questions("kv", count=self.num_examples, seed=self.seed, pairs=self.num_pairs),
                knowledge_questions(context, self.knowledge, self.num_examples, self.seed),
            )
        )

        def measure(softmax: Collection[int]) -> tuple[float, ...]:
            if start == "all-linear":
                student = with_mixers_of(all_linear, all_softmax, softmax)
            else:
                student = with_mixers_of(all_softmax, all_linear, set(range(context.layers)) - set(softmax))
            values = (
                recall.evaluate(student).perplexity,
                knowledge.evaluate(student).perplexity,
                context.held_out.perplexity(student),
            )
            return (*values, sum(values) / len(values))

        about = {"mixer": context.mixer, **context.settings}
        about |= self.model_dump(include={"num_examples", "num_pairs", "seed", "knowledge"})
        columns = (*COMPONENTS, "mean")
        return MeasuredSets(
            context,
            f"perplexity-{start}",
            about,
            columns,
            measure,
            cost=lambda row: row["mean"],
            unit="hybrid",
        )

    def start_layers(self, context: "SelectionContext") -> frozenset[int]:
        """The softmax layers that the search starts from."""
        return frozenset(range(0 if self.start == "all-linear" else context.layers))

    def scores(self, context: "SelectionContext", measure: "MeasuredSets") -> tuple[float, ...]:
        """The change of perplexity by swapping each layer alone; higher stays softmax first."""
        start, sign = self.start_layers(context), -1.0 if self.start == "all-linear" else 1.0
        baseline = measure(start)["mean"]
        return tuple(sign * (measure(start ^ {i})["mean"] - baseline) for i in range(context.layers))

    def result(
        self,
        context: "SelectionContext",
        measure: "MeasuredSets",
        beam: Sequence[frozenset[int]],
        history: Sequence[Snapshot] = (),
    ) -> SelectionResult:
        """The best set of the beam, with the measurements of the sets behind it."""
        linear, teacher = (self.perplexity(context, start) for start in ("all-linear", "teacher"))
        return SelectionResult(
            layers=tuple(sorted(beam[0])),
            scores=self.scores(context, measure),
            measure=ALONE[self.start],
            history=tuple(history),
            cost=Cost(all_linear_tokens=context.all_linear_tokens),
            details={
                "selected": measure(beam[0]),
                "beam": [measure(each) for each in beam],
                "all_linear": linear(()),
                "teacher": teacher(range(context.layers)),
                "path": [measure(each.layers) for each in history],
                "hybrids_measured": len(measure),
            },
        )


@SELECTORS.register("greedy")
class Greedy(PerplexitySearch):
    """The K layers whose restoration alone lowers perplexity most.

    "Selects top-k layers by individual perplexity impact" (Appendix D).
    """

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        measure = self.perplexity(context, self.start)
        measure.all([frozenset([layer]) for layer in range(context.layers)], "layers")
        return self.result(context, measure, [frozenset(top_layers(self.scores(context, measure), k))])


class BeamSearch(PerplexitySearch):
    """Beam search by perplexity."""

    beam_width: int = Field(default=4, gt=0)
    """Configurations that each depth keeps: those with the lowest mean perplexity; the paper does not state
    its number."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        measure, start = self.perplexity(context, self.start), self.start_layers(context)
        measure(start)
        beam, history = [start], []
        depth = abs(k - len(start))
        for number in range(1, depth + 1):
            # Layers that are not swapped yet.
            swaps = {
                each ^ {i} for each in beam for i in range(context.layers) if (i in each) == (i in start)
            }
            beam = measure.best(sorted(swaps, key=sorted), self.beam_width, f"depth {number} of {depth}")
            history.append(Snapshot(step=number, tokens=0, layers=tuple(sorted(beam[0]))))
        return self.result(context, measure, beam, history)


@SELECTORS.register("beam_add")
class BeamAdd(BeamSearch):
    """Beam search by perplexity, adding layers to the all-linear student."""

    source: ClassVar[str] = f"{GENDISTILL}, section 4.1.1, Appendix D"


@SELECTORS.register("beam_replace")
class BeamReplace(BeamSearch):
    """Beam search by perplexity, replacing layers of the teacher."""

    start: ClassVar[Literal["all-linear", "teacher"]] = "teacher"
