"""Hybrids put together for a moment, layers bypassed, and what is measured on them."""

import copy

import pytest
import torch

from evalsuite.distill.end_to_end import decode
from evalsuite.distill.selection import answers as answers_module
from evalsuite.distill.selection.answers import AnswerSet
from evalsuite.distill.selection.bypass import bypassed
from evalsuite.distill.selection.held_out import residuals
from evalsuite.distill.selection.hybrids import replaced, restored, with_own_parameters
from evalsuite.distill.selection.questions import KINDS, Question, draw
from evalsuite.foundation import ConfigError
from evalsuite.models import load_checkpoint


@pytest.fixture
def batch(ground):
    return ground.held_out.batches[0]


@torch.no_grad()
def test_a_hybrid_of_all_layers_is_the_teacher_and_of_none_the_trunk(ground, batch):
    before = decode(ground.trunk, batch)
    with restored(ground.trunk, ground.full, range(3)) as student:
        # The norm and the embeddings are still the trunk's, which the last stage trained.
        assert student.config.mixers == ["softmax"] * 3
        blocks = [
            layer is other
            for layer, other in zip(student.model.layers, ground.full.model.layers, strict=True)
        ]
        assert all(blocks)
    torch.testing.assert_close(decode(ground.full, batch), decode(ground.teacher, batch))
    assert ground.trunk.config.mixers == ["gated_deltanet"] * 3
    torch.testing.assert_close(decode(ground.trunk, batch), before, rtol=0, atol=0)
    with restored(ground.trunk, ground.full, []) as student:
        torch.testing.assert_close(decode(student, batch), before, rtol=0, atol=0)


@torch.no_grad()
def test_a_hybrid_takes_each_layer_from_where_it_should(ground, batch):
    """The layers below the swapped one see what they always saw."""
    trunk, teacher = residuals(ground.trunk, batch), residuals(ground.full, batch)
    with restored(ground.trunk, ground.full, [1]) as student:
        added = residuals(student, batch)
    with replaced(ground.full, ground.trunk, [1]) as student:
        assert student.config.mixers == ["softmax", "gated_deltanet", "softmax"]
        removed = residuals(student, batch)
    torch.testing.assert_close(added[0], trunk[0], rtol=0, atol=0)
    torch.testing.assert_close(removed[0], teacher[0], rtol=0, atol=0)
    assert not torch.allclose(added[1], trunk[1])
    assert not torch.allclose(removed[1], teacher[1])
    assert ground.full.config.mixers == ["softmax"] * 3


def test_an_error_inside_leaves_the_students_as_they_were(ground):
    layers = list(ground.trunk.model.layers)
    with pytest.raises(ZeroDivisionError), restored(ground.trunk, ground.full, [0, 2]):
        1 / 0  # noqa: B018
    assert all(a is b for a, b in zip(layers, ground.trunk.model.layers, strict=True))
    assert ground.trunk.config.mixers == ["gated_deltanet"] * 3


@torch.no_grad()
def test_a_bypassed_layer_adds_nothing(ground, batch):
    silent = copy.deepcopy(ground.teacher)
    silent.model.layers[1].self_attn.o_proj.weight.zero_()
    before = decode(ground.teacher, batch)
    with bypassed(ground.teacher, 1):
        torch.testing.assert_close(decode(ground.teacher, batch), decode(silent, batch), rtol=0, atol=0)
    torch.testing.assert_close(decode(ground.teacher, batch), before, rtol=0, atol=0)


def test_own_parameters_are_those_that_train_and_no_others(ground):
    with restored(ground.trunk, ground.full, [0]) as student:
        own = with_own_parameters(student, "mixer")
    assert own.config.mixers == ["softmax", "gated_deltanet", "gated_deltanet"]
    shared = {id(parameter) for parameter in (*ground.trunk.parameters(), *ground.full.parameters())}
    for name, parameter in own.named_parameters():
        trains = ".self_attn." in name and ".layers.0." not in name
        assert parameter.requires_grad == trains, name
        assert (id(parameter) in shared) != trains, name
    assert not any(parameter.requires_grad for parameter in ground.trunk.parameters())


def test_the_teacher_is_at_no_distance_from_itself(ground):
    assert ground.held_out.kl(ground.full) == pytest.approx(0, abs=1e-6)
    assert ground.held_out.hidden_distance(ground.full) == pytest.approx(0, abs=1e-6)
    assert ground.held_out.kl(ground.trunk) > 1e-3
    assert ground.held_out.hidden_distance(ground.trunk) > 1e-3


@torch.no_grad()
def test_held_out_losses_are_per_token_means(ground):
    """Against whole logits, without chunks."""
    ce, kl, count = 0.0, 0.0, 0
    for batch in ground.held_out.batches:
        theirs = ground.teacher.lm_head(decode(ground.teacher, batch)).log_softmax(-1).flatten(0, 1)
        ours = ground.trunk.lm_head(decode(ground.trunk, batch)).log_softmax(-1).flatten(0, 1)
        ce -= ours.gather(-1, batch.labels.flatten()[:, None]).sum().item()
        kl += (theirs.exp() * (theirs - ours)).sum().item()
        count += batch.labels.numel()
    assert ground.held_out.losses(ground.trunk) == pytest.approx((ce / count, kl / count), rel=1e-4)


