"""On a GPU: fla's kernels against the torch backend, outputs and every gradient."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.mixers.convolution import ShortConvolution
from evalsuite.models.recurrence import kernels_used, recurrence, set_backend

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

CASES = [(decay, delta) for decay in ("none", "head", "scalar", "channel") for delta in (False, True)]
SETTINGS = [(torch.bfloat16, 64, 1e-2), (torch.bfloat16, 128, 1e-2), (torch.float32, 64, 1e-3)]
HEADS = 9


@pytest.fixture(autouse=True)
def exact_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 off, in torch and in triton."""
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


def compare(
    decay: str, delta: bool, dtype: torch.dtype, width: int, length: int, packed: bool
) -> dict[str, float]:
    """Relative error of outputs, final state and gradients, by name."""
    torch.manual_seed(length)
    rows = 1 if packed else 2
    bounds = None
    if packed:
        cuts = [0, length // 5, length // 5 + 1, length - 2, length]
        bounds = torch.tensor(cuts, device="cuda", dtype=torch.long)
    sequences = rows if bounds is None else len(bounds) - 1
    q, k = (functional.normalize(draw(rows, length, HEADS, width), dim=-1).to(dtype) for _ in range(2))
    tensors = {"q": q, "k": k, "v": draw(rows, length, HEADS, width).to(dtype)}
    shape = {"scalar": (rows, length, HEADS), "channel": (rows, length, HEADS, width)}
    fixed = None
    if decay == "head":
        fixed = -torch.linspace(0.001, 0.1, HEADS, device="cuda")
    elif decay != "none":
        tensors["log_decay"] = functional.logsigmoid(draw(*shape[decay]) + 3)
    if delta:
        tensors["beta"] = torch.sigmoid(draw(rows, length, HEADS))
    tensors["initial_state"] = draw(sequences, HEADS, width, width) * 0.1
    weights = draw(rows, length, HEADS, width), draw(sequences, HEADS, width, width) * 0.1
    results = {}
    for backend in ("torch", "fla"):
        set_backend(backend)
        leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
        o, state = recurrence(
            **leaves,
            **({"log_decay": fixed} if fixed is not None else {}),
            scale=width**-0.5,
            cu_seqlens=bounds,
        )
        ((o.float() * weights[0]).sum() + (state * weights[1]).sum()).backward()
        results[backend] = {"o": o, "state": state, **{f"d{name}": x.grad for name, x in leaves.items()}}
    set_backend("auto")
    return {
        name: float((results["fla"][name].float() - wanted.float()).norm() / wanted.float().norm())
        for name, wanted in results["torch"].items()
    }


@pytest.mark.parametrize(("decay", "delta"), CASES)
@pytest.mark.parametrize(("dtype", "width", "bound"), SETTINGS, ids=["bf16-64", "bf16-128", "fp32-64"])
def test_fla_is_torch(decay: str, delta: bool, dtype: torch.dtype, width: int, bound: float) -> None:
    worst: dict[str, float] = {}
    for length in (63, 64, 512, 2048):
        for packed in (False, True):
            for name, error in compare(decay, delta, dtype, width, length, packed).items():
                worst[name] = max(worst.get(name, 0.0), error)
    kernel = kernels_used()[f"{decay} decay, {'delta rule' if delta else 'additive'}"]
    line = " ".join(f"{name} {error:.1e}" for name, error in worst.items())
    print(f"KERNEL {kernel} | {decay} {'delta' if delta else 'additive'} {dtype} D={width} | {line}")
    assert kernel.startswith("chunk_")
    assert max(worst.values()) <= bound, worst


@pytest.mark.parametrize("packed", [False, True])
def test_short_convolution(packed: bool) -> None:
    torch.manual_seed(0)
    conv = ShortConvolution(192, 4, 128).cuda()
    torch.nn.init.normal_(conv.weight)
    x = draw(1, 300, 192).requires_grad_()
    bounds = torch.tensor([0, 2, 100, 300], device="cuda") if packed else None
    weight = draw(1, 300, 192)
    found = {}
    for backend in ("torch", "fla"):
        set_backend(backend)
        y, tail = conv(x, None, None, bounds)
        found[backend] = (y, tail, *torch.autograd.grad((y * weight).sum(), (x, conv.weight)))
    set_backend("auto")
    for mine, wanted in zip(found["fla"], found["torch"], strict=True):
        assert (mine - wanted).norm() <= 1e-4 * wanted.norm()
