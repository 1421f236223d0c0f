"""Greedy search by accuracy on tasks: questions, scores, and the layer that carries a task."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from evalsuite.distill import selection
from evalsuite.distill.selection.hybrids import with_mixers_of
from evalsuite.distill.selection.questions import task_questions
from evalsuite.distill.selection.tasks import Question, QuestionSet, TaskSet
from evalsuite.foundation import ConfigError
from evalsuite.models import load_checkpoint
from evalsuite.models.inference import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from tests.distill.selection.conftest import small_selector


def questions_of(teacher, context) -> list[Question]:
    """Questions whose answers are the teacher's likeliest choices."""
    found = task_questions(context, "pocket_passage", num_examples=16, seed=1)
    every = [Question(each.prompt, choice) for each in found for choice in each.choices]
    logprobs = QuestionSet(every, context.tokenizer, context.device, 512).evaluate(teacher).logprobs
    best = [max(range(4), key=logprobs[4 * i : 4 * i + 4].__getitem__) for i in range(len(found))]
    return [replace(each, answer=each.choices[chosen]) for each, chosen in zip(found, best, strict=True)]


@pytest.mark.parametrize("carrier", [0, 2])
@pytest.mark.parametrize("search", ["task_add", "task_replace"])
def test_the_layer_that_carries_the_task_stays_softmax(context, monkeypatch, search, carrier):
    """The attention of all other layers has no output, in the teacher and in the student."""
    linear = with_mixers_of(context.teacher, context.all_linear, range(3))
    for model in (context.teacher, linear):
        for layer in set(range(3)) - {carrier}:
            model.model.layers[layer].self_attn.o_proj.weight.data.zero_()
    monkeypatch.setitem(context.__dict__, "all_linear", linear)
    questions = questions_of(context.teacher, context)
    monkeypatch.setattr(selection.questions, "task_questions", lambda *_, **__: questions)
    result = small_selector(search).select(context, 1)
    details = result.details
    lost = 1.0 - details["all_linear"]["score"]
    assert details["teacher"]["score"] == details["selected"]["score"] == 1.0
    assert lost > 0
    assert result.layers == (carrier,)
    assert result.scores == pytest.approx([lost if layer == carrier else 0.0 for layer in range(3)])
    assert carrier in small_selector(search).select(context, 2).layers


@pytest.fixture(scope="module")
def pocket():
    return load_checkpoint("pocket")


def drawn(context) -> list[Question]:
    tasks = ("pocket_facts", "pocket_two_hop", "pocket_arithmetic")
    return [each for task in tasks for each in task_questions(context, task, num_examples=8, seed=2)]


def tokens(pocket, text: str, **options) -> tuple[int, ...]:
    return tuple(pocket.tokenizer.encode(text, **options))


def likeliest(pocket, questions: list[Question]) -> list[bool]:
    requests = [
        ScoreRequest(
            tokens(pocket, each.prompt),
            tuple(tokens(pocket, f" {choice}", add_special_tokens=False) for choice in each.choices),
        )
        for each in questions
    ]
    found = dict(TorchEngine(pocket).score(requests))
    return [
        each.choices[max(range(len(each.choices)), key=found[i].logprobs.__getitem__)] == each.answer
        for i, each in enumerate(questions)
    ]


def written(pocket, questions: list[Question]) -> list[bool]:
    answers = [tokens(pocket, f" {each.answer}", add_special_tokens=False) for each in questions]
    requests = [
        GenerateRequest(
            prompt=tokens(pocket, each.prompt), sampling=SamplingParams(max_new_tokens=len(answer))
        )
        for each, answer in zip(questions, answers, strict=True)
    ]
    found = dict(TorchEngine(pocket).generate(requests))
    return [found[i].text.strip() == each.answer for i, each in enumerate(questions)]


@pytest.mark.parametrize(("respond", "with_choices"), [(likeliest, True), (written, False)])
def test_accuracy_is_that_of_the_engine(context, pocket, respond, with_choices):
    questions = drawn(context)
    task = TaskSet(questions, pocket.tokenizer, torch.device("cpu"), 512, with_choices=with_choices)
    right = respond(pocket, questions)
    assert task.evaluate(pocket.model)[0] == sum(right) / len(right)
    assert 0 < sum(right) < len(right)


def test_evaluated_documents_are_refused_unless_stated(context, tmp_path):
    file = tmp_path / "mine.jsonl"
    rows = [{"question": f"{n}?", "choices": ["a", "b"], "answer": "b"} for n in range(4)]
    file.write_text("\n".join(map(json.dumps, rows)))
    make = partial(small_selector, "task_add", tasks=[str(file), "pocket"])
    with pytest.raises(ConfigError, match="only evaluated documents"):
        make().select(context, 1)
    result = make(evaluated_documents=True).select(context, 1)
    assert "selected by evaluated documents" in result.notes[0]
    counts = [each["questions"] for each in result.details["settings"]["tasks"].values()]
    assert counts == [4, 6]
