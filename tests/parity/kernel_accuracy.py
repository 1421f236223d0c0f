"""Accuracy of fla's kernels against the torch backend: outputs, final state and all gradients.

    python -m tests.parity.kernel_accuracy --out FOLDER

needs a CUDA device and prints one row of relative errors per transition, dtype and head width: the maximum
over lengths 63 to 2048, fixed and packed. For float32 set TRITON_F32_DEFAULT=ieee, or the kernels use TF32.

Exit codes: 0 all errors are within the bounds, 1 one is not or a kernel failed, 64 or more an error.
"""

import argparse
import gc
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import MissingDependencyError, append_jsonl
from evalsuite.foundation.parser import Parser
from evalsuite.models.ops import packages, tuning
from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs, compute_recurrence, fla_backend
from evalsuite.models.ops.recurrence.chunked import chunked
from evalsuite.models.ops.recurrence.inputs import DecayShape

if TYPE_CHECKING:
    import pytest

Op = Callable[[RecurrenceInputs], tuple[Tensor, Tensor]]

HEADS = 9
LENGTHS = (2048, 512, 64, 63)
"""Longest first: kernels autotune on the first call, and the long lengths matter most."""
SETTINGS = ((torch.bfloat16, 32), (torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 64))
MAX_ERROR = {torch.bfloat16: 1e-2, torch.float32: 1e-3}
"""Largest relative error."""


def exact_float32(monkeypatch: "pytest.MonkeyPatch") -> None:
    """Compute float32 products without TF32 in a test, in Triton's kernels and in torch."""
    from triton.runtime.jit import JITFunction

    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    # Triton reads the variable as it compiles: what earlier tests have launched would stay in TF32.
    # Objects that are frozen, as all are that exist when tests begin, are not listed.
    gc.unfreeze()
    for each in gc.get_objects():
        if issubclass(type(each), JITFunction):
            monkeypatch.setattr(each, "device_caches", defaultdict(each.create_binder))
    gc.freeze()


def inputs_of(read: Tensor | None = None, along: Tensor | None = None, **others: Any) -> RecurrenceInputs:
    """`RecurrenceInputs` of tensors by name, those of `Erase` among them."""
    return RecurrenceInputs(**others, erase=None if read is None else Erase(read, along))


