"""Hybrids, skipped layers, held-out measurements and synthetic tasks."""

import copy
import hashlib
import re

import pytest
import torch

from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.selection import tasks
from evalsuite.distill.selection.hybrids import (
    copy_trainable,
    swap_layers,
    with_blocks_of,
    with_mixers_of,
)
from evalsuite.distill.selection.one_swap_training import AlignedCandidates
from evalsuite.distill.selection.selectors.skip_layer import without_layers
from evalsuite.distill.selection.tasks import TASKS, Question, QuestionSet, draw_questions
from evalsuite.distill.training.held_out import residual_streams
from evalsuite.foundation import ConfigError
from evalsuite.models import load_checkpoint


@pytest.fixture
def batch(context):
    return context.held_out.batches[0]


@torch.no_grad()
def test_hybrid_of_all_or_no_layers(context, batch):
    before = hidden_states(context.all_linear, batch)
    student = with_blocks_of(context.all_linear, context.teacher, range(3))
    # Norm and embeddings stay those of the all-linear student, which the last stage trained.
    assert student.config.mixers == ["softmax"] * 3
    blocks = [
        layer is other
        for layer, other in zip(student.model.layers, context.teacher.model.layers, strict=True)
    ]
    assert all(blocks)
    assert context.all_linear.config.mixers == ["gated_deltanet"] * 3
    torch.testing.assert_close(hidden_states(context.all_linear, batch), before, rtol=0, atol=0)
    student = with_blocks_of(context.all_linear, context.teacher, [])
    torch.testing.assert_close(hidden_states(student, batch), before, rtol=0, atol=0)


@torch.no_grad()
def test_hybrid_layers_come_from_the_right_student(context, batch):
    """Layers below the swapped one are unaffected."""
    all_linear, teacher = (
        residual_streams(context.all_linear, batch),
        residual_streams(context.teacher, batch),
    )
    student = with_blocks_of(context.all_linear, context.teacher, [1])
    added = residual_streams(student, batch)
    student = with_mixers_of(context.teacher, context.all_linear, [1])
    assert student.config.mixers == ["softmax", "gated_deltanet", "softmax"]
    removed = residual_streams(student, batch)
    torch.testing.assert_close(added[0], all_linear[0], rtol=0, atol=0)
    torch.testing.assert_close(removed[0], teacher[0], rtol=0, atol=0)
    assert not torch.allclose(added[1], all_linear[1])
    assert not torch.allclose(removed[1], teacher[1])
    assert context.teacher.config.mixers == ["softmax"] * 3


def test_a_hybrid_leaves_its_students_as_they_are(context):
    layers = list(context.all_linear.model.layers)
    hybrid = with_blocks_of(context.all_linear, context.teacher, [0, 2])
    assert hybrid.config.mixers == ["softmax", "gated_deltanet", "softmax"]
    assert all(a is b for a, b in zip(layers, context.all_linear.model.layers, strict=True))
    assert context.all_linear.config.mixers == ["gated_deltanet"] * 3


@torch.no_grad()
def test_skipped_layer_adds_nothing(context, batch):
    zeroed = copy.deepcopy(context.teacher)
    zeroed.model.layers[1].self_attn.o_proj.weight.zero_()
    before = hidden_states(context.teacher, batch)
    skipped = hidden_states(without_layers(context.teacher, [1]), batch)
    torch.testing.assert_close(skipped, hidden_states(zeroed, batch), rtol=0, atol=0)
    torch.testing.assert_close(hidden_states(context.teacher, batch), before, rtol=0, atol=0)


def test_copy_trainable_copies_only_trainable_parameters(context):
    student = with_blocks_of(context.all_linear, context.teacher, [0])
    own = copy_trainable(student, "mixer")
    assert own.config.mixers == ["softmax", "gated_deltanet", "gated_deltanet"]
    shared = {
        id(parameter) for parameter in (*context.all_linear.parameters(), *context.teacher.parameters())
    }
    for name, parameter in own.named_parameters():
        trains = ".self_attn." in name and ".layers.0." not in name
        assert parameter.requires_grad == trains, name
        assert (id(parameter) in shared) != trains, name
    assert not any(parameter.requires_grad for parameter in context.all_linear.parameters())


