"""The fused linear distillation loss against the formulas, in value and gradient."""

import math

import pytest
import torch
from scipy.special import log_softmax, logsumexp
from torch.autograd import gradcheck

from evalsuite.distill.objectives.kl_and_cross_entropy import kd_per_token
from evalsuite.distill.objectives.top_tokens import bucket_loss_and_gradient, top_tokens
from evalsuite.distill.recipe.config import LossConfig
from tests.distill.fused_distillation import fused_linear_distillation

N, D, V = 7, 5, 11

CONFIGS = [
    LossConfig(),
    LossConfig(temperature=2.5),
    LossConfig(ce=0.5, kl=2.0, temperature=3.0),
    LossConfig(ce=1.0, kl=0.0),
    LossConfig(direction="reverse", temperature=1.5),
    LossConfig(top_k=3, temperature=2.0),
    LossConfig(top_k=3, tail="bucket"),
    LossConfig(top_k=3, tail="bucket", temperature=2.0),
    LossConfig(top_k=3, tail="bucket", ce=0.7, ce_tokens="teacher_right"),
    LossConfig(top_k=3, tail="bucket", temperature=2.0, ce=0.7),
    LossConfig(top_k=4, tail="bucket", direction="reverse", ce=0.3),
    LossConfig(top_k=4, direction="reverse"),
    LossConfig(direction="jsd", ce=0.5),
    LossConfig(direction="jsd", beta=0.1, temperature=2.0),
    LossConfig(direction="jsd", beta=0.9, top_k=4, tail="bucket"),
    LossConfig(ce=0.5, ce_tokens="teacher_right"),
    LossConfig(ce=0.5, ce_tokens="teacher_right", kl=0.0),
    LossConfig(ce=0.5, ce_tokens="teacher_right", direction="reverse"),
]


def name(config: LossConfig) -> str:
    form = (config.ce_tokens, config.direction, config.beta, config.top_k, config.tail)
    return "-".join(f"{value}" for value in (config.ce, config.kl, config.temperature, *form))


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = torch.tensor([0.5, 0.0, 1.0, 0.25, 2.0, 1.0, 0.1], dtype=torch.float64)
    tensors = {
        "hidden": draw(N, D),
        "weight": draw(V, D),
        "teacher_hidden": draw(N, D + 1),
        "teacher_weight": draw(V, D + 1),
        "labels": torch.randint(0, V, (N,), generator=generator),
        "token_weights": weights,
    }
    # The teacher is right at three tokens, one of them without weight.
    right = (tensors["teacher_hidden"] @ tensors["teacher_weight"].T).argmax(-1)
    tensors["labels"][[0, 1, 4]] = right[[0, 1, 4]]
    tensors["labels"][5] = (right[5] + 1) % V
    return tensors


def expected_kl(student, teacher, config):
    """Reference KL per token in numpy."""
    out = []
    for s, t in zip(student / config.temperature, teacher / config.temperature, strict=True):
        log_s, log_t = log_softmax(s), log_softmax(t)
        if config.top_k is not None:
            top = t.argsort()[::-1][: config.top_k]
            rest = t.argsort()[::-1][config.top_k :]
            if config.tail == "renormalize":
                log_s, log_t = log_softmax(s[top]), log_softmax(t[top])
            else:
                log_s = [*log_s[top], logsumexp(log_s[rest])]
                log_t = [*log_t[top], logsumexp(log_t[rest])]
        beta = config.jsd_beta
        m = [
            math.log(beta * math.exp(a) + (1 - beta) * math.exp(b)) for a, b in zip(log_t, log_s, strict=True)
        ]
        parts = {
            "forward": [(1, log_t, log_s)],
            "reverse": [(1, log_s, log_t)],
            "jsd": [(beta, log_t, m), (1 - beta, log_s, m)],
        }
        out.append(
            sum(
                weight * math.exp(p_i) * (p_i - q_i)
                for weight, p, q in parts[config.direction]
                for p_i, q_i in zip(p, q, strict=True)
            )
        )
    return torch.tensor(out, dtype=torch.float64) * config.temperature**2


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_the_loss_equals_the_formulas_in_float64(tensors, config):
    student = tensors["hidden"] @ tensors["weight"].T
    teacher = tensors["teacher_hidden"] @ tensors["teacher_weight"].T
    kl = (expected_kl(student.numpy(), teacher.numpy(), config) * tensors["token_weights"]).sum()
    rows = torch.from_numpy(log_softmax(student.numpy(), axis=-1))
    labels = tensors["labels"]
    counted = torch.ones(N) if config.ce_tokens == "all" else teacher.argmax(-1) == labels
    ce = -(rows[torch.arange(N), labels] * tensors["token_weights"] * counted).sum()

    loss, ce_part, kl_part = fused_linear_distillation(**tensors, config=config, chunk_size=3)

    assert loss.item() == pytest.approx((config.ce * ce + config.kl * kl).item(), rel=1e-12)
    if config.kl:
        assert kl_part.item() == pytest.approx(kl.item(), rel=1e-12)
    if config.ce:
        assert ce_part.item() == pytest.approx(ce.item(), rel=1e-12)


