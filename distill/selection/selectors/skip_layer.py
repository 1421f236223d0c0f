"""Selectors that skip one layer of the teacher at a time (KL-guided selection, section 4.2 and Table 3)."""

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import KL_GUIDED, SELECTORS, Requirement, Selector
from evalsuite.foundation import content_hash
from evalsuite.foundation.strict import Seed

if TYPE_CHECKING:
    from torch import nn

    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.tasks import QuestionSet
    from evalsuite.models import StudentForCausalLM

MIN_TEACHER_ACCURACY = 0.1
"""Below this accuracy of the unmodified teacher, accuracy drops are uninformative."""
WHEN_SKIPPED = " when the layer is skipped"


def without_layers(model: "StudentForCausalLM", layers: Collection[int]) -> "StudentForCausalLM":
    """`model` with output projections of zeros in the mixers of `layers`: identity residual connections
    (Table 3)."""
    from evalsuite.distill.selection.hybrids import with_output_projections

    def zero(projection: "nn.Linear") -> None:
        for parameter in projection.parameters():
            parameter.data.zero_()

    return with_output_projections(model, layers, zero)


class SyntheticTask(Selector):
    """Accuracy drop on a synthetic task when a layer is skipped.

    Accuracy is exact match of the greedy answer, as a set of words for unordered answers. Ties are broken by
    the drop in log-probability of the answers. For a teacher below 10 % accuracy, the log-probability is
    the score, which the result notes.
    """

    source: ClassVar[str] = f"{KL_GUIDED}, section 4.2 (2), Table 3"
    requires: ClassVar[Requirement] = "teacher"
    num_examples: int = Field(default=200, gt=0)
    """Questions."""
    seed: Seed = 0
    """Seed of the questions."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        from evalsuite.distill.selection.measured_sets import MeasuredSets
        from evalsuite.distill.selection.tasks import QuestionSet, draw_questions

        task, pairs = self.name, getattr(self, "num_pairs", 0)
        questions = draw_questions(task, count=self.num_examples, seed=self.seed, pairs=pairs)
        question_set = QuestionSet(questions, context.tokenizer, context.device, context.max_length)
        drawn = content_hash([[each.prompt, each.answer] for each in questions])
        every = frozenset(range(context.layers))

        def measure(layers: Collection[int]) -> tuple[float, float]:
            model = without_layers(context.teacher, every.difference(layers))
            found = question_set.evaluate(model)
            if questions[0].any_order:
                return _unordered_accuracy(context, model, question_set), found.mean_logprob
            return found.accuracy, found.mean_logprob

        measured = MeasuredSets(
            context,
            f"skip-layer-{task}",
            {"task": task, "num_examples": self.num_examples, "questions": drawn},
            ("accuracy", "mean_logprob"),
            measure,
            unit="layer",
        )
        baseline, *without = measured.all([every, *(every - {layer} for layer in sorted(every))], task)
        accuracy = [baseline["accuracy"] - row["accuracy"] for row in without]
        logprobs = [baseline["mean_logprob"] - row["mean_logprob"] for row in without]
        scores, what = accuracy, f"accuracy drop on {task}{WHEN_SKIPPED}"
        notes: tuple[str, ...] = ()
        if baseline["accuracy"] < MIN_TEACHER_ACCURACY:
            scores = logprobs
            what = f"drop in log-probability of {task} answers{WHEN_SKIPPED}, nats per token"
            notes = (
                f"the teacher answers {baseline['accuracy']:.1%} of {task}: layers are scored by the "
                "log-probability of the answers instead of accuracy",
            )
        details = {"teacher": baseline, "skipped": without, "questions": self.num_examples}
        return SelectionResult.of_scores(scores, k, ties=logprobs, measure=what, notes=notes, details=details)


@SELECTORS.register("kv")
class KeyValueLookup(SyntheticTask):
    """Accuracy drop when a layer is skipped: look up a key in a dictionary."""

    num_pairs: int = Field(default=40, gt=4, le=80)
    """Key-value pairs of each question; `ar` and `ar_mh` have 24 at most."""


@SELECTORS.register("ar")
class SumOfValues(KeyValueLookup):
    """Accuracy drop when a layer is skipped: add the values of three keys."""


@SELECTORS.register("ar_mh")
class SumOfAliases(KeyValueLookup):
    """Accuracy drop when a layer is skipped: add the values of three keys, some defined by other keys."""


@SELECTORS.register("vt")
class VariableTracking(SyntheticTask):
    """Accuracy drop when a layer is skipped: list all variables with a value."""


@SELECTORS.register("cwe")
class CommonWords(SyntheticTask):
    """Accuracy drop when a layer is skipped: list the most frequent words."""


def _unordered_accuracy(
    context: "SelectionContext", model: "StudentForCausalLM", question_set: "QuestionSet"
) -> float:
    """Share of questions whose greedy answer has exactly the expected words, in any order."""
    from evalsuite.models.checkpoints.load import Checkpoint
    from evalsuite.models.inference import GenerateRequest, SamplingParams
    from evalsuite.models.inference.torch.engine import TorchEngine

    info = context.info
    checkpoint = Checkpoint(info.label, info.path, model, context.tokenizer, info.weights_id)
    sampling = SamplingParams(max_new_tokens=2 * max(question_set.answer_tokens) + 2, stop=("\n",))
    requests = [GenerateRequest(prompt=prompt, sampling=sampling) for prompt in question_set.prompts]
    right = 0
    for index, response in TorchEngine(checkpoint).generate(requests):
        right += sorted(response.text.split()) == sorted(question_set.questions[index].answer.split())
    return right / len(requests)


class TextChange(Selector):
    """Change on held-out text when a layer is skipped."""

    source: ClassVar[str] = f"{KL_GUIDED}, section 4.2 (3), Table 3"
    requires: ClassVar[Requirement] = "teacher"


@SELECTORS.register("act_mse")
class ActivationChange(TextChange):
    """Mean squared change of the final hidden states when a layer is skipped."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        text = context.held_out
        baseline = text.final_hidden(context.teacher)
        scores = []
        for layer in range(context.layers):
            changed = text.final_hidden(without_layers(context.teacher, [layer]))
            squared = sum((a - b).square().sum().item() for a, b in zip(changed, baseline, strict=True))
            scores.append(squared / sum(states.numel() for states in baseline))
        measure = f"mean squared change of the final hidden states{WHEN_SKIPPED}"
        details = {"held_out_tokens": text.num_tokens}
        return SelectionResult.of_scores(scores, k, measure=measure, details=details)


@SELECTORS.register("lm_ppl")
class PerplexityChange(TextChange):
    """Increase in perplexity on held-out text when a layer is skipped."""

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        text = context.held_out
        baseline = text.perplexity(context.teacher)
        scores = [
            text.perplexity(without_layers(context.teacher, [layer])) - baseline
            for layer in range(context.layers)
        ]
        measure = f"increase in perplexity on held-out text{WHEN_SKIPPED}"
        details = {"perplexity": baseline, "held_out_tokens": text.num_tokens}
        return SelectionResult.of_scores(scores, k, measure=measure, details=details)
