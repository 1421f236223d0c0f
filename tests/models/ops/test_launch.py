"""Direct launches call what Triton's own launches call, with a driver and a compiler that do nothing.

Needs Triton, but no device; not under its interpreter, which launches in another way.
"""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.models.ops.device import INTERPRETED

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="Triton's interpreter launches in another way")

NUMBERS = [
    *(0, 1, 2, 15, 16, 17, -1, -16, 2**31 - 1, 2**31 - 16, 2**31, 2**31 + 1, -(2**31), -(2**31) - 1),
    *(-(2**31) - 16, 2**63 - 1, -(2**63), 2**63, 2**63 + 1, 2**64 - 16),
    *(0.0, 1.0, 16.0, True, False, None),
]
TENSORS = [
    torch.zeros(64, dtype=dtype)[start:]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
    for start in (0, 1, 16)
]


class Driver:
    """Stand-in for Triton's driver that records launches."""

    def __init__(self) -> None:
        self.device, self.launches = 0, list[tuple[Any, ...]]()
        self.utils = SimpleNamespace(load_binary=lambda name, *_: (name, name, 0, 0, 1024))

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 7 + device

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, function: str, packed: Any, *rest: Any) -> None:
            launch_metadata, enter, leave, *args = rest
            for hook in (enter, leave):
                if hook is not None:
                    hook(launch_metadata)
            # Tensors by identity.
            ids = [id(each) if isinstance(each, torch.Tensor) else repr(each) for each in args]
            self.launches.append(((x, y, z), stream, function, packed, ids))

        return launch


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    from triton.compiler import CompiledKernel, compiler
    from triton.runtime.driver import driver as active

    names = itertools.count()

    def compile(source: Any, target: Any, options: Any, **_: Any) -> Any:
        # Without the constructor, which reads what the compiler has written.
        kernel = CompiledKernel.__new__(CompiledKernel)
        vars(kernel).update(
            src=source, name=f"{source.fn.__name__} {next(names)}", hash="", kernel=b"", metadata_group={},
            metadata=SimpleNamespace(target=target, num_warps=options["num_warps"], shared=0),
            packed_metadata=(options["num_warps"], options["num_stages"]),
            module=None, function=None, _run=None,
        )  # fmt: skip
        return kernel

    stand_in = Driver()
    monkeypatch.setattr(compiler, "compile", compile)
    # Triton's own would remember this driver's answer for the device.
    monkeypatch.setattr(compiler, "max_shared_mem", lambda device: 0)
    monkeypatch.setattr(triton.compiler, "compile", compile)
    monkeypatch.setattr(active, "_active", stand_in)
    return stand_in


@pytest.fixture
def kernel(driver: Driver) -> Any:
    """A kernel that stays uncompiled; `calls` counts launches that Triton makes."""
    import triton.language as tl

    from evalsuite.models.ops.launch import Launcher, keep_compiled

    @keep_compiled
    @triton.jit(do_not_specialize=["count"])
    def copy_kernel(  # type: ignore[no-untyped-def]
        x, out, count, stride, scale, WIDTH: tl.constexpr, GATED: tl.constexpr
    ):
        pass

    assert isinstance(copy_kernel, Launcher), f"Triton {triton.__version__} is not among KNOWN_VERSIONS"
    plain = copy_kernel.fn.run
    copy_kernel.calls = 0

    def run(*args: Any, **options: Any) -> Any:
        copy_kernel.calls += 1
        return plain(*args, **options)

    copy_kernel.fn.run = run
    return copy_kernel


def test_arguments_of_one_form_are_specialized_alike() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import native_specialize_impl

    from evalsuite.models.ops.launch import form_of

    backend = make_backend(GPUTarget("cuda", 90, 32))
    values = [*NUMBERS, *TENSORS]
    for one, other in itertools.combinations(values, 2):
        same = form_of((one,)) == form_of((other,))
        for rules in itertools.product((False, True), repeat=3):
            alike = [native_specialize_impl(backend, each, *rules) for each in (one, other)]
            assert alike[0] == alike[1] or not same, (one, other, rules)
        specialized = [native_specialize_impl(backend, each, False, True, True) for each in (one, other)]
        assert same == (specialized[0] == specialized[1]), (one, other)


def test_forms_of_several_arguments_are_not_confused() -> None:
    from evalsuite.models.ops.launch import form_of

    choices = [1, 2, 16, 2**40, 1.5, None, True, *TENSORS[:2]]
    forms = [form_of(each) for count in range(4) for each in itertools.product(choices, repeat=count)]
    assert len(set(forms)) == len(forms)
    assert form_of((1, "text")) is None
    assert form_of((torch.float32,)) is None