@pytest.mark.parametrize("config", [each for each in CONFIGS if each.top_k], ids=name)
def test_the_most_likely_tokens_are_all_that_is_read_of_the_teacher(tensors, config):
    top = top_tokens(
        tensors["teacher_hidden"] @ tensors["teacher_weight"].T, config.top_k, config.temperature
    )
    expected = fused_linear_distillation(**tensors, config=config)
    found = fused_linear_distillation(**tensors, config=config, chunk_size=3, top=top)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_limits_of_jsd():
    """Divided by β, or by 1 − β, it tends to the two KLs; for β = ½ it is symmetric and at most log 2."""
    student, teacher = torch.randn(2, 9, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def jsd(beta, first=student, second=teacher):
        return kd_per_token(first, second, LossConfig(direction="jsd", beta=beta))

    for small, beta, direction in ((1e-6, 1e-6, "forward"), (1e-6, 1 - 1e-6, "reverse")):
        expected = kd_per_token(student, teacher, LossConfig(direction=direction))
        torch.testing.assert_close(jsd(beta) / small, expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(jsd(0.5), jsd(0.5, teacher, student))
    assert (jsd(0.5) <= math.log(2)).all()


@pytest.mark.parametrize("distance", [80.0, 95.0, 300.0])
def test_a_student_without_a_tail_has_finite_gradients(distance):
    """In float32 all but its most likely tokens underflow; the teacher has most of its mass there."""
    logits = distance * (torch.arange(V) < 3).float()[None]
    top = top_tokens(logits / 1e4, 3)
    labels, weights = torch.zeros(1, dtype=torch.int64), torch.ones(1)
    found = bucket_loss_and_gradient(logits, top, labels, weights, LossConfig(top_k=3, tail="bucket"))
    assert all(each.isfinite().all() for each in found)
    assert found[1] > 50


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_bucket_bounds_the_full_kl(tensors, k):
    """See `top_tokens`: the KL from below and above, and the distance of the gradients."""
    student = (tensors["hidden"] @ tensors["weight"].T).requires_grad_()
    teacher = 3 * tensors["teacher_hidden"] @ tensors["teacher_weight"].T
    full = kd_per_token(student, teacher, LossConfig())
    bucket = kd_per_token(student, teacher, LossConfig(top_k=k, tail="bucket"))
    top = top_tokens(teacher, k)
    tail, least = top.log_probs[:, -1], top.log_probs[:, -2]
    rest = student.log_softmax(-1).scatter(-1, top.ids, math.inf)
    spread = rest.where(rest < 0, -math.inf).logsumexp(-1) - rest.min(-1).values
    assert (bucket <= full + 1e-12).all()
    assert (full - bucket <= tail.exp() * ((least - tail).clamp(max=0) + spread) + 1e-12).all()
    grads = [torch.autograd.grad(each.sum(), student, retain_graph=True)[0] for each in (full, bucket)]
    assert ((grads[0] - grads[1]).abs().sum(-1) <= 2 * tail.exp() + 1e-12).all()


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_gradients_in_float64(tensors, config):
    tensors["hidden"].requires_grad_()
    tensors["weight"].requires_grad_()
    rest = {key: value for key, value in tensors.items() if key not in ("hidden", "weight")}

    def loss(hidden, weight):
        return 1.7 * fused_linear_distillation(hidden, weight, **rest, config=config, chunk_size=3)[0]

    assert gradcheck(loss, (tensors["hidden"], tensors["weight"]))


@pytest.mark.parametrize("config", CONFIGS, ids=name)
@pytest.mark.parametrize("chunk_size", [1, 2, 7, 100])
def test_the_chunk_size_does_not_affect_the_result(tensors, config, chunk_size):
    tensors["hidden"].requires_grad_()
    tensors["weight"].requires_grad_()
    leaves = (tensors["hidden"], tensors["weight"])
    full = fused_linear_distillation(**tensors, config=config, chunk_size=N)
    chunked = fused_linear_distillation(**tensors, config=config, chunk_size=chunk_size)
    torch.testing.assert_close(chunked, full, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        torch.autograd.grad(chunked[0], leaves), torch.autograd.grad(full[0], leaves), rtol=1e-10, atol=1e-12
    )


def test_the_per_token_mean_is_independent_of_the_batch_shape(tensors):
    """With `batchmean`, [B, T, V] would be divided by B alone and be T times too large."""
    tokens = {**tensors, "token_weights": torch.full((N,), 1 / N, dtype=torch.float64)}
    once = fused_linear_distillation(**tokens, config=LossConfig())[0]
    doubled = {
        key: value if "weight" in key and key != "token_weights" else torch.cat([value, value])
        for key, value in tokens.items()
    }
    doubled["token_weights"] = doubled["token_weights"] / 2
    torch.testing.assert_close(fused_linear_distillation(**doubled, config=LossConfig())[0], once)


def test_full_vocabulary_as_top_k_is_the_full_loss():
    student, teacher = torch.randn(2, 4, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    full = kd_per_token(student, teacher, LossConfig())
    for tail in ("renormalize", "bucket"):
        torch.testing.assert_close(kd_per_token(student, teacher, LossConfig(top_k=V, tail=tail)), full)
    # With K = V − 1 the bucket holds a single token, so the loss is unchanged.
    torch.testing.assert_close(kd_per_token(student, teacher, LossConfig(top_k=V - 1, tail="bucket")), full)


def test_a_student_equal_to_its_teacher_has_zero_loss_and_gradient():
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(0))
    for config in CONFIGS:
        student = logits.clone().requires_grad_()
        kl = kd_per_token(student, logits, config).sum()
        assert abs(kl.item()) < 1e-5
        assert torch.autograd.grad(kl, student)[0].abs().max() < 1e-5


def test_softmax_runs_in_fp32_under_autocast():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 16, generator=generator)
    weight = torch.randn(300, 16, generator=generator, requires_grad=True)
    arguments = {
        "teacher_hidden": torch.randn(64, 16, generator=generator),
        "teacher_weight": torch.randn(300, 16, generator=generator),
        "token_weights": torch.full((64,), 1 / 64),
        "config": LossConfig(),
    }
    exact = fused_linear_distillation(hidden, weight, **arguments)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = fused_linear_distillation(hidden, weight, **arguments, chunk_size=16)[0]
        loss.backward()
    assert loss.dtype == torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.01)


