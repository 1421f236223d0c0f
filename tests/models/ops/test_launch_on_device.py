"""Kernels that are launched directly compute what they compute when Triton launches them, bit for bit."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.models.ops.recurrence import RecurrenceInputs
from tests.models.ops.device import DEVICE, INTERPRETED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="no CUDA device"),
]

Place = Callable[[Tensor], Tensor]
"""Copies a tensor to the device, where its first element is aligned to 16 bytes or is not."""


def aligned(x: Tensor) -> Tensor:
    return x.to(DEVICE, copy=True)


def unaligned(x: Tensor) -> Tensor:
    out = torch.empty(x.numel() + 1, dtype=x.dtype, device=DEVICE)[1:].view(x.shape)
    return out.copy_(x)


def drawn(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def add_norm(module: Any, place: Place, size: int) -> list[Tensor]:
    x, residual, weight = place(drawn(size, 3, 48)), place(drawn(size, 3, 48, seed=1)), place(drawn(48))
    return [*module.add_norm(x, residual, weight, 1e-5)]


def sandwich_norm(module: Any, place: Place, size: int) -> list[Tensor]:
    x, residual = place(drawn(size, 3, 48)), place(drawn(size, 3, 48, seed=1))
    weight, following = place(drawn(48)), place(drawn(48, seed=1))
    found = [module.sandwich_norm(x, weight, 1e-5, residual, each, "one_plus") for each in (following, None)]
    return [each for pair in found for each in pair]


def glu(module: Any, place: Place, size: int) -> list[Tensor]:
    gate, x = place(drawn(size, 3, 2 * 48)).split(48, -1)
    return [module.glu(gate, x), module.glu(x.contiguous(), x, "gelu_tanh")]


def head_norms(module: Any, place: Place, size: int) -> list[Tensor]:
    x, y = place(drawn(size, 3, 2, 16)), place(drawn(size, 3, 5, 16))
    return [
        *module.head_norms([x, y], None, 1e-6, 0.25),
        *module.head_norms([x, y], [place(drawn(16)), place(drawn(16, seed=1))], 1e-6),
    ]


def rotary(module: Any, place: Place, size: int) -> list[Tensor]:
    return [module.rotary(place(drawn(size, 3, 5, 16)), *(place(drawn(1, 3, 16, seed=i)) for i in (1, 2)))]


def short_conv(module: Any, place: Place, size: int) -> list[Tensor]:
    found = []
    for length, state in ((3, None), (1, place(drawn(size, 72, 3)))):
        parts = place(drawn(size, length, 72)).split((48, 16, 8), -1)
        weights = place(drawn(72, 1, 4)).split((48, 16, 8))
        outputs, after = module.short_convolutions(parts, weights, 2, state)
        found += [*outputs, after]
    return found


def delta_gates(module: Any, place: Place, size: int) -> list[Tensor]:
    a, b = place(drawn(size, 3, 18)).split(9, -1)
    return [*module.gates_of_logits(a, b, place(drawn(9)), place(drawn(9, seed=1)), 2.0)]


def recurrent(module: Any, place: Place, size: int) -> list[Tensor]:
    q, k, v = (place(drawn(size, 3, 2, 16, seed=i)) for i in range(3))
    gates = {"log_decay": -place(drawn(size, 3, 2)).abs(), "beta": place(drawn(size, 3, 2).sigmoid())}
    state = place(drawn(size, 2, 16, 16, dtype=torch.float32))
    found: list[Tensor] = []
    for initial in (None, state):
        found += module.recurrent(RecurrenceInputs(q, k / 4, v, **gates, scale=0.25, initial_state=initial))
    return found


def logprobs(module: Any, place: Place, size: int) -> list[Tensor]:
    logits = place(drawn(size, 100))
    bounds = place(torch.arange(size + 1))
    found, is_argmax = torch.zeros(size, device=DEVICE), torch.zeros(size, dtype=torch.bool, device=DEVICE)
    module.row_logprobs(logits, 0, bounds, place(torch.arange(size) % 100), found, is_argmax)
    return [found, is_argmax]


def branch_attention(module: Any, place: Place, size: int) -> list[Tensor]:
    query = place(drawn(size, 3, 4, 16))
    key, value = (place(drawn(size, 2, 3, 16, seed=i)) for i in (1, 2))
    parent_key, parent_value = (place(drawn(2, 2, 7, 16, seed=i)) for i in (3, 4))
    rows, lengths = place(torch.arange(size) % 2), place(torch.tensor([7, 2]))
    return [module.branch_attention(query, key, value, parent_key, parent_value, rows, lengths, 0.25)]


def decode_attention(module: Any, place: Place, size: int) -> list[Tensor]:
    query = place(drawn(size, 4, 1, 16))
    key, value = (place(drawn(size, 2, 70, 16, seed=i)) for i in (1, 2))
    return [module.decode_attention(query, key, value, place(torch.arange(size) % 70), 0.25)]


def rotate_and_store(module: Any, place: Place, size: int) -> list[Tensor]:
    query = place(drawn(size, 4, 16))
    key, value = (place(drawn(size, 2, 16, seed=i)) for i in (1, 2))
    keys, values = (torch.zeros(size, 2, 5, 16, dtype=torch.float16, device=DEVICE) for _ in range(2))
    angles = (place(drawn(1, 1, 16, seed=i)) for i in (3, 4))
    positions = place(torch.arange(size) % 5)
    return [*module.rotate_and_store(query, key, value, *angles, keys, values, positions)]


CASES: list[tuple[str, Callable[[Any, Place, int], list[Tensor]]]] = [
    ("rms_norm.inference", add_norm),
    ("rms_norm.inference", sandwich_norm),
    ("rms_norm.inference", head_norms),
    ("glu.inference", glu),
    ("rotary.inference", rotary),
    ("short_conv.inference", short_conv),
    ("gates.inference", delta_gates),
    ("recurrence.decode", recurrent),
    ("logprobs.inference", logprobs),
    ("attention.branch", branch_attention),
    ("attention.decode", decode_attention),
    ("attention.store", rotate_and_store),
]


def kernels_of(name: str) -> Any:
    return import_module(f"evalsuite.models.ops.{name}")


@contextmanager
def launched_by_triton(module: Any) -> Iterator[None]:
    """Within this context no kernel of the module is launched directly."""
    from evalsuite.models.ops.launch import Launcher

    with pytest.MonkeyPatch.context() as patch:
        for name, kernel in list(vars(module).items()):
            if isinstance(kernel, Launcher):
                patch.setattr(module, name, kernel.fn)
        yield


def test_every_kernel_is_launched_directly() -> None:
    from evalsuite.models.ops.launch import Launcher

    for name in {name for name, _ in CASES}:
        module = kernels_of(name)
        kernels = {each: kernel for each, kernel in vars(module).items() if each.endswith("_kernel")}
        assert kernels
        assert all(isinstance(kernel, Launcher) for kernel in kernels.values()), name


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_model_launches_directly(
    family: str, make_teacher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process whose kernels are tuned, as in every run."""
    from triton.runtime.jit import JITFunction

    from evalsuite.models.decoder.build import to_decoder
    from evalsuite.models.inference.torch.model_runner import ModelRunner
    from evalsuite.models.ops.launch import Launcher

    kernels = {
        id(kernel.fn)
        for name, _ in CASES
        for kernel in vars(kernels_of(name)).values()
        if isinstance(kernel, Launcher)
    }
    by_triton: list[str] = []
    plain = JITFunction.run

    def run(self: Any, *args: Any, **options: Any) -> Any:
        if id(self) in kernels:
            by_triton.append(self.fn.__name__)
        return plain(self, *args, **options)

    monkeypatch.setattr(JITFunction, "run", run)
    runner = ModelRunner(to_decoder(make_teacher(family)).eval().to(DEVICE, torch.float16))

    def score() -> list[str]:
        by_triton.clear()
        with torch.inference_mode():
            _, cache = runner.prefill([[5, 6, 7], [8, 9]], keep=True)
            runner.prefill([[5, 6], [7]], parent=cache, parent_rows=[1, 0])
        return list(by_triton)

    score()
    assert score() == []
    with monkeypatch.context() as patch:
        patch.setattr("evalsuite.models.ops.launch._hooked", lambda: True)
        assert {"_add_norm_kernel", "_rotate_and_store_kernel"} <= {*score()}


