"""Distances between models: closed forms, padding, groups, and the yardstick on the pocket teacher."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from evalsuite.foundation import ConfigError, DataError
from evalsuite.models import build_student, load_checkpoint
from evalsuite.models.diagnostics.distance import (
    MEASURES,
    DocumentDistance,
    Passage,
    batched,
    compare_logits,
    compare_models,
)
from evalsuite.models.diagnostics.quantization import quantized
from tests.parity.tiny_families import FAMILIES, make_model


def passage(doc_id: str, tokens: list[int], first: int = 1, groups: list[int] | None = None) -> Passage:
    return Passage(doc_id, np.array(tokens), first, np.array(groups or [0] * (len(tokens) - first)))


def random_passages(vocabulary: int, lengths: list[int]) -> list[Passage]:
    generator = np.random.default_rng(0)
    return [passage(f"d{length}", generator.integers(vocabulary, size=length).tolist()) for length in lengths]


def test_known_distributions() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.5, 0.25]])
    ((kl, same, teacher_nll, student_nll, *right),) = compare_logits(
        p.log() + 3, q.log() - 7, torch.tensor([1])
    ).tolist()
    assert right == [0, 1, 0]
    assert kl == pytest.approx(0.25 * math.log(2), rel=1e-5)
    assert same == 0
    assert teacher_nll == pytest.approx(math.log(4), rel=1e-5)
    assert student_nll == pytest.approx(math.log(2), rel=1e-5)


def test_the_right_tokens_of_the_teacher_that_are_retained() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    found = compare_logits(logits, logits[[0, 2, 2]], torch.tensor([0, 0, 0]))
    assert found[:, -3:].tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


def test_two_classes_shifted_by_a_nat() -> None:
    # KL(Bernoulli(1/2) ‖ Bernoulli(sigmoid(1))) = log cosh(1/2)
    ((kl, *_),) = compare_logits(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.tensor([0])).tolist()
    assert kl == pytest.approx(math.log(math.cosh(0.5)), rel=1e-5)


def test_random_logits_as_torch_computes_it() -> None:
    teacher, student = torch.randn(2, 7, 50, generator=torch.Generator().manual_seed(0)).unbind()
    found = compare_logits(teacher, student, torch.zeros(7, dtype=torch.int64))
    expected = kl_divergence(Categorical(logits=teacher.double()), Categorical(logits=student.double()))
    assert torch.allclose(found[:, 0].double(), expected, rtol=1e-5)
    assert torch.equal(found[:, 1].bool(), teacher.argmax(-1) == student.argmax(-1))


def test_equal_logits_are_exactly_zero_and_a_masked_token_is_no_nan() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    logits[:, 4] = -math.inf
    found = compare_logits(logits, logits, torch.zeros(3, dtype=torch.int64))
    assert found[:, :2].tolist() == [[0, 1]] * 3


def test_a_constant_does_not_matter_and_half_precision_is_read_in_float32() -> None:
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = compare_logits(logits, logits.float() + 5, torch.zeros(3, dtype=torch.int64))
    assert found[:, 0].abs().max() < 1e-5


def test_batches_hold_every_item_once_and_stay_below_the_budget() -> None:
    lengths = [3, 100, 64, 65, 1, 500, 64, 2]
    found = batched(lengths, 256)
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    assert found[0] == [5]
    for places in found[1:]:
        longest = max(lengths[place] for place in places)
        assert -(-longest // 64) * 64 * len(places) <= 256


@pytest.fixture(scope="module")
def teacher() -> Any:
    return load_checkpoint("pocket", dtype="float32").model


@pytest.fixture
def capped(make_teacher: Callable[..., Any]) -> Any:
    """A teacher with soft-capped scores and logits."""
    return make_teacher("gemma2")


@pytest.mark.parametrize("which", ["teacher", "capped"])
def test_sums_are_those_of_whole_logits(which: str, request: pytest.FixtureRequest) -> None:
    teacher = request.getfixturevalue(which)
    torch.manual_seed(0)
    student = build_student(teacher, "gated_deltanet").eval()
    texts = random_passages(teacher.config.vocab_size, [70, 5, 33, 2])
    found = {row.doc_id: row for row in compare_models(teacher, {"s": student}, texts, groups=1)}
    assert sorted(found) == sorted(text.doc_id for text in texts)
    for text in texts:
        tokens = torch.from_numpy(text.tokens)[None]
        with torch.inference_mode():
            p, q = (
                model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
                for model in (teacher, student)
            )
        expected = compare_logits(p, q, tokens[0, 1:]).sum(0).tolist()
        row = found[text.doc_id]
        assert row.tokens == len(text.tokens) - 1
        assert [getattr(row, name) for name in MEASURES[1:]] == pytest.approx(expected, rel=1e-3)


def test_only_compared_tokens_count_each_in_its_group(teacher: Any) -> None:
    (text,) = random_passages(teacher.config.vocab_size, [40])
    student = quantized(teacher, 3)

    def measured(first: int, groups: list[int], count: int) -> list[DocumentDistance]:
        part = passage("d", text.tokens.tolist(), first, groups)
        return list(compare_models(teacher, {"s": student}, [part], groups=count))

    (whole,) = measured(1, [0] * 39, 1)
    parts = measured(1, [0] * 9 + [2] * 30, 3)
    assert [(row.group, row.tokens) for row in parts] == [(0, 9), (2, 30)]
    assert sum(row.kl for row in parts) == pytest.approx(whole.kl, rel=1e-6)
    (tail,) = measured(10, [0] * 30, 1)
    assert tail.kl == pytest.approx(parts[1].kl, rel=1e-6)


def test_splitting_logits_and_batches_changes_nothing(teacher: Any) -> None:
    texts = random_passages(teacher.config.vocab_size, [70, 50, 33])
    student = {"s": quantized(teacher, 4)}
    one = {row.doc_id: row.kl for row in compare_models(teacher, student, texts, groups=1)}
    many = {
        row.doc_id: row.kl
        for row in compare_models(teacher, student, texts, groups=1, batch_tokens=1, logits=1)
    }
    assert many == pytest.approx(one, rel=1e-3, abs=1e-5)


def test_the_yardstick_starts_at_zero_and_grows(teacher: Any) -> None:
    texts = random_passages(teacher.config.vocab_size, [60, 60])
    students = {"teacher": teacher} | {str(bits): quantized(teacher, bits) for bits in (8, 4, 2)}
    total = dict.fromkeys(students, 0.0)
    for row in compare_models(teacher, students, texts, groups=1):
        total[row.student] += row.kl
        if row.student == "teacher":
            assert (row.agreement, row.teacher_nll) == (row.tokens, row.student_nll)
    assert total["teacher"] == 0
    assert list(total.values()) == sorted(total.values())


def test_other_vocabularies_and_foreign_tokens_are_refused(make_teacher: Callable[..., Any]) -> None:
    one, other = make_teacher(), make_teacher(vocab_size=62)
    with pytest.raises(ConfigError, match="vocabulary of 62"):
        next(compare_models(one, {"s": other}, [passage("d", [1, 2])], groups=1))
    with pytest.raises(DataError, match="d: a token id"):
        next(compare_models(one, {"s": one}, [passage("d", [1, 61])], groups=1))
    with pytest.raises(DataError, match="d: a group"):
        next(compare_models(one, {"s": one}, [passage("d", [1, 2], groups=[1])], groups=1))


def test_a_model_that_is_not_finite_is_refused(make_teacher: Callable[..., Any]) -> None:
    broken = make_teacher()
    with torch.no_grad():
        broken.model.norm.weight.fill_(math.nan)
    with pytest.raises(DataError, match=r"document d: .*'broken'.* not finite"):
        next(compare_models(make_teacher(), {"broken": broken}, [passage("d", [1, 2, 3])], groups=1))


@pytest.mark.parametrize(("first", "groups"), [(0, [0, 0, 0]), (3, []), (1, [0])])
def test_passages_that_do_not_fit_are_refused(first: int, groups: list[int]) -> None:
    with pytest.raises(DataError, match="document d"):
        Passage("d", np.array([1, 2, 3]), first, np.array(groups))


@pytest.mark.parametrize(("teacher", "student"), [("granite", "cohere"), ("gptj", "mamba2")])
def test_models_of_two_families(teacher: str, student: str) -> None:
    """Scales and biases of heads count, and what the models have in common is their vocabulary."""
    models = {name: make_model(FAMILIES[name]) for name in (teacher, student)}
    read = random_passages(96, [20, 33])
    with torch.no_grad():
        if teacher == "gptj":
            models[teacher].lm_head.bias.normal_(std=3.0)
        found = {
            each.doc_id: each
            for each in compare_models(models[teacher], {"s": models[student]}, read, groups=1)
        }
        for each in read:
            tokens = torch.from_numpy(each.tokens)
            logits = [model(tokens[None, :-1], use_cache=False).logits[0] for model in models.values()]
            kl, same, *_ = compare_logits(*logits, tokens[1:]).sum(0).tolist()
            assert found[each.doc_id].kl == pytest.approx(kl, rel=1e-4)
            assert found[each.doc_id].agreement == same


def test_a_model_that_cannot_be_taken_apart_is_refused() -> None:
    model = make_model(FAMILIES["xlstm"])
    with pytest.raises(
        ConfigError, match="xLSTMForCausalLM: distances of this architecture cannot be measured"
    ):
        list(compare_models(model, {"s": model}, random_passages(96, [9]), groups=1))