def test_a_frozen_head_gets_no_gradient(tensors):
    tensors["hidden"].requires_grad_()
    fused_linear_distillation(**tensors, config=LossConfig())[0].backward()
    assert tensors["hidden"].grad is not None
    assert tensors["weight"].grad is None


@pytest.mark.parametrize("transform", [{"scale": 0.25}, {"soft_cap": 2.0}, {"scale": 0.25, "soft_cap": 0.5}])
def test_heads_that_scale_cap_or_add_are_those_of_the_model(tensors, transform):
    """Cohere and Granite scale logits, Gemma 2 caps them, Phi has a bias."""
    config = LossConfig(ce=0.5)
    bias = torch.linspace(-1, 1, V, dtype=torch.float64)
    leaves = {name: tensors[name].requires_grad_() for name in ("hidden", "weight")}
    loss, ce, kl = fused_linear_distillation(**tensors, config=config, chunk_size=3, bias=bias, **transform)
    found = torch.autograd.grad(loss, list(leaves.values()))

    def logits(kind: str) -> torch.Tensor:
        linear = tensors[f"{kind}hidden"] @ tensors[f"{kind}weight"].T + bias
        scaled, cap = linear * transform.get("scale", 1.0), transform.get("soft_cap")
        return scaled if cap is None else cap * torch.tanh(scaled / cap)

    student, weights = logits(""), tensors["token_weights"]
    wanted_kl = (kd_per_token(student, logits("teacher_"), config) * weights).sum()
    wanted_ce = (
        torch.nn.functional.cross_entropy(student, tensors["labels"], reduction="none") * weights
    ).sum()
    wanted = torch.autograd.grad(0.5 * wanted_ce + wanted_kl, list(leaves.values()))
    assert ce.item() == pytest.approx(wanted_ce.item())
    assert kl.item() == pytest.approx(wanted_kl.item())
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(mine, theirs)


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_logits_of_the_teacher_that_are_given_change_nothing(tensors, config):
    """They are the same for a second student: the loss overwrites none."""
    given = tensors["teacher_hidden"] @ tensors["teacher_weight"].T
    before = given.clone()
    found, wanted = (
        fused_linear_distillation(**tensors, config=config, chunk_size=3, teacher_logits=logits)
        for logits in (given, None)
    )
    assert torch.equal(given, before)
    assert torch.allclose(torch.stack(found), torch.stack(wanted))
