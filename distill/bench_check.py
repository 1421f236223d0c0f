"""Before a speed counts: the fast step computes what plain fp32 torch computes."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from evalsuite.distill.batches import Batch
from evalsuite.distill.bench_steps import Bench
from evalsuite.distill.chunked_loss import KdForm, chunked_loss
from evalsuite.distill.end_to_end import end_to_end
from evalsuite.distill.recipe import Loss
from evalsuite.models.recurrence import set_backend

BOUNDS = {"layer": 2e-2, "layer's weights": 5e-2, "loss": 1e-2}
"""Largest relative errors, bf16 kernels against fp32 torch: a mixer's output and input gradient, its weights'
gradients (those of gate biases are sums of 4,096 terms of either sign), and the loss kernel."""
STEP_BOUND = 1.25
"""The error of a whole step's loss and gradient, over that of the same step in bf16 without our kernels and
fla's: through all layers of random weights bf16 alone is off by a fifth."""
SMALL = 1e-3
"""A step's error that needs no comparison."""


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ ÷ ‖wanted‖."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def check(bench: Bench, mixers: Sequence[str]) -> dict[str, dict[str, float]]:
    """Relative errors of some mixers, of the loss kernel, and of a whole KD step with the first mixer."""
    whole: dict[str, float] = {}
    weights: dict[str, float] = {}
    for mixer in mixers:
        layer = _layer(bench, mixer)
        whole |= {f"{mixer} {name}": layer.pop(name) for name in ("output", "d input")}
        weights |= {f"{mixer} {name}": error for name, error in layer.items()}
    return {"layer": whole, "layer's weights": weights, "loss": _loss(bench), **_step(bench, mixers[0])}


def failures(found: dict[str, dict[str, float]]) -> list[str]:
    """What is above its bound, or not a number; empty if the fast step may be timed."""
    wrong = [
        f"{what}, {name}: off by {error:.2e}, more than {bound}"
        for what, bound in BOUNDS.items()
        for name, error in found[what].items()
        if not error < bound
    ]
    for name, error in found["step"].items():
        plain = found["step in plain bf16"][name]
        if not error < max(SMALL, STEP_BOUND * plain):
            wrong.append(f"step, {name}: off by {error:.2e}, plain bf16 by {plain:.2e}")
    return wrong


def _layer(bench: Bench, mixer: str) -> dict[str, float]:
    """One mixer: bf16 on the fast backend against fp32 on the torch backend."""
    stage = bench.stage("attention_output")
    results: list[dict[str, Tensor]] = []
    for dtype, backend in ((bench.dtype, "auto"), (torch.float32, "torch")):
        set_backend(backend)  # type: ignore[arg-type]
        layer: Any = bench.student(mixer, stage, dtype).model.model.layers[0].self_attn
        make = torch.Generator(bench.device).manual_seed(1)
        size = (2, bench.length, bench.shape.hidden_size)
        x, weight = (torch.randn(size, generator=make, device=bench.device) for _ in range(2))
        with torch.no_grad():
            # Weights of a start (zeros, mostly) would hide a missing gradient.
            for name, parameter in sorted(layer.named_parameters()):
                noise = torch.Generator(bench.device).manual_seed(len(name))
                added = torch.randn(parameter.shape, generator=noise, device=bench.device) * 0.02
                parameter.add_(added.to(dtype).to(parameter.dtype))
        x = x.to(dtype).requires_grad_()
        positions = torch.arange(bench.length, device=bench.device)[None]
        out = layer(x, position_embeddings=bench.master.model.rotary_emb(x, positions))[0]
        (out.float() * weight).sum().backward()
        gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
        results.append({"output": out.detach(), "d input": x.grad, **gradients})  # type: ignore[dict-item]
    set_backend("auto")
    fast, exact = results
    return {name: relative_error(fast[name], exact[name]) for name in exact if exact[name] is not None}


def _loss(bench: Bench) -> dict[str, float]:
    """The chunked loss on logits as sharp as a language model's."""
    vocabulary, width = bench.shape.vocab_size, bench.shape.hidden_size
    rows = min(2048, bench.length)
    make = torch.Generator(bench.device).manual_seed(2)
    hidden, teacher = (torch.randn(rows, width, generator=make, device=bench.device) for _ in range(2))
    head, teacher_head = (
        torch.randn(vocabulary, width, generator=make, device=bench.device) * 3 * width**-0.5
        for _ in range(2)
    )
    labels = torch.randint(0, vocabulary, (rows,), generator=make, device=bench.device)
    weights = torch.full((rows,), 1 / rows, device=bench.device)
    found = []
    for dtype, backend in ((bench.dtype, "auto"), (torch.float32, "torch")):
        set_backend(backend)  # type: ignore[arg-type]
        # Rounded first, so that both see the same numbers and differ in arithmetic alone.
        given = [t.to(bench.dtype).to(dtype) for t in (hidden, head, teacher, teacher_head)]
        leaf, weight = given[0].requires_grad_(), given[1].requires_grad_()
        loss, ce, kl = chunked_loss(
            leaf, weight, token_weights=weights, form=KdForm(ce=0.5, kl=1.0), labels=labels,
            teacher_hidden=given[2], teacher_weight=given[3],
        )  # fmt: skip
        loss.backward()
        found.append({"ce": ce, "kl": kl, "d hidden": leaf.grad, "d head": weight.grad})
    set_backend("auto")
    fast, exact = found
    return {name: relative_error(fast[name], exact[name]) for name in exact}  # type: ignore[arg-type]


def _step(bench: Bench, mixer: str) -> dict[str, dict[str, float]]:
    """Loss and gradient of a whole step on two rows, as the trainer takes it and in plain bf16.

    With cross-entropy beside the KL: random weights make teacher and student so alike that the KL's own
    gradient is a difference of nearly equal numbers.
    """
    stage = bench.stage("kd").model_copy(update={"loss": Loss(ce=1.0, kl=1.0)})
    inputs, labels = bench.tokens(3, 2)

    def step(dtype: torch.dtype, backend: Literal["auto", "torch"]) -> tuple[Tensor, Tensor]:
        set_backend(backend)
        trainee = bench.student(mixer, stage, dtype)
        teacher = bench.teacher(dtype, fused=True)
        loss = end_to_end(teacher, [trainee.objective], Batch(inputs, labels), stage, labels.numel())[0, 0]
        trainee.collect()
        assert trainee.gradients is not None
        return loss, trainee.gradients.buffer.clone()

    exact = step(torch.float32, "torch")
    plain = step(bench.dtype, "torch")
    fast = step(bench.dtype, "auto")
    set_backend("auto")

    def errors(of: tuple[Tensor, Tensor]) -> dict[str, float]:
        return {"loss": relative_error(of[0], exact[0]), "gradient": relative_error(of[1], exact[1])}

    return {"step": errors(fast), "step in plain bf16": errors(plain)}