@torch.no_grad()
def test_hidden_distance_sums_layers_and_averages_tokens(ground):
    """Eq. 4 by hand; the last residual plus its MLP must also lead to the decoder's output."""
    expected = 0.0
    for batch in ground.held_out.batches:
        pairs = zip(residuals(ground.trunk, batch), residuals(ground.teacher, batch), strict=True)
        expected += sum(((a - b).norm(dim=-1) ** 2).sum().item() for a, b in pairs)
    tokens = sum(batch.inputs.numel() for batch in ground.held_out.batches)
    assert ground.held_out.hidden_distance(ground.trunk) == pytest.approx(expected / tokens, rel=1e-4)
    batch = ground.held_out.batches[0]
    last = residuals(ground.teacher, batch)[-1]
    block = ground.teacher.model.layers[-1]
    final = ground.teacher.model.norm(last + block.mlp(block.post_attention_layernorm(last)))
    torch.testing.assert_close(final, decode(ground.teacher, batch))


@torch.no_grad()
def test_answers_are_scored_as_if_each_were_alone(ground, monkeypatch):
    monkeypatch.setattr(answers_module, "BATCH_TOKENS", 300)
    questions = [*draw("kv", count=4, seed=0, pairs=5), *draw("ar", count=3, seed=0, pairs=9)]
    found = AnswerSet(questions, ground.tokenizer, ground.device, 512).ask(ground.trunk)
    tokens = 0
    for i, question in enumerate(questions):
        prompt = ground.tokenizer.encode(question.prompt)
        answer = ground.tokenizer.encode(f" {question.answer}")
        tokens += len(answer)
        logits = ground.trunk(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[range(len(answer)), answer].sum().item()
        assert found.logprobs[i] == pytest.approx(expected, rel=1e-4)
        assert found.exact[i] == (logits.argmax(-1).tolist() == answer)
    assert found.tokens == tokens
    assert found.nats == pytest.approx(sum(found.logprobs) / tokens)


@torch.no_grad()
def test_exact_answers_are_those_that_greedy_decoding_writes():
    pocket = load_checkpoint("pocket")
    questions = draw("kv", count=6, seed=3, pairs=12)
    wrong = [Question(question.prompt, "axe") for question in questions[:2]]
    asked = AnswerSet([*questions, *wrong], pocket.tokenizer, torch.device("cpu"), 512)
    written = []
    for question in (*questions, *wrong):
        prompt = pocket.tokenizer(question.prompt, return_tensors="pt").input_ids
        out = pocket.model.generate(prompt, max_new_tokens=1, do_sample=False)
        written.append(pocket.tokenizer.decode(out[0, prompt.shape[1] :]) == f" {question.answer}")
    assert asked.ask(pocket.model).exact == tuple(written)
    assert any(written)
    assert not all(written)


def test_a_question_that_does_not_fit_is_refused(ground):
    with pytest.raises(ConfigError, match="the teacher reads 20; lower --option pairs"):
        AnswerSet(draw("kv", count=1, seed=0, pairs=40), ground.tokenizer, ground.device, 20)


def parsed(prompt: str) -> tuple[dict[str, str], list[str]]:
    """Pairs of the first line, and the lines after it."""
    first, *lines = prompt.split("\n")
    return dict(pair.split() for pair in first.removeprefix("Pairs: ").rstrip(".").split(", ")), lines


@pytest.mark.parametrize("kind", KINDS)
def test_questions_depend_on_kind_seed_and_number_alone(kind):
    assert draw(kind, count=2, seed=5, pairs=8) == draw(kind, count=9, seed=5, pairs=8)[:2]
    assert draw(kind, count=3, seed=5, pairs=8) != draw(kind, count=3, seed=6, pairs=8)


def test_the_answers_of_pairs_are_right():
    for question in draw("kv", count=20, seed=1, pairs=12):
        pairs, lines = parsed(question.prompt)
        assert len(pairs) == 12
        assert pairs[lines[-1].removeprefix("Query: ")] == question.answer
        for line in lines[:-1]:
            key, value = line.removeprefix("Query: ").split()
            assert pairs[key] == value


@pytest.mark.parametrize("kind", ["ar", "ar_mh"])
def test_the_sums_are_right(kind):
    for question in draw(kind, count=20, seed=1, pairs=12):
        pairs, lines = parsed(question.prompt)

        def value(key: str, steps: int = 0) -> int:
            assert steps <= 2
            found = pairs[key]  # noqa: B023
            return int(found) if found.isdigit() else value(found, steps + 1)

        assert all(found.isdigit() for found in pairs.values()) == (kind == "ar"), question
        for line in [*lines[:-1], f"{lines[-1]} {question.answer}"]:
            asked, total = line.split(" = ")
            assert sum(map(value, asked.split(" + "))) == int(total)


def test_the_variables_are_all_that_come_to_the_value():
    for question in draw("vt", count=20, seed=1, pairs=8):
        first, *lines = question.prompt.split("\n")
        assigned = dict(each.split(" = ") for each in first.rstrip(".").split(". "))

        def value(name: str) -> str:
            found = assigned[name]  # noqa: B023
            return found if found.isdigit() else value(found)

        for line in [*lines[:-1], f"{lines[-1]} {question.answer}"]:
            number, names = line.removeprefix("All that are ").split(": ")
            assert set(names.split()) == {name for name in assigned if value(name) == number}


def test_the_common_words_are_the_most_frequent():
    for question in draw("cwe", count=10, seed=1, pairs=8):
        lists = question.prompt.split("Words: ")[1:]
        words = lists[-1].split(".\n")[0].split()
        counts = sorted({words.count(word) for word in words})
        assert counts == [1, 4]
        assert set(question.answer.split()) == {word for word in words if words.count(word) == 4}
        assert question.any_order
