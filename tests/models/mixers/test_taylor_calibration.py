"""Taylor-Calibrate: statistics, the values set from them, and the error of calibrated layers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student, load_checkpoint
from evalsuite.models.mixers.taylor_calibration import (
    TeacherAttention,
    attention_distance,
    attention_entropy,
    calibrate,
    constant_row,
    recurrence_output,
    value_scale,
    write_strength,
)

LENGTH = 96


@pytest.fixture(scope="module")
def teacher() -> Any:
    model = load_checkpoint("pocket", dtype="float32").model
    model.set_attn_implementation("eager")
    return model


def sequences(seed: int) -> Tensor:
    """Token ids [3, T]: random words, repeated so that the teacher's heads have something to look up."""
    words = torch.randint(5, 960, (3, LENGTH // 4), generator=torch.Generator().manual_seed(seed))
    return words.repeat(1, 4)


@torch.no_grad()
def attention(teacher: Any, ids: Tensor) -> Iterator[tuple[TeacherAttention, Tensor]]:
    """Attention and output [B, T, hidden] of every layer."""
    seen: list[Any] = []
    hooks = [
        layer.self_attn.register_forward_hook(
            lambda module, args, kwargs, output: seen.append((module, kwargs, output)), with_kwargs=True
        )
        for layer in teacher.model.layers
    ]
    teacher.model(ids)
    for hook in hooks:
        hook.remove()
    for module, kwargs, (output, weights) in seen:
        x = kwargs["hidden_states"]
        values = module.v_proj(x).unflatten(-1, (-1, module.head_dim))
        values = values.repeat_interleave(module.num_key_value_groups, 2)
        context = torch.einsum("bhts,bshd->bthd", weights, values)
        torch.testing.assert_close(module.o_proj(context.flatten(2)), output)
        yield TeacherAttention(x, kwargs["position_embeddings"], weights, context), output


def student(teacher: Any, **options: Any) -> Any:
    return build_student(teacher, "gated_deltanet", options={"gated_deltanet": options}).eval()


def test_statistics_of_known_attention() -> None:
    eye = torch.eye(8)
    previous = torch.cat([eye[:1], eye[:-1]])
    uniform = torch.ones(8, 8).tril() / torch.arange(1, 9)[:, None]
    weights = torch.stack([eye, previous, uniform])[None]
    # A token is ½ from itself, and the first token has no predecessor; a query's mean distance is t / 2.
    distances = torch.tensor([0.5, (7 + 0.5) / 8, sum(t / 2 + 0.5 / (t + 1) for t in range(8)) / 8])
    torch.testing.assert_close(attention_distance(weights), distances)
    entropies = torch.tensor([0.0, 0.0, sum(torch.tensor(t + 1.0).log() for t in range(8)) / 8])
    torch.testing.assert_close(attention_entropy(weights), entropies)
    torch.testing.assert_close(write_strength(entropies), torch.tensor([0.7, 0.7, 0.3]))


def test_rows_and_scales_are_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=generator) + torch.tensor([2.0, 0, 0, 1, 0, 0])
    logits = torch.tensor([-0.8, 0.4])
    rows = constant_row(x, logits)
    residual = x @ rows.T - logits
    torch.testing.assert_close(residual.T @ (x @ x.mean(0)), torch.zeros(2), rtol=0, atol=1e-3)
    assert (x @ rows.T).mean(0).tolist() == pytest.approx(logits.tolist(), rel=0.25)
    assert torch.equal(constant_row(torch.zeros(4, 6), logits), torch.zeros(2, 6))
    output, context = (torch.randn(2, 5, 4, 3, generator=generator) for _ in range(2))
    context += output
    scale = value_scale(output, context, 2)
    scaled = output * scale.repeat_interleave(2)[:, None]
    product = (scaled * (context - scaled)).sum((0, 1, 3)).view(2, 2).sum(1)
    torch.testing.assert_close(product, torch.zeros(2), rtol=0, atol=1e-4)
    assert value_scale(output, 99 * output, 4).tolist() == [10.0] * 4


@pytest.mark.parametrize("expand_kv", [True, False])
@torch.no_grad()
def test_calibrated_values_are_those_of_the_statistics(teacher: Any, expand_kv: bool) -> None:
    model = student(teacher, expand_kv=expand_kv)
    for layer, (record, _) in zip(model.model.layers, attention(teacher, sequences(1)), strict=True):
        mixer = layer.self_attn
        before = {name: value.clone() for name, value in mixer.state_dict().items()}
        calibrate(mixer, record)
        distance = attention_distance(record.weights)
        decay = (-softplus(mixer.a_proj.bias) * mixer.A_log.exp()).exp()
        torch.testing.assert_close(decay**distance, torch.full((4,), 0.5))
        beta = torch.sigmoid(mixer.b_proj(record.input)).mean((0, 1))
        torch.testing.assert_close(beta, write_strength(attention_entropy(record.weights)), rtol=0, atol=0.1)
        _, output = recurrence_output(mixer, record)
        heads = value_scale(output, record.context, mixer.num_kv_heads)
        torch.testing.assert_close(heads, torch.ones(4 if expand_kv else 2))
        changed = {name for name, value in mixer.state_dict().items() if not torch.equal(value, before[name])}
        assert changed == {"a_proj.bias", "b_proj.weight", "v_proj.weight"}


@pytest.mark.parametrize(
    "options",
    [{}, {"rotary": True, "activation": "none"}, {"expand_kv": False}],
    ids=str,
)
@torch.no_grad()
def test_calibrated_layers_are_nearer_to_the_teacher_on_other_sequences(
    teacher: Any, options: dict[str, Any]
) -> None:
    default, calibrated = student(teacher, **options), student(teacher, **options)
    for layer, (record, _) in zip(calibrated.model.layers, attention(teacher, sequences(1)), strict=True):
        calibrate(layer.self_attn, record)
    for number, (record, wanted) in enumerate(attention(teacher, sequences(2))):
        before, after = (
            (model.model.layers[number].self_attn(record.input, record.position_embeddings)[0] - wanted)
            .square()
            .sum()
            / wanted.square().sum()
            for model in (default, calibrated)
        )
        assert after < 0.98 * before, number


@torch.no_grad()
def test_a_gate_without_bias_becomes_a_multiple_of_the_values(teacher: Any) -> None:
    mixer = student(teacher, preset="native", expand_kv=False).model.layers[0].self_attn
    record, _ = next(attention(teacher, sequences(1)))
    calibrate(mixer, record)
    values = mixer.v_proj.weight.view(2, 32, -1).repeat_interleave(2, 0).flatten(0, 1)
    factors = mixer.g_proj.weight / values
    torch.testing.assert_close(factors, factors[:1, :1].expand_as(factors))
    gates = torch.nn.functional.silu(factors[0, 0].reciprocal() * mixer.g_proj(record.input))
    rms = 0.01 * record.context.square().mean(-1).sqrt().mean() / gates.square().mean().sqrt()
    torch.testing.assert_close(factors[0, 0], rms, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kda", {}, "layer 0: calibration taylor fits gated_deltanet, not kda"),
        ("gated_deltanet", {"expand_v": 2.0}, "the teacher's 4 heads of 32 values, not 4 of 64; leave out"),
        ("gated_deltanet", {"window": 8}, "no statistics for window = 8; set window: 0"),
        (
            "gated_deltanet",
            {"output_gate": "sigmoid", "gate_bias": False},
            "must be output_gate: silu of full rank .* not sigmoid of rank 0; or set gate_bias: true",
        ),
        ("gated_deltanet", {"gate_rank": 4, "gate_bias": False}, "not silu of rank 4"),
        ("gated_deltanet", {"rotary": True, "rotary_base": 500.0}, "not rotary_base = 500.0; set it to 0"),
    ],
)
def test_what_has_no_statistics_is_refused(
    teacher: Any, name: str, options: dict[str, Any], message: str
) -> None:
    model: Any = build_student(teacher, name, options={name: options}, init="random")
    record, _ = next(attention(teacher, sequences(1)))
    with pytest.raises(ConfigError, match=message):
        calibrate(model.model.layers[0].self_attn, record)
