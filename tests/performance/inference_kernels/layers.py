"""What lies between the matrix products of layers, and the log-probabilities after the last one."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops import rotary as rotary_op
from evalsuite.models.ops.gates import gates_of_logits
from evalsuite.models.ops.swiglu import swiglu
from tests.performance.inference_kernels.case import Case, Setting, Way


def cases(setting: Setting, small: bool) -> Iterator[Case]:
    """All operations on tokens of their own at the sizes of the benchmark."""
    yield logprobs(setting, 7 if small else 5461)
    for rows, tokens in ((3, 1), (2, 5)) if small else ((512, 1), (4000, 21), (2000, 45)):
        for make in (norms, head_norm, rotary, delta_gates, add_norm, gated, mlp):
            yield make(setting, rows, tokens)


def logprobs(setting: Setting, rows: int) -> Case:
    """One target token per row of logits; the most probable one in every second row."""
    logits = setting.draw(rows, setting.shape.vocabulary)
    row = setting.index(range(rows))
    random = torch.randint(setting.shape.vocabulary, (rows,), device=setting.device)
    token = torch.where(row % 2 == 0, logits.argmax(-1), random)

    def separate(dtype: torch.dtype, logits: Tensor) -> list[Tensor]:
        found = functional.log_softmax(logits, -1, dtype=dtype)[row, token]
        return [found, logits.argmax(-1)[row] == token]

    ways = []
    if setting.ours:
        from evalsuite.models.ops.logprobs.inference import row_logprobs

        bounds = setting.index(range(rows + 1))
        found = torch.empty(rows, device=setting.device)
        top = torch.empty(rows, dtype=torch.bool, device=setting.device)
        call = partial(row_logprobs, logits, 0, bounds, token, found, top)
        ways.append(Way("ours", call, lambda _: [found, top]))
    name = "torch: log_softmax in fp32, argmax, gather"
    ways.append(Way(name, partial(separate, torch.float32, logits)))
    return Case(
        f"logprobs kernel [{rows}, {setting.shape.vocabulary}]",
        lambda: separate(torch.float64, logits.double()),
        ways,
    )


def norms(setting: Setting, rows: int, tokens: int) -> Case:
    """Queries and keys of length one."""
    shape, width = setting.shape, setting.shape.head_dim
    both = [setting.draw(rows, tokens, shape.heads, width) for _ in range(2)]
    eps, gain = 1e-6 / width, width**-0.5

    def separate(parts: Sequence[Tensor]) -> list[Tensor]:
        return [functional.rms_norm(x, (width,), eps=eps) * gain for x in parts]

    ways = []
    if setting.ours:
        from evalsuite.models.ops.rms_norm.inference import head_norms

        ways.append(Way("ours", lambda: head_norms(both, None, eps, gain)))
        ways.append(Way("one by one", lambda: [head_norms([x], None, eps, gain)[0] for x in both]))
    ways.append(Way("torch: rms_norm, product", partial(separate, both)))
    return Case(
        f"norms of two tensors [{rows}, {tokens}, {shape.heads}, {width}]",
        lambda: separate([x.double() for x in both]),
        ways,
    )


def head_norm(setting: Setting, rows: int, tokens: int) -> Case:
    """Norm of mixed values, with a weight."""
    shape, width = setting.shape, setting.shape.head_dim
    x, weight = setting.draw(rows, tokens, shape.heads, width), setting.draw(width)
    ways = []
    if setting.ours:
        from evalsuite.models.ops.rms_norm.inference import head_norms

        ways.append(Way("ours", lambda: head_norms([x], weight, 1e-5)))
    ways.append(Way("torch: rms_norm", lambda: [functional.rms_norm(x, (width,), weight, 1e-5)]))
    return Case(
        f"norm of heads [{rows}, {tokens}, {shape.heads}, {width}]",
        lambda: [functional.rms_norm(x.double(), (width,), weight.double(), 1e-5)],
        ways,
    )


def rotary(setting: Setting, rows: int, tokens: int) -> Case:
    """Rotary embedding of a recurrent layer's queries."""
    shape, width = setting.shape, setting.shape.head_dim
    x = setting.draw(rows, tokens, shape.heads, width)
    angles = [setting.draw(rows, tokens, width) for _ in range(2)]
    ways = []
    if setting.ours:
        ways.append(Way("ours", lambda: [rotary_op.rotary.load("inference")(x, *angles)]))
    ways.append(Way("torch: separate operations", lambda: [rotary_op.rotary.reference(x, *angles)]))
    return Case(
        f"rotary [{rows}, {tokens}, {shape.heads}, {width}]",
        lambda: [rotary_op.rotary.reference(x.double(), *(each.double() for each in angles))],
        ways,
    )


