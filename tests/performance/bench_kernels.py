"""Our Triton kernels against fla's, Liger's and torch.compile, forward and backward in bfloat16 on CUDA.

    python -m tests.performance.bench_kernels --out DIR

Every row is one operation at one width: milliseconds of forward and backward for 16,384 tokens (4,096 for
the loss), and the largest relative error of outputs and gradients against float64. Packages that are not
installed are left out. torch.compile needs the triton of torch's own release; `--peer` measures one
implementation only.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation.parser import Parser
from evalsuite.models.ops import gates, hidden_distance
from evalsuite.models.ops import glu as gating
from evalsuite.models.ops import rms_norm as norms
from evalsuite.models.ops import rotary as rotations
from evalsuite.models.ops import short_conv as convolutions
from evalsuite.models.ops.numerics import upcast_fp32
from tests.performance.bench_mixers import Row, Tables

VOCABULARY = {576: 49152, 2048: 151936, 4096: 151936}
"""Width → vocabulary of the models that have it."""
TOKENS = 16384
PEERS = ("ours", "fla", "liger", "compile", "torch")
Operation = Callable[..., Sequence[Tensor]]
Maker = Callable[[str], Operation | None]


def rms_norm(peer: str) -> Operation | None:
    """RMSNorm of a sum; x, weight, residual → norm, sum."""
    if peer == "ours":
        from evalsuite.models.ops.rms_norm.training import rms_norm as ours

        return lambda x, w, r: ours(x, w, 1e-5, r)
    if peer == "fla":
        from fla.modules.norm.layernorm import rms_norm as fla_rms_norm

        return lambda x, w, r: fla_rms_norm(x, w, None, r, 1e-5, True)
    if peer == "liger":
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Liger

        return lambda x, w, r: Liger.apply(x, r, w, 1e-5, 0.0, "llama", False)
    return lambda x, w, r: norms.rms_norm.reference(x, w, 1e-5, r)


def rotary(peer: str) -> Operation | None:
    """Rotary embedding of heads of 64 or 128; x [8, T, H, D], cos, sin."""
    if peer == "ours":
        from evalsuite.models.ops.rotary.training import rotary as ours

        return lambda x, cos, sin: [ours(x, cos, sin)]
    if peer == "fla":
        from fla.modules.rotary import rotary_embedding

        def fla_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
            half = x.shape[-1] // 2
            return [rotary_embedding(x, cos[0, :, :half], sin[0, :, :half])]

        return fla_rotary
    if peer == "liger":
        return None  # rotates q and k together, in place
    return lambda x, cos, sin: [rotations.rotary.reference(x, cos, sin)]


def squared_distance(peer: str) -> Operation | None:
    """Squared distance of student and teacher; x, teacher."""
    if peer == "ours":
        from evalsuite.models.ops.hidden_distance.training import squared_distance as ours

        return lambda x, teacher: [ours(x, teacher)]
    if peer in ("fla", "liger"):
        return None
    return lambda x, teacher: [hidden_distance.squared_distance.reference(x, teacher)]


def gla_gate(peer: str) -> Operation | None:
    """Log decay and scaled keys of GLA; logits, k."""
    if peer == "ours":
        from evalsuite.models.ops.gates.training import gla_gate_and_scale as ours

        return lambda logits, k: ours(logits, k, 16.0)
    if peer in ("fla", "liger"):
        return None
    return lambda logits, k: gates.gla_gate_and_scale.reference(logits, k, 16.0)


def short_conv(peer: str) -> Operation | None:
    """Short convolution with SiLU; x [8, T, C], weight [C, 4]."""
    if peer == "ours":
        from evalsuite.models.ops.short_conv.training import short_convolutions as ours

        return lambda x, w: ours([x], [w], 1)[0]
    if peer == "fla":
        from fla.modules.causal_conv1d import causal_conv1d

        return lambda x, w: [causal_conv1d(x, w, activation="silu")[0]]
    if peer == "liger":
        return None
    return lambda x, w: convolutions.short_convolutions.reference([x], [w], 1)[0]


def swiglu(peer: str) -> Operation | None:
    """silu(gate) · x; gate, x."""
    if peer == "ours":
        from evalsuite.models.ops.glu.training import glu as ours

        return lambda gate, x: [ours(gate, x)]
    if peer == "fla":
        from fla.modules.activations import swiglu as fla_swiglu

        return lambda gate, x: [fla_swiglu(gate, x)]
    if peer == "liger":
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        return lambda gate, x: [LigerSiLUMulFunction.apply(gate, x)]
    return lambda gate, x: [gating.glu.reference(gate, x)]


def kd_loss(peer: str) -> Operation | None:
    """Heads and KL of knowledge distillation; student states, head, teacher states, head → mean KL."""
    if peer == "ours":
        from evalsuite.distill.recipe.config import LossConfig
        from tests.distill.fused_distillation import fused_linear_distillation

        def ours(x: Tensor, head: Tensor, states: Tensor, teacher_head: Tensor) -> list[Tensor]:
            weights = torch.full((len(x),), 1 / len(x), device=x.device)
            loss = fused_linear_distillation(
                x,
                head,
                token_weights=weights,
                config=LossConfig(),
                teacher_hidden=states,
                teacher_weight=teacher_head,
            )
            return [loss[0]]

        return ours
    if peer == "liger":
        from liger_kernel.ops.fused_linear_jsd import LigerFusedLinearJSDFunction as Liger

        return lambda x, head, states, teacher_head: [Liger.apply(x, head, states, teacher_head, None, 0.0)]
    if peer == "fla":
        from fla.modules.fused_kl_div import fused_kl_div_loss

        return lambda x, head, states, teacher_head: [fused_kl_div_loss(x, states, head, teacher_head)]

    def plain(x: Tensor, head: Tensor, states: Tensor, teacher_head: Tensor) -> list[Tensor]:
        exact = upcast_fp32(x @ head.T).log_softmax(-1)
        target = upcast_fp32(states @ teacher_head.T).log_softmax(-1)
        return [kl_div(exact, target, log_target=True, reduction="batchmean")]

    return plain


def cases(width: int, device: str, tokens: int, vocabulary: int) -> Iterator[tuple[str, Maker, list[Tensor]]]:
    """Operations with their inputs in bfloat16; floating inputs with gradients come first."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    rows, head_dim = 8, 64 if width == 576 else 128
    length = tokens // rows
    flat, heads = (rows, length, width), (rows, length, width // head_dim, head_dim)
    angles = torch.rand(1, length, head_dim // 2, device=device) * 6
    cos, sin = (torch.cat([part, part], -1).bfloat16() for part in (angles.cos(), angles.sin()))
    yield "rms_norm", rms_norm, [draw(*flat), draw(width), draw(*flat)]
    yield "rotary", rotary, [draw(*heads), cos, sin]
    yield "squared_distance", squared_distance, [draw(*flat), draw(*flat)]
    yield "gla_gate", gla_gate, [draw(*heads), draw(*heads)]
    yield "short_conv", short_conv, [draw(*flat), draw(width, 4)]
    yield "swiglu", swiglu, [draw(*flat), draw(*flat)]
    heads_of_models = [draw(vocabulary, width) * width**-0.5 for _ in range(2)]
    # A quarter of the tokens: the reference holds all logits in float64.
    states, targets = (draw(tokens // 4, width) for _ in range(2))
    yield "kd_loss", kd_loss, [states, heads_of_models[0], targets, heads_of_models[1]]


GRADIENTS = {
    "rms_norm": 3,
    "rotary": 1,
    "squared_distance": 1,
    "gla_gate": 2,
    "short_conv": 2,
    "swiglu": 2,
    "kd_loss": 2,
}
"""Number of first inputs that get a gradient."""


def results(name: str, operation: Operation, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, and gradients of a fixed weighted sum of them."""
    leaves = [x.detach().clone().requires_grad_(n < GRADIENTS[name]) for n, x in enumerate(inputs)]
    outputs = list(operation(*leaves))
    weights = [torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape) for out in outputs]
    sum((out.double() * weight).sum() for out, weight in zip(outputs, weights, strict=True)).backward()
    return [*(out.detach() for out in outputs), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def worst_error(name: str, operation: Operation, exact: Operation, inputs: Sequence[Tensor]) -> float:
    """Largest relative error of outputs and gradients against the reference in float64."""
    found = results(name, operation, inputs)
    wanted = results(name, exact, [x.double() for x in inputs])
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))


def milliseconds(name: str, operation: Operation, inputs: Sequence[Tensor]) -> float:
    """Median time of forward and backward."""
    from triton.testing import do_bench

    leaves = [x.detach().clone().requires_grad_(n < GRADIENTS[name]) for n, x in enumerate(inputs)]
    gradients = [torch.randn_like(out) for out in operation(*leaves)]

    def step() -> None:
        torch.autograd.backward(list(operation(*leaves)), gradients)
        for leaf in leaves:
            leaf.grad = None

    return float(do_bench(step, warmup=20, rep=60, return_mode="median"))


def installed(peer: str) -> bool:
    """Whether the package of a peer can be imported."""
    package = {"fla": "fla", "liger": "liger_kernel"}.get(peer)
    return package is None or importlib.util.find_spec(package) is not None


def bench(out: Path | None, peers: Sequence[str], widths: Sequence[int]) -> dict[str, list[Row]]:
    """Measure, print, and write `kernels.csv` and `kernels.md` under `out`."""
    if "ours" in peers:
        from evalsuite.models.ops import tuning

        tuning.install()
    tables = Tables(out)
    for width in widths:
        torch.manual_seed(0)
        for name, make, inputs in cases(width, "cuda", TOKENS, VOCABULARY[width]):
            row = {"kernel": name, "width": str(width)}
            for peer in peers:
                operation = make(peer) if installed(peer) else None
                if operation is None:
                    continue
                if peer == "compile":
                    operation = torch.compile(operation, dynamic=False)
                exact = make("torch")
                assert exact is not None
                row[f"{peer}_error"] = f"{worst_error(name, operation, exact, inputs):.1e}"
                row[f"{peer}_ms"] = f"{milliseconds(name, operation, inputs):.3f}"
            tables.add("kernels", row)
    return tables.rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and measure."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", choices=PEERS, help="only this one (repeatable)")
    parser.add_argument(
        "--width", action="append", type=int, choices=VOCABULARY, help="only this one (repeatable)"
    )
    parser.add_argument("--out", type=Path, help="folder for the table (CSV and Markdown)")
    options = parser.parse_args(arguments)
    bench(options.out, options.peer or PEERS, options.width or list(VOCABULARY))
    return 0


if __name__ == "__main__":
    sys.exit(guarded("bench_kernels", main, resumable=False))
