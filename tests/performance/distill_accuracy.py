"""Accuracy of the optimized training step against fp32 torch, checked by `bench_distill` before timing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evalsuite.distill.recipe.config import LossConfig
from evalsuite.distill.types import MicroBatch
from evalsuite.models.ops.dispatch import KernelPolicy, kernel_policy
from tests.distill.fused_distillation import fused_linear_distillation
from tests.performance.distill_steps import Bench

BOUNDS = {"layer": 2e-2, "layer's weights": 5e-2, "loss": 1e-2}
"""Largest relative errors of bf16 kernels against fp32 torch: output and input gradient of a mixer, gradients
of its weights (those of gate biases are sums of 4,096 terms of either sign), and the loss kernel."""
STEP_BOUND = 1.25
"""Largest ratio of the error of a whole step to that of the same step in bf16 torch, without Triton and fla
kernels. Through all layers with random weights, bf16 alone has an error of about 20 %."""
NEGLIGIBLE = 1e-3
"""Error of a step that is accepted without comparison."""


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ ÷ ‖expected‖."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def check_accuracy(bench: Bench, mixers: Sequence[str]) -> dict[str, dict[str, float]]:
    """Relative errors of mixers, of the loss kernel, and of a whole KD step with the first mixer."""
    activations: dict[str, float] = {}
    weights: dict[str, float] = {}
    for mixer in mixers:
        layer = _layer(bench, mixer)
        activations |= {f"{mixer} {name}": layer.pop(name) for name in ("output", "d input")}
        weights |= {f"{mixer} {name}": error for name, error in layer.items()}
    return {"layer": activations, "layer's weights": weights, "loss": _loss(bench), **_step(bench, mixers[0])}


def failures(errors: dict[str, dict[str, float]]) -> list[str]:
    """Errors above their bounds, or NaN; empty if the optimized step may be timed."""
    found = [
        f"{group}, {name}: relative error {error:.2e}, bound {bound}"
        for group, bound in BOUNDS.items()
        for name, error in errors[group].items()
        if not error < bound
    ]
    for name, error in errors["step"].items():
        reference = errors["step in bf16 torch"][name]
        if not error < max(NEGLIGIBLE, STEP_BOUND * reference):
            found.append(f"step, {name}: relative error {error:.2e}, of bf16 torch {reference:.2e}")
    return found


def _layer(bench: Bench, mixer: str) -> dict[str, float]:
    """One mixer in bf16 with the default kernels against fp32 in torch."""
    stage = bench.stage("attention_output")
    results: list[dict[str, Tensor]] = []
    policies: tuple[tuple[torch.dtype, KernelPolicy], ...] = ((bench.dtype, "auto"), (torch.float32, "torch"))
    for dtype, policy in policies:
        with kernel_policy(policy):
            train_state = bench.student(mixer, stage, dtype)
            layer: Any = train_state.model.model.layers[0].self_attn
            generator = torch.Generator(bench.device).manual_seed(1)
            size = (2, bench.seq_len, bench.shape.config.hidden_size)
            x, weight = (torch.randn(size, generator=generator, device=bench.device) for _ in range(2))
            with torch.no_grad():
                # Initial weights, many of which are zero, would hide missing gradients.
                for name, parameter in sorted(layer.named_parameters()):
                    noise = torch.Generator(bench.device).manual_seed(len(name))
                    added = torch.randn(parameter.shape, generator=noise, device=bench.device) * 0.02
                    parameter.add_(added.to(dtype).to(parameter.dtype))
            x = x.to(dtype).requires_grad_()
            positions = torch.arange(bench.seq_len, device=bench.device)[None]
            # Teachers can have another rotary embedding for each type of layer.
            rotary = train_state.model.model._rotary(x, positions)[0]  # type: ignore[attr-defined]
            out = layer(x, position_embeddings=rotary)[0]
            (out.float() * weight).sum().backward()
            # Those of bf16 parameters have moved to their master weights.
            masters = train_state.optimizer_params
            gradients = {
                name: masters[f"model.layers.0.self_attn.{name}"].grad for name, _ in layer.named_parameters()
            }
            results.append({"output": out.detach(), "d input": x.grad, **gradients})  # type: ignore[dict-item]
    actual, expected = results
    return {name: relative_error(actual[name], expected[name]) for name in expected if expected[name].any()}


def _loss(bench: Bench) -> dict[str, float]:
    """The fused loss on logits as peaked as those of a language model."""
    vocab_size, hidden_size = bench.shape.config.vocab_size, bench.shape.config.hidden_size
    tokens = min(2048, bench.seq_len)
    generator = torch.Generator(bench.device).manual_seed(2)
    hidden, teacher = (
        torch.randn(tokens, hidden_size, generator=generator, device=bench.device) for _ in range(2)
    )
    head, teacher_head = (
        torch.randn(vocab_size, hidden_size, generator=generator, device=bench.device) * 3 * hidden_size**-0.5
        for _ in range(2)
    )
    labels = torch.randint(0, vocab_size, (tokens,), generator=generator, device=bench.device)
    weights = torch.full((tokens,), 1 / tokens, device=bench.device)
    results = []
    policies: tuple[tuple[torch.dtype, KernelPolicy], ...] = ((bench.dtype, "auto"), (torch.float32, "torch"))
    for dtype, policy in policies:
        with kernel_policy(policy):
            # Rounded first, so that both runs have the same inputs and differ in arithmetic only.
            inputs = [t.to(bench.dtype).to(dtype) for t in (hidden, head, teacher, teacher_head)]
            leaf, weight = inputs[0].requires_grad_(), inputs[1].requires_grad_()
            loss, ce, kl = fused_linear_distillation(
                leaf,
                weight,
                token_weights=weights,
                config=LossConfig(ce=0.5, kl=1.0),
                labels=labels,
                teacher_hidden=inputs[2],
                teacher_weight=inputs[3],
            )
            loss.backward()
            results.append({"ce": ce, "kl": kl, "d hidden": leaf.grad, "d head": weight.grad})
    actual, expected = results
    return {name: relative_error(actual[name], expected[name]) for name in expected}  # type: ignore[arg-type]


def _step(bench: Bench, mixer: str) -> dict[str, dict[str, float]]:
    """Loss and gradient of a whole step on two sequences: the trainer's, and in bf16 torch.

    Includes cross-entropy: with random weights teacher and student are so similar that the KL's gradient is a
    difference of nearly equal numbers.
    """
    stage = bench.stage("kd").model_copy(update={"loss": LossConfig(ce=1.0, kl=1.0)})
    input_ids, labels = bench.tokens(3, 2)

    def step(dtype: torch.dtype, policy: KernelPolicy) -> tuple[Tensor, Tensor]:
        with kernel_policy(policy):
            train_state = bench.student(mixer, stage, dtype)
            teacher = bench.teacher(dtype, fused=True)
            batch = MicroBatch(input_ids, labels)
            losses = stage.start(teacher, [train_state.model], bench.device)
            losses.backward(batch, labels.numel())
            loss = losses.reduce(bench.process_group.all_reduce)[0][0, 0]
            assert train_state.flat_grads is not None
            return loss, train_state.flat_grads.buffer.clone()

    expected = step(torch.float32, "torch")
    torch_step = step(bench.dtype, "torch")
    optimized = step(bench.dtype, "auto")

    def errors(of: tuple[Tensor, Tensor]) -> dict[str, float]:
        return {"loss": relative_error(of[0], expected[0]), "gradient": relative_error(of[1], expected[1])}

    return {"step": errors(optimized), "step in bf16 torch": errors(torch_step)}
