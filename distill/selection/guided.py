"""`kv`, `ar`, `ar_mh`, `vt`, `cwe`: how much worse the teacher answers when a layer is bypassed."""

from typing import Any

from evalsuite.distill.selection.answers import AnswerSet
from evalsuite.distill.selection.bypass import bypassed
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.outcome import Outcome
from evalsuite.distill.selection.questions import draw
from evalsuite.distill.selection.sets import top_layers
from evalsuite.models.checkpoints import Checkpoint

FLOOR = 0.1
"""Below this accuracy of the untouched teacher a drop says nothing."""


def guided(ground: Ground, k: int, *, kind: str) -> Outcome:
    """Layers by the drop in accuracy on a synthetic task when each is bypassed (section 4.2 (2), Table 3).

    Accuracy is exact match of the greedy answer, as a set of words where a question asks for a set. Equal
    drops are told apart by the drop in the answers' log-probability. A teacher that cannot do the task
    (below 10 %) is rated by log-probability alone, and the outcome says so.
    """
    options = ground.options
    pairs = min(options.pairs, 24) if kind != "kv" else options.pairs
    questions = draw(kind, count=options.examples, seed=options.seed, pairs=pairs)
    asked = AnswerSet(questions, ground.tokenizer, ground.device, ground.positions)
    about = {"task": kind, "examples": options.examples, "pairs": pairs, "seed": options.seed}
    journal = ground.journal(f"bypass-{kind}", about)
    found = {row["layer"]: row for row in journal.rows}
    for layer in (None, *range(ground.layers)):
        if layer in found:
            continue
        if layer is None:
            row = _measured(ground, asked)
        else:
            with bypassed(ground.teacher, layer):
                row = _measured(ground, asked)
        found[layer] = {"layer": layer, **row}
        journal.append(found[layer])
    whole, without = found[None], [found[layer] for layer in range(ground.layers)]
    accuracy = [whole["accuracy"] - row["accuracy"] for row in without]
    nats = [whole["nats"] - row["nats"] for row in without]
    able = whole["accuracy"] >= FLOOR
    notes: tuple[str, ...] = ()
    if not able:
        notes = (
            f"the teacher answers {whole['accuracy']:.1%} of {kind}: layers are rated by the answers' "
            "log-probability instead of accuracy",
        )
    scores = accuracy if able else nats
    return Outcome(
        layers=top_layers(scores, k, ties=nats),
        scores=tuple(scores),
        measure=(
            f"accuracy on {kind} lost when the layer is bypassed"
            if able
            else f"log-probability of {kind} answers lost when the layer is bypassed, nats per token"
        ),
        notes=notes,
        details={"teacher": whole, "bypassed": without, "questions": options.examples},
    )


def _measured(ground: Ground, asked: AnswerSet) -> dict[str, Any]:
    answered = asked.ask(ground.teacher)
    accuracy = answered.accuracy
    if asked.questions[0].any_order:
        accuracy = _written_as_sets(ground, asked)
    return {"accuracy": accuracy, "nats": answered.nats}


def _written_as_sets(ground: Ground, asked: AnswerSet) -> float:
    """Share of questions whose greedily written answer has exactly the right words, in any order."""
    from evalsuite.models.engine import GenerateRequest, Sampling
    from evalsuite.models.engine.torch_engine import TorchEngine

    checkpoint = Checkpoint(
        ground.info.label, str(ground.recipe.teacher), ground.teacher, ground.tokenizer, ground.teacher_id
    )
    sampling = Sampling(max_new_tokens=2 * max(asked.answer_tokens) + 2, stop=("\n",))
    requests = [GenerateRequest(prompt=prompt, sampling=sampling) for prompt in asked.prompts]
    right = 0
    for index, answer in TorchEngine(checkpoint).generate(requests):
        right += sorted(answer.text.split()) == sorted(asked.questions[index].answer.split())
    return right / len(requests)
