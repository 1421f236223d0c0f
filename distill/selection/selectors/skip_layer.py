"""Selectors that skip one layer of the teacher at a time (KL-guided selection, section 4.2 and Table 3)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import KL_GUIDED, SELECTORS, Requirement, Selector
from evalsuite.foundation import content_hash
from evalsuite.foundation.strict import Seed

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.tasks import QuestionSet

MIN_TEACHER_ACCURACY = 0.1
"""Below this accuracy of the unmodified teacher, accuracy drops are uninformative."""


@contextmanager
def skip_layer(model: Any, layer: int) -> Iterator[None]:
    """Replace the output of the mixer of `layer` by zeros: an identity residual connection (Table 3).

    The mixer still runs, so that caches are filled as usual.
    """

    def zero_output(module: Any, inputs: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
        return (output[0].new_zeros(output[0].shape), *output[1:])

    hook = model.model.layers[layer].self_attn.register_forward_hook(zero_output)
    try:
        yield
    finally:
        hook.remove()


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

    @property
    def pairs(self) -> int:
        """Key-value pairs of each question; 0 for tasks without pairs."""
        return 0

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        from evalsuite.distill.selection.tasks import QuestionSet, draw_questions

        task = self.name
        questions = draw_questions(task, count=self.num_examples, seed=self.seed, pairs=self.pairs)
        question_set = QuestionSet(questions, context.tokenizer, context.device, context.max_length)
        drawn = content_hash([[each.prompt, each.answer] for each in questions])
        about = {"task": task, "examples": self.num_examples, "questions": drawn}
        progress_log = context.progress_log(f"skip-layer-{task}", about)
        found = {row["layer"]: row for row in progress_log.rows}
        for layer in (None, *range(context.layers)):
            if layer in found:
                continue
            if layer is None:
                row = _measure(context, question_set)
            else:
                with skip_layer(context.teacher, layer):
                    row = _measure(context, question_set)
            found[layer] = {"layer": layer, **row}
            progress_log.append(found[layer])
        baseline, without = found[None], [found[layer] for layer in range(context.layers)]
        accuracy = [baseline["accuracy"] - row["accuracy"] for row in without]
        logprobs = [baseline["mean_logprob"] - row["mean_logprob"] for row in without]
        informative = baseline["accuracy"] >= MIN_TEACHER_ACCURACY
        notes: tuple[str, ...] = ()
        if not informative:
            notes = (
                f"the teacher answers {baseline['accuracy']:.1%} of {task}: layers are scored by the "
                "log-probability of the answers instead of accuracy",
            )
        scores = accuracy if informative else logprobs
        return SelectionResult(
            layers=top_layers(scores, k, ties=logprobs),
            scores=tuple(scores),
            measure=(
                f"accuracy drop on {task} when the layer is skipped"
                if informative
                else f"drop in log-probability of {task} answers when the layer is skipped, nats per token"
            ),
            notes=notes,
            details={"teacher": baseline, "skipped": without, "questions": self.num_examples},
        )


@SELECTORS.register("kv")
class KeyValueLookup(SyntheticTask):
    """Accuracy drop when a layer is skipped: look up a key in a dictionary."""

    num_pairs: int = Field(default=40, gt=4, le=80)
    """Key-value pairs of each question; `ar` and `ar_mh` have 24 at most."""

    @property
    def pairs(self) -> int:
        return self.num_pairs


@SELECTORS.register("ar")
class SumOfValues(KeyValueLookup):
    """Accuracy drop when a layer is skipped: add the values of three keys."""

    @property
    def pairs(self) -> int:
        return min(self.num_pairs, 24)


@SELECTORS.register("ar_mh")
class SumOfAliases(SumOfValues):
    """Accuracy drop when a layer is skipped: add the values of three keys, some defined by other keys."""


@SELECTORS.register("vt")
class VariableTracking(SyntheticTask):
    """Accuracy drop when a layer is skipped: list all variables with a value."""


@SELECTORS.register("cwe")
class CommonWords(SyntheticTask):
    """Accuracy drop when a layer is skipped: list the most frequent words."""


def _measure(context: "SelectionContext", question_set: "QuestionSet") -> dict[str, Any]:
    scores = question_set.evaluate(context.teacher)
    accuracy = scores.accuracy
    if question_set.questions[0].any_order:
        accuracy = _unordered_accuracy(context, question_set)
    return {"accuracy": accuracy, "mean_logprob": scores.mean_logprob}


def _unordered_accuracy(context: "SelectionContext", question_set: "QuestionSet") -> float:
    """Share of questions whose greedy answer has exactly the expected words, in any order."""
    from evalsuite.models.checkpoints.load import Checkpoint
    from evalsuite.models.inference import GenerateRequest, SamplingParams
    from evalsuite.models.inference.torch.engine import TorchEngine

    checkpoint = Checkpoint(
        context.info.label,
        str(context.recipe.teacher),
        context.teacher,
        context.tokenizer,
        context.teacher_id,
    )
    sampling = SamplingParams(max_new_tokens=2 * max(question_set.answer_tokens) + 2, stop=("\n",))
    requests = [GenerateRequest(prompt=prompt, sampling=sampling) for prompt in question_set.prompts]
    right = 0
    for index, response in TorchEngine(checkpoint).generate(requests):
        right += sorted(response.text.split()) == sorted(question_set.questions[index].answer.split())
    return right / len(requests)


@SELECTORS.register("act_mse")
class ActivationChange(Selector):
    """Mean squared change of the final hidden states when a layer is skipped."""

    source: ClassVar[str] = f"{KL_GUIDED}, section 4.2 (3), Table 3"
    requires: ClassVar[Requirement] = "teacher"

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        text = context.held_out
        baseline = text.final_hidden(context.teacher)
        scores = []
        for layer in range(context.layers):
            with skip_layer(context.teacher, layer):
                changed = text.final_hidden(context.teacher)
            squared = sum((a - b).square().sum().item() for a, b in zip(changed, baseline, strict=True))
            scores.append(squared / sum(states.numel() for states in baseline))
        return SelectionResult(
            layers=top_layers(scores, k),
            scores=tuple(scores),
            measure="mean squared change of the final hidden states when the layer is skipped",
            details={"held_out_tokens": text.num_tokens},
        )


@SELECTORS.register("lm_ppl")
class PerplexityChange(Selector):
    """Increase in perplexity on held-out text when a layer is skipped."""

    source: ClassVar[str] = f"{KL_GUIDED}, section 4.2 (3), Table 3"
    requires: ClassVar[Requirement] = "teacher"

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        text = context.held_out
        baseline = text.perplexity(context.teacher)
        scores = []
        for layer in range(context.layers):
            with skip_layer(context.teacher, layer):
                scores.append(text.perplexity(context.teacher) - baseline)
        return SelectionResult(
            layers=top_layers(scores, k),
            scores=tuple(scores),
            measure="increase in perplexity on held-out text when the layer is skipped",
            details={"perplexity": baseline, "held_out_tokens": text.num_tokens},
        )