def test_distance_of_the_teacher_to_itself_is_zero(context):
    assert context.held_out.kl(context.teacher) == pytest.approx(0, abs=1e-6)
    assert context.held_out.hidden_distances({0: context.teacher})[0] == pytest.approx(0, abs=1e-6)
    assert context.held_out.kl(context.all_linear) > 1e-3
    assert context.held_out.hidden_distances({0: context.all_linear})[0] > 1e-3


@torch.no_grad()
def test_held_out_losses_are_per_token_means(context):
    """Against unchunked logits."""
    ce, kl, count = 0.0, 0.0, 0
    for batch in context.held_out.batches:
        theirs = context.teacher.lm_head(hidden_states(context.teacher, batch)).log_softmax(-1).flatten(0, 1)
        ours = (
            context.all_linear.lm_head(hidden_states(context.all_linear, batch)).log_softmax(-1).flatten(0, 1)
        )
        ce -= ours.gather(-1, batch.labels.flatten()[:, None]).sum().item()
        kl += (theirs.exp() * (theirs - ours)).sum().item()
        count += batch.labels.numel()
    assert context.held_out.losses(context.all_linear) == pytest.approx((ce / count, kl / count), rel=1e-4)


@torch.no_grad()
def test_the_teacher_runs_once_for_all_candidates(context):
    held_out, stage = context.held_out, context.training_recipe.stages[0]
    candidates = AlignedCandidates(context, stage, [0, 1, 2])
    alone = {}
    for direction, sign in (("add", -1.0), ("remove", 1.0)):
        for layer in range(3):
            student = swap_layers(direction, candidates.model, context.teacher, [layer])
            alone[direction, layer] = sign * held_out.hidden_distances({0: student})[0]
    calls = []
    # Hybrids have the teacher's blocks and hooks.
    hook = context.teacher.register_forward_pre_hook(
        lambda model, _: calls.append(1) if model is context.teacher else None
    )
    found = candidates.scores()
    hook.remove()
    assert {(name, layer): value for name, each in found.items() for layer, value in each.items()} == alone
    assert len(calls) == len(held_out.batches)


def test_hidden_distance_sums_layers_and_averages_tokens(context):
    """Eq. 4 written out; the last residual plus its MLP must give the decoder's output."""
    expected = 0.0
    for batch in context.held_out.batches:
        pairs = zip(
            residual_streams(context.all_linear, batch), residual_streams(context.teacher, batch), strict=True
        )
        expected += sum(((a - b).norm(dim=-1) ** 2).sum().item() for a, b in pairs)
    tokens = sum(batch.input_ids.numel() for batch in context.held_out.batches)
    assert context.held_out.hidden_distances({0: context.all_linear})[0] == pytest.approx(
        expected / tokens, rel=1e-4
    )
    batch = context.held_out.batches[0]
    last = residual_streams(context.teacher, batch)[-1]
    block = context.teacher.model.layers[-1]
    final = context.teacher.model.norm(last + block.mlp(block.post_attention_layernorm(last)))
    torch.testing.assert_close(final, hidden_states(context.teacher, batch))


