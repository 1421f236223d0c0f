import math

import pytest
import torch
from scipy.special import log_softmax, logsumexp
from torch.autograd import gradcheck

from evalsuite.distill.chunked_loss import KdForm, chunked_loss, kd_per_token

N, D, V = 7, 5, 11

FORMS = [
    KdForm(),
    KdForm(temperature=2.5),
    KdForm(ce=0.5, kl=2.0, temperature=3.0),
    KdForm(ce=1.0, kl=0.0),
    KdForm(direction="reverse", temperature=1.5),
    KdForm(top_k=3, temperature=2.0),
    KdForm(top_k=3, rest="bucket"),
    KdForm(top_k=4, rest="bucket", direction="reverse", ce=0.3),
    KdForm(top_k=4, direction="reverse"),
]


def name(form: KdForm) -> str:
    return "-".join(
        f"{value}" for value in (form.ce, form.kl, form.temperature, form.direction, form.top_k, form.rest)
    )


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = torch.tensor([0.5, 0.0, 1.0, 0.25, 2.0, 1.0, 0.1], dtype=torch.float64)
    return {
        "hidden": draw(N, D),
        "weight": draw(V, D),
        "teacher_hidden": draw(N, D + 1),
        "teacher_weight": draw(V, D + 1),
        "labels": torch.randint(0, V, (N,), generator=generator),
        "token_weights": weights,
    }


def expected_kl(student, teacher, form):
    """KL per token as the formulas say, token by token, in numpy."""
    out = []
    for s, t in zip(student / form.temperature, teacher / form.temperature, strict=True):
        log_s, log_t = log_softmax(s), log_softmax(t)
        if form.top_k is not None:
            top = t.argsort()[::-1][: form.top_k]
            rest = t.argsort()[::-1][form.top_k :]
            if form.rest == "renormalise":
                log_s, log_t = log_softmax(s[top]), log_softmax(t[top])
            else:
                log_s = [*log_s[top], logsumexp(log_s[rest])]
                log_t = [*log_t[top], logsumexp(log_t[rest])]
        p, q = (log_t, log_s) if form.direction == "forward" else (log_s, log_t)
        out.append(sum(math.exp(p_i) * (p_i - q_i) for p_i, q_i in zip(p, q, strict=True)))
    return torch.tensor(out, dtype=torch.float64) * form.temperature**2


@pytest.mark.parametrize("form", FORMS, ids=name)
def test_chunked_loss_equals_the_formulas_in_float64(tensors, form):
    student = tensors["hidden"] @ tensors["weight"].T
    teacher = tensors["teacher_hidden"] @ tensors["teacher_weight"].T
    kl = (expected_kl(student.numpy(), teacher.numpy(), form) * tensors["token_weights"]).sum()
    rows = torch.from_numpy(log_softmax(student.numpy(), axis=-1))
    ce = -(rows[torch.arange(N), tensors["labels"]] * tensors["token_weights"]).sum()

    loss, ce_part, kl_part = chunked_loss(**tensors, form=form, chunk=3)

    assert loss.item() == pytest.approx((form.ce * ce + form.kl * kl).item(), rel=1e-12)
    if form.kl:
        assert kl_part.item() == pytest.approx(kl.item(), rel=1e-12)
    if form.ce:
        assert ce_part.item() == pytest.approx(ce.item(), rel=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=name)
def test_gradients_in_float64(tensors, form):
    tensors["hidden"].requires_grad_()
    tensors["weight"].requires_grad_()
    rest = {key: value for key, value in tensors.items() if key not in ("hidden", "weight")}

    def loss(hidden, weight):
        return 1.7 * chunked_loss(hidden, weight, **rest, form=form, chunk=3)[0]

    assert gradcheck(loss, (tensors["hidden"], tensors["weight"]))


@pytest.mark.parametrize("form", FORMS, ids=name)
@pytest.mark.parametrize("chunk", [1, 2, 7, 100])
def test_nothing_depends_on_the_chunk(tensors, form, chunk):
    tensors["hidden"].requires_grad_()
    tensors["weight"].requires_grad_()
    leaves = (tensors["hidden"], tensors["weight"])
    whole = chunked_loss(**tensors, form=form, chunk=N)
    pieces = chunked_loss(**tensors, form=form, chunk=chunk)
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        torch.autograd.grad(pieces[0], leaves), torch.autograd.grad(whole[0], leaves), rtol=1e-10, atol=1e-12
    )


def test_a_per_token_mean_does_not_change_with_the_shape_of_the_batch(tensors):
    """The defect of `batchmean`: [B, T, V] divided by B alone is T times too large."""
    tokens = {**tensors, "token_weights": torch.full((N,), 1 / N, dtype=torch.float64)}
    once = chunked_loss(**tokens, form=KdForm())[0]
    doubled = {
        key: value if "weight" in key and key != "token_weights" else torch.cat([value, value])
        for key, value in tokens.items()
    }
    doubled["token_weights"] = doubled["token_weights"] / 2
    torch.testing.assert_close(chunked_loss(**doubled, form=KdForm())[0], once)


def test_full_vocabulary_as_top_k_is_the_full_loss():
    student, teacher = torch.randn(2, 4, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    full = kd_per_token(student, teacher, KdForm())
    for rest in ("renormalise", "bucket"):
        torch.testing.assert_close(kd_per_token(student, teacher, KdForm(top_k=V, rest=rest)), full)
    # With all but one token kept, the bucket holds one token, and nothing is lost.
    torch.testing.assert_close(kd_per_token(student, teacher, KdForm(top_k=V - 1, rest="bucket")), full)


def test_a_student_equal_to_its_teacher_has_no_loss_and_no_gradient():
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(0))
    for form in FORMS:
        student = logits.clone().requires_grad_()
        kl = kd_per_token(student, logits, form).sum()
        assert abs(kl.item()) < 1e-5
        assert torch.autograd.grad(kl, student)[0].abs().max() < 1e-5


def test_softmax_is_taken_in_fp32_under_autocast():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 16, generator=generator)
    weight = torch.randn(300, 16, generator=generator, requires_grad=True)
    arguments = {
        "teacher_hidden": torch.randn(64, 16, generator=generator),
        "teacher_weight": torch.randn(300, 16, generator=generator),
        "token_weights": torch.full((64,), 1 / 64),
        "form": KdForm(),
    }
    exact = chunked_loss(hidden, weight, **arguments)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = chunked_loss(hidden, weight, **arguments, chunk=16)[0]
        loss.backward()
    assert loss.dtype == torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.01)


def test_a_frozen_head_gets_no_gradient(tensors):
    tensors["hidden"].requires_grad_()
    chunked_loss(**tensors, form=KdForm())[0].backward()
    assert tensors["hidden"].grad is not None
    assert tensors["weight"].grad is None