def test_direct_launches_equal_those_of_triton(kernel: Any, driver: Driver) -> None:
    launches = [
        ((2,), *arguments()),
        *(((2,), *arguments(x=x)) for x in TENSORS[1:4]),
        ((2,), *arguments(out=TENSORS[1])),
        *(((2, 3), *arguments(count=count)) for count in (1, 16, 2**40)),
        *(((2, 3), *arguments(stride=stride)) for stride in (1, 16, 17, 2**31, 2**31 + 1)),
        *(((2, 3), *arguments(scale=scale)) for scale in (1.5, 3, True)),
        *(((2, 3, 4), *arguments(WIDTH=width)) for width in (8, 16)),
        *(((2, 3, 4), *arguments(GATED=gated)) for gated in (False, True)),
        *(((2, 3, 4), *arguments(num_warps=warps)) for warps in (2, 4)),
        ((2, 3, 4), *arguments(num_stages=2)),
        # In another order.
        ((5,), arguments()[0], {"GATED": True, "num_warps": 4, "WIDTH": 16}),
    ]
    for grid, args, constants in launches:
        kernel.fn[grid](*args, **constants)
    expected, driver.launches = driver.launches, []
    assert len({function for _, _, function, _, _ in expected}) > 10

    # First by Triton, but for a few that equal others, then directly.
    for limit in (len(launches) - 1, 0):
        kernel.calls, driver.launches = 0, []
        for grid, args, constants in launches:
            kernel[grid](*args, **constants)
        assert driver.launches == expected
        assert kernel.calls <= limit


def test_devices_have_kernels_and_streams_of_their_own(kernel: Any, driver: Driver) -> None:
    args, constants = arguments()
    for driver.device in (0, 1, 0, 1):
        kernel[(1,)](*args, **constants)
    first, second, *again = driver.launches
    assert first[1:3] != second[1:3]
    assert again == [first, second]
    assert kernel.calls == 2


def test_unusual_launches_are_those_of_triton(
    kernel: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton import knobs

    args, constants = arguments()
    for _ in range(2):
        kernel[(1,)](*args, **constants)
    assert kernel.calls == 1
    seen: list[Any] = []
    # Hooks are followed from their installation until their removal.
    for place in ("launch_enter_hook", "launch_exit_hook"):
        chain = getattr(knobs.runtime, place)
        chain.add(seen.append)
        kernel[(1,)](*args, **constants)
        chain.remove(seen.append)
        kernel[(1,)](*args, **constants)
        with monkeypatch.context() as patch:
            patch.setattr(knobs.runtime, place, seen.append)
            kernel[(1,)](*args, **constants)
        with monkeypatch.context() as patch:
            patch.setattr(knobs.runtime, place, None)
            kernel[(1,)](*args, **constants)
    assert len(seen) == 4
    assert kernel.calls == 5
    kernel.fn.add_pre_run_hook(lambda *args, **options: seen.append(args))
    kernel[(1,)](*args, **constants)
    assert len(seen) == 5
    kernel.fn.pre_run_hooks.clear()
    with monkeypatch.context() as patch:
        patch.setattr(knobs.runtime, "debug", True)
        kernel[(1,)](*args, **constants)
    assert kernel.calls == 7
    # Another kernel, as it was compiled with checks.
    assert len({function for _, _, function, _, _ in driver.launches}) == 2
    # Arguments by keyword and constants by position.
    kernel[(1,)](*args[:-1], scale=args[-1], **constants)
    kernel[(1,)](*args, 16, GATED=True, num_warps=4)
    assert kernel.calls == 9
    # A grid that depends on the arguments.
    kernel[lambda values: (values["count"],)](*args, **constants)
    assert driver.launches[-1][0] == (100, 1, 1)
    assert kernel.calls == 10
    kernel[(1,)](*args, **constants)
    assert kernel.calls == 10


def test_launches_are_direct_while_compilations_are_logged(
    kernel: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in every process that runs a model: `tuning.install` logs compilations."""
    from triton import knobs

    from evalsuite.models.ops.tuning import CompileNotice

    monkeypatch.setattr(knobs.compilation, "listener", CompileNotice())
    args, constants = arguments()
    for _ in range(3):
        kernel[(1,)](*args, **constants)
    assert kernel.calls == 1
    assert len(driver.launches) == 3


def test_launches_are_recorded_and_not_kept(kernel: Any, driver: Driver) -> None:
    from evalsuite.models.ops.tuning.compile_ahead import record_launches

    args, constants = arguments()
    kernel.fn.hash = "any"
    with record_launches() as launches:
        kernel[(1,)](*args, **constants)
        kernel[(1,)](*args, **constants)
    assert [launch.name.rpartition(".")[2] for launch in launches] == ["copy_kernel"]
    assert driver.launches == []
    for _ in range(3):
        kernel[(1,)](*args, **constants)
    assert len(driver.launches) == 3
    assert kernel.calls == 3


def test_global_variables_are_checked_at_each_launch(kernel: Any) -> None:
    args, constants = arguments()
    names = {"BLOCK": 8}
    kernel.fn.used_global_vals = {("BLOCK", id(names)): (8, names)}
    for _ in range(2):
        kernel[(1,)](*args, **constants)
    names["BLOCK"] = 16
    with pytest.raises(RuntimeError, match="BLOCK has changed"):
        kernel[(1,)](*args, **constants)


def test_other_releases_launch_by_themselves(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalsuite.models.ops.launch import Launcher, keep_compiled

    assert isinstance(keep_compiled(kernel.fn), Launcher)
    assert keep_compiled(len) is len
    monkeypatch.setattr(triton, "__version__", "2.9.0")
    assert keep_compiled(kernel.fn) is kernel.fn


def arguments(**changed: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of the kernel by position, and its constants and options."""
    values = {"x": TENSORS[0], "out": TENSORS[6], "count": 100, "stride": 48, "scale": 0.5}
    args = [changed.pop(name, value) for name, value in values.items()]
    return args, {"WIDTH": 16, "GATED": True, "num_warps": 4} | changed
