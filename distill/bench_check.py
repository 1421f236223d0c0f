"""Before a speed counts: the fast step computes what plain fp32 torch computes."""

from typing import Any

import torch
from torch import Tensor

from evalsuite.distill.batches import Batch
from evalsuite.distill.bench_steps import Bench
from evalsuite.distill.chunked_loss import KdForm, chunked_loss
from evalsuite.distill.end_to_end import end_to_end
from evalsuite.distill.recipe import Loss
from evalsuite.models.recurrence import set_backend

BOUNDS = {"layer": 2e-2, "layer's weights": 5e-2, "loss": 1e-2, "step": 6e-2}
"""Largest relative errors, bf16 kernels against fp32 torch: a mixer's output and input gradient, its weights'
gradients (those of gate biases are sums of 4,096 terms of either sign), the loss kernel, and loss and
gradient of a whole step through all layers."""


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ ÷ ‖wanted‖."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def check(bench: Bench, mixer: str) -> dict[str, dict[str, float]]:
    """Relative errors of one mixer, of the loss kernel and of a whole KD step at the bench's length."""
    layer = _layer(bench, mixer)
    whole = {name: layer.pop(name) for name in ("output", "d input")}
    return {"layer": whole, "layer's weights": layer, "loss": _loss(bench), "step": _step(bench, mixer)}


def failures(found: dict[str, dict[str, float]]) -> list[str]:
    """What is above its bound, or not a number; empty if the fast step may be timed."""
    return [
        f"{what}, {name}: off by {error:.2e}, more than {BOUNDS[what]}"
        for what, errors in found.items()
        for name, error in errors.items()
        if not error < BOUNDS[what]
    ]


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
        out = layer(x)[0]
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


def _step(bench: Bench, mixer: str) -> dict[str, float]:
    """Loss and gradient of a whole step on two rows.

    With cross-entropy beside the KL: random weights make teacher and student so alike that the KL's own
    gradient is a difference of nearly equal numbers, in which bf16 keeps no digits to compare.
    """
    stage = bench.stage("kd")
    stage = stage.model_copy(update={"loss": Loss(ce=1.0, kl=1.0)})
    inputs, labels = bench.tokens(3, 2)
    results = []
    for dtype, backend in ((bench.dtype, "auto"), (torch.float32, "torch")):
        set_backend(backend)  # type: ignore[arg-type]
        trainee = bench.student(mixer, stage, dtype)
        teacher = bench.teacher(dtype, fused=True)
        loss = end_to_end(teacher, [trainee.model], Batch(inputs, labels), stage, labels.numel())[0, 0]
        trainee.collect()
        assert trainee.gradients is not None
        results.append((loss, trainee.gradients.buffer.clone()))
    set_backend("auto")
    (loss, gradient), (exact_loss, exact_gradient) = results
    return {"loss": relative_error(loss, exact_loss), "gradient": relative_error(gradient, exact_gradient)}
