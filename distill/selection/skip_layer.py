"""Selectors without training: effects of skipping a layer of the teacher, or restoring one (`smart`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.fixed_sets import smart_layers
from evalsuite.distill.selection.layer_sets import top_layers
from evalsuite.distill.selection.one_swap.candidates import hybrid_from_linear
from evalsuite.distill.selection.result import Cost, SelectionResult
from evalsuite.distill.selection.tasks import QuestionSet, draw_questions
from evalsuite.foundation import content_hash
from evalsuite.models.checkpoints.load import Checkpoint


@contextmanager
def skip_layer(model: Any, layer: int) -> Iterator[None]:
    """Replace the output of the mixer of `layer` by zeros: an identity residual connection (Table 3).

    The mixer still runs, so that caches are filled as usual.
    """

    def zero_output(module: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.zeros_like(output[0]), *output[1:])

    hook = model.model.layers[layer].self_attn.register_forward_hook(zero_output)
    try:
        yield
    finally:
        hook.remove()


def act_mse(context: SelectionContext, k: int) -> SelectionResult:
    """Rank layers by the mean squared change of the final hidden states when skipped (Table 3)."""
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


def lm_ppl(context: SelectionContext, k: int) -> SelectionResult:
    """Rank layers by the increase in perplexity on held-out text when skipped (Table 3)."""
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


MIN_TEACHER_ACCURACY = 0.1
"""Below this accuracy of the unmodified teacher, accuracy drops are uninformative."""


def synthetic_task(context: SelectionContext, k: int, *, task: str) -> SelectionResult:
    """Rank layers by the accuracy drop on a synthetic task when skipped (section 4.2 (2), Table 3).

    Accuracy is exact match of the greedy answer, as a set of words for unordered answers. Ties are broken by
    the drop in log-probability of the answers. For a teacher below 10 % accuracy, the log-probability is
    the score, which the result notes.
    """
    options = context.options
    pairs = min(options.num_pairs, 24) if task != "kv" else options.num_pairs
    questions = draw_questions(task, count=options.num_examples, seed=options.seed, pairs=pairs)
    question_set = QuestionSet(questions, context.tokenizer, context.device, context.max_length)
    drawn = content_hash([[each.prompt, each.answer] for each in questions])
    about = {"task": task, "examples": options.num_examples, "questions": drawn}
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
        details={"teacher": baseline, "skipped": without, "questions": options.num_examples},
    )


def _measure(context: SelectionContext, question_set: QuestionSet) -> dict[str, Any]:
    scores = question_set.evaluate(context.teacher)
    accuracy = scores.accuracy
    if question_set.questions[0].any_order:
        accuracy = _unordered_accuracy(context, question_set)
    return {"accuracy": accuracy, "mean_logprob": scores.mean_logprob}


def _unordered_accuracy(context: SelectionContext, question_set: QuestionSet) -> float:
    """Share of questions whose greedy answer has exactly the expected words, in any order."""
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


def smart(context: SelectionContext, k: int) -> SelectionResult:
    """Place layers near-uniformly by the reduction of KL(teacher ‖ student) when each is restored.

    The sensitivity is measured in the all-linear student, without further training; see `smart_layers` for
    terminal preservation and placement (section 4.2 (4)).
    """
    linear = context.held_out.kl(context.all_linear)
    scores = []
    for layer in range(context.layers):
        with hybrid_from_linear(context.all_linear, context.all_softmax, [layer]) as hybrid:
            scores.append(linear - context.held_out.kl(hybrid))
    return SelectionResult(
        layers=smart_layers(scores, k),
        scores=tuple(scores),
        measure="reduction of KL divergence by restoring this layer, nats per token, without training",
        cost=Cost(all_linear_tokens=context.all_linear_tokens),
        details={"all_linear_kl": linear},
    )