@torch.no_grad()
def test_batched_answers_score_as_single_ones(context, monkeypatch):
    monkeypatch.setattr(tasks, "BATCH_TOKENS", 300)
    questions = [
        *draw_questions("kv", count=4, seed=0, pairs=5),
        *draw_questions("ar", count=3, seed=0, pairs=9),
    ]
    found = QuestionSet(questions, context.tokenizer, context.device, 512).evaluate(context.all_linear)
    tokens = 0
    for i, question in enumerate(questions):
        prompt = context.tokenizer.encode(question.prompt)
        answer = context.tokenizer.encode(f" {question.answer}")
        tokens += len(answer)
        logits = context.all_linear(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[range(len(answer)), answer].sum().item()
        assert found.logprobs[i] == pytest.approx(expected, rel=1e-4)
        assert found.exact[i] == (logits.argmax(-1).tolist() == answer)
    assert found.tokens == tokens
    assert found.mean_logprob == pytest.approx(sum(found.logprobs) / tokens)


@torch.no_grad()
def test_exact_matches_greedy_decoding():
    pocket = load_checkpoint("pocket")
    questions = draw_questions("kv", count=6, seed=3, pairs=12)
    wrong = [Question(question.prompt, "axe") for question in questions[:2]]
    question_set = QuestionSet([*questions, *wrong], pocket.tokenizer, torch.device("cpu"), 512)
    correct = []
    for question in (*questions, *wrong):
        prompt = pocket.tokenizer(question.prompt, return_tensors="pt").input_ids
        out = pocket.model.generate(prompt, max_new_tokens=1, do_sample=False)
        correct.append(pocket.tokenizer.decode(out[0, prompt.shape[1] :]) == f" {question.answer}")
    assert question_set.evaluate(pocket.model).exact == tuple(correct)
    assert any(correct)
    assert not all(correct)


def test_too_long_question_is_refused(context):
    with pytest.raises(ConfigError, match="more than the teacher's 20; lower --option num_pairs"):
        QuestionSet(draw_questions("kv", count=1, seed=0, pairs=40), context.tokenizer, context.device, 20)


def parsed(prompt: str) -> tuple[dict[str, str], list[str]]:
    """Return the pairs of the first line, and the other lines."""
    first, *lines = prompt.split("\n")
    return dict(pair.split() for pair in first.removeprefix("Pairs: ").rstrip(".").split(", ")), lines


@pytest.mark.parametrize("task", TASKS)
def test_questions_are_independent(task):
    assert (
        draw_questions(task, count=2, seed=5, pairs=8) == draw_questions(task, count=9, seed=5, pairs=8)[:2]
    )
    assert draw_questions(task, count=3, seed=5, pairs=8) != draw_questions(task, count=3, seed=6, pairs=8)


def test_key_value_answers_are_correct():
    for question in draw_questions("kv", count=20, seed=1, pairs=12):
        pairs, lines = parsed(question.prompt)
        assert len(pairs) == 12
        assert pairs[lines[-1].removeprefix("Query: ")] == question.answer
        for line in lines[:-1]:
            key, value = line.removeprefix("Query: ").split()
            assert pairs[key] == value


@pytest.mark.parametrize("task", ["ar", "ar_mh"])
def test_sum_answers_are_correct(task):
    for question in draw_questions(task, count=20, seed=1, pairs=12):
        pairs, lines = parsed(question.prompt)

        def value(key: str, steps: int = 0) -> int:
            assert steps <= 2
            found = pairs[key]  # noqa: B023
            return int(found) if found.isdigit() else value(found, steps + 1)

        assert all(found.isdigit() for found in pairs.values()) == (task == "ar"), question
        for line in [*lines[:-1], f"{lines[-1]} {question.answer}"]:
            operands, total = line.split(" = ")
            assert sum(map(value, operands.split(" + "))) == int(total)


def test_variable_answers_are_correct():
    for question in draw_questions("vt", count=20, seed=1, pairs=8):
        lines = f"{question.prompt} {question.answer}".split("\n")
        assert len(lines) == 2 * (tasks.NUM_SOLVED + 1)
        for text, line in zip(lines[::2], lines[1::2], strict=True):
            assigned = dict(each.split(" = ") for each in text.rstrip(".").split(". "))

            def value(name: str) -> str:
                found = assigned[name]  # noqa: B023
                return found if found.isdigit() else value(found)

            number, names = line.removeprefix("All that are ").split(": ")
            assert set(names.split()) == {name for name in assigned if value(name) == number}
            assert len(set(map(value, assigned))) == 3


def test_common_word_answers_are_correct():
    for question in draw_questions("cwe", count=10, seed=1, pairs=8):
        lists = question.prompt.split("Words: ")[1:]
        words = lists[-1].split(".\n")[0].split()
        counts = sorted({words.count(word) for word in words})
        assert counts == [1, 4]
        assert set(question.answer.split()) == {word for word in words if words.count(word) == 4}
        assert question.any_order


def test_variables_cannot_be_answered_by_elimination():
    """The names that no solved example lists are not the answer: assignments have to be followed."""
    for question in draw_questions("vt", count=20, seed=1, pairs=8):
        names = set(re.findall(r"(\w+) = ", question.prompt))
        solved = {
            name for line in re.findall(r"All that are \d+: (.+)", question.prompt) for name in line.split()
        }
        assert solved, question
        assert len(names - solved) > len(question.answer.split()), question


@pytest.mark.parametrize(
    ("task", "digest"),
    [
        ("kv", "c1f7904a838851c0"),
        ("ar", "f2e427c19fb89c4a"),
        ("ar_mh", "ceaa733d536ea3f1"),
        ("cwe", "7dee636ce1b11ac7"),
    ],
)
def test_questions_of_the_other_tasks_are_stable(task, digest):
    drawn = [
        (each.prompt, each.answer, each.any_order) for each in draw_questions(task, count=20, seed=1, pairs=8)
    ]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest()[:16] == digest
