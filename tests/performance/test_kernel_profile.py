"""Kernel names and bounds of a profile."""

import torch

from tests.performance.kernel_profile import KernelProfile, _short_name, profile_kernels


def test_kernel_names_are_shortened() -> None:
    long = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, 4>(int*)"
    assert _short_name(long) == "CatArrayBatchedCopy"
    assert _short_name("aten::mm") == "mm"


def test_kernels_are_counted() -> None:
    x = torch.randn(64, 64)
    found = profile_kernels(lambda: [x @ x for _ in range(5)])
    assert found.kernels >= 5
    assert dict(found.largest)["mm"] > 0


def test_the_bound_is_named() -> None:
    assert "bound by the device" in str(KernelProfile(1.0, 0.9, 10, ()))
    assert "bound by the host" in str(KernelProfile(1.0, 0.4, 10, ()))