def delta_gates(setting: Setting, rows: int, tokens: int) -> Case:
    """Gates of Gated DeltaNet from parts of a padded projection."""
    heads = setting.shape.heads
    projected = setting.draw(rows, tokens, 2 * heads + -2 * heads % 16)
    a, b = projected[..., : 2 * heads].split(heads, -1)
    bias, rate = setting.draw(heads), setting.draw(heads)

    separate = partial(gates_of_logits.reference, most=1.0)
    ways = []
    if setting.ours:
        ways.append(Way("ours", lambda: gates_of_logits.load("inference")(a, b, bias, rate, 1.0)))
    ways.append(Way("torch: separate operations", lambda: separate(a, b, bias, rate)))
    return Case(
        f"gates of the delta rule [{rows}, {tokens}, {heads}]",
        lambda: separate(*(each.double() for each in (a, b, bias, rate))),
        ways,
    )


def add_norm(setting: Setting, rows: int, tokens: int) -> Case:
    """A layer's first residual addition and the norm that follows."""
    width = setting.shape.hidden
    inputs = [setting.draw(rows, tokens, width), setting.draw(rows, tokens, width), setting.draw(width)]

    def separate(x: Tensor, residual: Tensor, weight: Tensor) -> list[Tensor]:
        total = x + residual
        return [functional.rms_norm(total, (width,), weight, 1e-5), total]

    ways = []
    if setting.ours:
        from evalsuite.models.ops.rms_norm.inference import add_norm as kernel

        ways.append(Way("ours", lambda: kernel(*inputs, 1e-5)))
    ways.append(Way("torch: addition, rms_norm", lambda: separate(*inputs)))
    return Case(
        f"norm of a sum [{rows}, {tokens}, {width}]", lambda: separate(*(x.double() for x in inputs)), ways
    )


def gated(setting: Setting, rows: int, tokens: int) -> Case:
    """silu(gate) · x of two parts of a joined projection."""
    width = setting.shape.intermediate
    gate, x = setting.draw(rows, tokens, 2 * width).split(width, -1)
    ways = []
    if setting.ours:
        ways.append(Way("ours", lambda: [swiglu.load("inference")(gate, x)]))
    if setting.fla:  # Its configuration is chosen by measurements, which need the packages of training.
        ways.append(Way("kernel of training, copies", lambda: [swiglu.load("training")(gate, x)]))
    ways.append(Way("torch: silu, product", lambda: [swiglu.reference(gate, x)]))
    return Case(
        f"gated values [{rows}, {tokens}, {width}]",
        lambda: [swiglu.reference(gate.double(), x.double())],
        ways,
    )


def mlp(setting: Setting, rows: int, tokens: int) -> Case:
    """The second half of a decoder layer: addition, norm, gated MLP, addition."""
    hidden, wide = setting.shape.hidden, setting.shape.intermediate
    mixed, residual = (setting.draw(rows, tokens, hidden) for _ in range(2))
    weight, both = setting.draw(hidden), setting.draw(2 * wide, hidden) * hidden**-0.5
    down = setting.draw(hidden, wide) * wide**-0.5

    def separate(x: Tensor, residual: Tensor, weight: Tensor, both: Tensor, down: Tensor) -> list[Tensor]:
        total = x + residual
        normed = functional.rms_norm(total, (hidden,), weight, 1e-5)
        gate, up = (functional.linear(normed, each) for each in both.split(wide))
        return [total + functional.linear(functional.silu(gate) * up, down)]

    ways = []
    if setting.ours:
        from evalsuite.models.ops.rms_norm.inference import add_norm as kernel

        def ours() -> list[Tensor]:
            normed, total = kernel(mixed, residual, weight, 1e-5)
            values = swiglu.load("inference")(*functional.linear(normed, both).split(wide, -1))
            total.flatten(0, 1).addmm_(values.flatten(0, 1), down.T)
            return [total]

        ways.append(Way("ours", ours))
    inputs = mixed, residual, weight, both, down
    ways.append(Way("torch: separate operations", lambda: separate(*inputs)))
    return Case(
        f"norm of a sum and gated MLP [{rows}, {tokens}, {hidden}]",
        lambda: separate(*(x.double() for x in inputs)),
        ways,
    )