@pytest.mark.parametrize(("name", "compute"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_results_are_the_same_to_the_bit(
    name: str, compute: Callable[[Any, Place, int], list[Tensor]]
) -> None:
    module = kernels_of(name)
    places = [(place, size) for size in (1, 16, 17) for place in (aligned, unaligned)]
    with torch.inference_mode():
        with launched_by_triton(module):
            expected = [compute(module, *each) for each in places]
        # Launched by Triton in the first round at most.
        for _ in range(3):
            for each, theirs in zip(places, expected, strict=True):
                for mine, other in zip(compute(module, *each), theirs, strict=True):
                    assert torch.equal(mine, other)


def test_numbers_arrive_whatever_their_form() -> None:
    import triton
    import triton.language as tl

    from evalsuite.models.ops.launch import keep_compiled

    @triton.jit(do_not_specialize=["count"])
    def add_kernel(x, out, count, a, b, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        index = tl.arange(0, BLOCK)
        value = tl.load(x + index, mask=index < count, other=0) + a + (tl.zeros([BLOCK], tl.int64) + b) * 3
        value += ((tl.zeros([BLOCK], tl.float32) + scale) * 4).to(tl.int64)
        tl.store(out + index, value, mask=index < count)

    direct = keep_compiled(add_kernel)
    for place, _ in itertools.product((aligned, unaligned), range(2)):
        x = place(torch.arange(20))
        for count, a, b in itertools.product((1, 16, 20), (1, 16, 17), (1, 16, 17, -16, 2**31, 2**40 + 1)):
            for kernel in (add_kernel, direct):
                out = torch.zeros_like(x)
                kernel[(1,)](x, out, count, a, b, math.pi, BLOCK=32)
                assert out.tolist()[:count] == [each + a + 3 * b + 12 for each in range(count)]
                assert not out[count:].any()


def test_kernels_from_the_cache_are_no_compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton
    import triton.language as tl
    from triton import knobs

    from evalsuite.models.ops.tuning import CompileNotice

    @triton.jit
    def fill_kernel(out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(out + tl.arange(0, BLOCK), 7)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    notice = CompileNotice()
    monkeypatch.setattr(knobs.compilation, "listener", notice)
    for _ in range(2):
        out = torch.zeros(32, device=DEVICE)
        fill_kernel[(1,)](out, BLOCK=32)
        assert out.eq(7).all()
        assert notice._count == 1
        fill_kernel.device_caches.clear()


def test_direct_launches_are_captured_in_cuda_graphs() -> None:
    module = kernels_of("rms_norm.inference")
    x, residual, weight = aligned(drawn(16, 48)), aligned(drawn(16, 48, seed=1)), aligned(drawn(48))
    with torch.inference_mode():
        for _ in range(2):
            module.add_norm(x, residual, weight, 1e-5)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = module.add_norm(x, residual, weight, 1e-5)
        x.copy_(drawn(16, 48, seed=2))
        graph.replay()
        with launched_by_triton(module):
            expected = module.add_norm(x, residual, weight, 1e-5)
    assert all(torch.equal(*pair) for pair in zip(captured, expected, strict=True))


def test_direct_launches_are_on_the_current_stream() -> None:
    module = kernels_of("rms_norm.inference")
    x, residual, weight = aligned(drawn(16, 48)), aligned(drawn(16, 48, seed=1)), aligned(drawn(48))
    with torch.inference_mode():
        before = module.add_norm(x, residual, weight, 1e-5)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # On another stream the kernel would read x before the addition.
            torch.cuda._sleep(10_000_000)
            x.add_(1)
            found = module.add_norm(x, residual, weight, 1e-5)
        stream.synchronize()
        after = module.add_norm(x, residual, weight, 1e-5)
    assert all(torch.equal(*pair) for pair in zip(found, after, strict=True))
    assert not torch.equal(found[1], before[1])


def test_tensors_of_a_cpu_are_refused_as_before() -> None:
    module = kernels_of("rms_norm.inference")
    x, weight = aligned(drawn(16, 48)), drawn(48)
    with torch.inference_mode():
        for _ in range(2):
            module.add_norm(x, x, weight.to(DEVICE), 1e-5)
        with pytest.raises(ValueError, match="cannot be accessed from Triton"):
            module.add_norm(x, x, weight, 1e-5)
