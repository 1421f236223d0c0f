"""Cross entropy and KL divergence over the vocabulary, fused with their gradient.

Plain torch reads and writes a chunk of logits about a dozen times; this kernel reads it twice (the second
time from cache) and writes it once, as its own gradient.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def _configs() -> list[triton.Config]:
    """Logits per step of a program (`BLOCK`) and warps."""
    return [
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (2048, 4096, 8192)
        for warps in (4, 8, 16)
    ]


def _fitting(configs: Sequence[Any], _: Mapping[str, Any], **arguments: Any) -> list[Any]:
    """The configurations without blocks wider than the vocabulary."""
    widest = max(2048, triton.next_power_of_2(arguments["vocabulary"]))
    return [config for config in configs if config.kwargs["BLOCK"] <= widest]


# Timing runs the kernel many times, and each run overwrites the logits.
@triton.autotune(
    _configs(),
    ["vocabulary", "HAS_CE", "HAS_KL"],
    prune_configs_by={"early_config_prune": _fitting},
    restore_value=["student"],
)
@triton.jit
def _row_loss_kernel(  # type: ignore[no-untyped-def]
    student, teacher, labels, weights, ce_out, kl_out,
    student_stride, teacher_stride, inverse_temperature, ce_scale, kl_scale,
    vocabulary: tl.constexpr, HAS_CE: tl.constexpr, HAS_KL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the losses of one row (token), and overwrite its logits by their gradient."""
    row = tl.program_id(0).to(tl.int64)
    student += row * student_stride
    teacher += row * teacher_stride
    column = tl.arange(0, BLOCK)

    # Online log-sum-exp of both rows: running sums are rescaled when the maximum grows.
    max_s = -float("inf")
    max_t = -float("inf")
    sum_s = 0.0
    sum_t = 0.0
    for start in range(0, vocabulary, BLOCK):
        mask = start + column < vocabulary
        s = tl.load(student + start + column, mask=mask, other=-float("inf")).to(tl.float32)
        s *= inverse_temperature
        larger = tl.maximum(max_s, tl.max(s, 0))
        sum_s = sum_s * tl.exp(max_s - larger) + tl.sum(tl.exp(s - larger), 0)
        max_s = larger
        if HAS_KL:
            t = tl.load(teacher + start + column, mask=mask, other=-float("inf")).to(tl.float32)
            t *= inverse_temperature
            larger = tl.maximum(max_t, tl.max(t, 0))
            sum_t = sum_t * tl.exp(max_t - larger) + tl.sum(tl.exp(t - larger), 0)
            max_t = larger
    log_sum_s = max_s + tl.log(sum_s)
    log_sum_t = 0.0
    if HAS_KL:
        log_sum_t = max_t + tl.log(sum_t)

    weight = tl.load(weights + row).to(tl.float32)
    label = -1
    if HAS_CE:
        label = tl.load(labels + row)
        label_logit = (
            tl.load(student + label, mask=label >= 0, other=0.0).to(tl.float32) * inverse_temperature
        )
        ce_scale = tl.where(label >= 0, ce_scale, 0.0)
        tl.store(ce_out + row, tl.where(label >= 0, (log_sum_s - label_logit) * weight, 0.0))
    # All lanes must have read the label's logit before any lane overwrites it.
    tl.debug_barrier()
    kl = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        mask = start + column < vocabulary
        s = tl.load(student + start + column, mask=mask, other=-float("inf")).to(tl.float32)
        log_s = s * inverse_temperature - log_sum_s
        p_s = tl.exp(log_s)
        gradient = tl.zeros([BLOCK], tl.float32)
        if HAS_CE:
            gradient += (p_s - (start + column == label).to(tl.float32)) * ce_scale
        if HAS_KL:
            t = tl.load(teacher + start + column, mask=mask, other=-float("inf")).to(tl.float32)
            log_t = t * inverse_temperature - log_sum_t
            p_t = tl.exp(log_t)
            kl += tl.where(mask, p_t * (log_t - log_s), 0.0)
            gradient += (p_s - p_t) * kl_scale
        tl.store(student + start + column, (gradient * weight).to(student.dtype.element_ty), mask=mask)
    if HAS_KL:
        tl.store(kl_out + row, tl.sum(kl, 0) * weight)


def row_losses(
    logits: Tensor,
    teacher_logits: Tensor | None,
    labels: Tensor | None,
    weights: Tensor,
    *,
    ce: float,
    kl: float,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    ce, kl = 0.0 if labels is None else ce, 0.0 if teacher_logits is None else kl
    rows, vocabulary = logits.shape
    sums = torch.zeros(2, rows, dtype=torch.float32, device=logits.device)
    teacher = logits if teacher_logits is None else teacher_logits
    _row_loss_kernel[(rows,)](
        logits, teacher, weights if labels is None else labels, weights, sums[0], sums[1],
        logits.stride(0), teacher.stride(0), 1 / temperature, ce,
        # d KL / d logits = (p_S − p_T) / τ, times the τ² that keeps it on the scale of CE.
        kl * temperature, vocabulary=vocabulary, HAS_CE=ce > 0, HAS_KL=kl > 0,
    )  # fmt: skip
    totals = sums.sum(1)
    return totals[0], totals[1] * temperature**2, logits