def recurrence(q: Tensor, k: Tensor, v: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
    """`compute_recurrence` of these inputs; see `inputs_of`."""
    return compute_recurrence(inputs_of(q=q, k=k, v=v, **others))


RULES = ("additive", "delta", "generalized", "two keys")
"""Rules of the recurrence; the last removes along keys apart from those of the writes."""


def draw_case(
    decay: DecayShape, rule: str, *, dtype: torch.dtype, width: int, length: int, packed: bool, device: str
) -> tuple[dict[str, Tensor], dict[str, Any], tuple[Tensor, Tensor]]:
    """Draw inputs like a mixer's: unit queries and keys, decays near one, a non-zero initial state.

    Returns:
        The differentiated arguments of the recurrence, its other arguments, and the weights of outputs and
        final state in the loss.
    """
    make = torch.Generator(device).manual_seed(length)
    normal = partial(torch.randn, generator=make, device=device)
    rows = 1 if packed else 2
    cuts = [0, length // 5, length // 5 + 1, length - 2, length]
    sequences = len(cuts) - 1 if packed else rows
    shape = (rows, length, HEADS, width)
    q, k = (functional.normalize(normal(*shape), dim=-1).to(dtype) for _ in range(2))
    leaves = {"q": q, "k": k, "v": normal(*shape).to(dtype)}
    others: dict[str, Any] = {"scale": width**-0.5, "cu_seqlens": None}
    if packed:
        others["cu_seqlens"] = torch.tensor(cuts, device=device, dtype=torch.long)
    if decay == "head":
        others["log_decay"] = -torch.linspace(0.001, 0.1, HEADS, device=device)
    elif decay == "none":
        others["log_decay"] = None
    else:
        leaves["log_decay"] = functional.logsigmoid(normal(*shape[: 3 if decay == "scalar" else 4]) + 3)
    if rule == "delta":
        leaves["beta"] = torch.sigmoid(normal(*shape[:3]))
    if rule in ("generalized", "two keys"):
        leaves["read"] = (functional.normalize(normal(*shape), dim=-1) * torch.sigmoid(normal(*shape))).to(
            dtype
        )
    if rule == "two keys":
        leaves["along"] = leaves["read"] * torch.sigmoid(normal(*shape)).to(dtype)
    leaves["initial_state"] = normal(sequences, HEADS, width, width) * 0.1
    weights = normal(*shape), normal(sequences, HEADS, width, width) * 0.1
    return leaves, others, weights


def relative_errors(
    candidate: Op, leaves: dict[str, Tensor], others: dict[str, Any], weights: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Relative error (Frobenius norm) of `candidate` against the torch backend, by tensor name."""
    results = []
    for op in (candidate, chunked):
        inputs: dict[str, Any] = {n: x.detach().clone().requires_grad_() for n, x in leaves.items()}
        o, state = op(inputs_of(**inputs, **others))
        ((o.float() * weights[0]).sum() + (state * weights[1]).sum()).backward()
        found: dict[str, Tensor] = {"o": o.detach(), "state": state.detach()}
        for name, x in inputs.items():
            assert x.grad is not None
            found[f"d{name}"] = x.grad
        results.append(found)
    found, expected = results
    return {name: relative_error(found[name], x) for name, x in expected.items()}


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ ÷ ‖expected‖, in the Frobenius norm."""
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def max_errors(
    kernel: fla_backend.Kernel,
    decay: DecayShape,
    delta: bool,
    *,
    dtype: torch.dtype,
    width: int,
    lengths: Sequence[int] = LENGTHS,
) -> dict[str, float]:
    """Maximum relative error of `kernel` over lengths, fixed and packed, by tensor name.

    Raises:
        FloatingPointError: an output or a gradient is not finite.
    """
    if tuning.active() is None:
        tuning.install()
    worst: dict[str, float] = {}
    for length, packed in itertools.product(lengths, (False, True)):
        rule = "delta" if delta else "additive"
        case = draw_case(decay, rule, dtype=dtype, width=width, length=length, packed=packed, device="cuda")
        for name, error in relative_errors(partial(fla_backend.run, kernel), *case).items():
            if not math.isfinite(error):
                raise FloatingPointError(f"{name} is not finite at T = {length}, packed = {packed}")
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def kernels_for(decay: DecayShape, delta: bool, dtype: torch.dtype) -> list[fla_backend.Kernel]:
    """The kernel of a transition on this machine, and its fallback on Hopper with an older triton."""
    kernel = fla_backend.kernel_for(decay, delta=delta, dtype=dtype)
    fallback = fla_backend.PER_CHANNEL_FALLBACK.get(kernel)
    return [kernel] if fallback is None else [kernel, fallback]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row per kernel and append it to `kernel_accuracy.jsonl` under `--out`; 1 if one is off."""
    parser = Parser(
        prog="python -m tests.parity.kernel_accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--decay", action="append", choices=get_args(DecayShape), help="only this (repeatable)"
    )
    parser.add_argument("--rule", choices=["additive", "delta"], help="only this write rule")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="only this dtype")
    parser.add_argument("--width", type=int, help="only this head width")
    parser.add_argument("--length", type=int, action="append", help="only this length (repeatable)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if reason := packages.unavailable_reason():
        raise MissingDependencyError(f"kernel accuracy: {reason}")
    holds = True
    for decay, rule, (dtype, width) in itertools.product(
        options.decay or get_args(DecayShape), ("additive", "delta"), SETTINGS
    ):
        name = str(dtype).removeprefix("torch.")
        if options.rule not in (None, rule) or options.dtype not in (None, name):
            continue
        if options.width not in (None, width):
            continue
        for kernel in kernels_for(decay, rule == "delta", dtype):
            row: dict[str, Any] = {"decay": decay, "rule": rule, "dtype": name, "head_dim": width}
            row["kernel"] = kernel.name
            try:
                row |= max_errors(
                    kernel,
                    decay,
                    rule == "delta",
                    dtype=dtype,
                    width=width,
                    lengths=options.length or LENGTHS,
                )
            except Exception as error:  # a failing kernel is a result; the others still run
                row["failed"] = f"{type(error).__name__}: {error}"[:300]
            numbers = [value for value in row.values() if isinstance(value, float)]
            row["within_bound"] = bool(numbers) and "failed" not in row and max(numbers) <= MAX_ERROR[dtype]
            holds &= row["within_bound"]
            print(row, flush=True)
            if options.out is not None:
                append_jsonl(options.out / "kernel_accuracy.jsonl", [row])
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(guarded("kernel_accuracy", main, resumable=False))
