import torch

from evalsuite.models.engine.profile import Bounds, _short, bounds


def test_kernels_have_names_that_one_can_read() -> None:
    long = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, 4>(int*)"
    assert _short(long) == "CatArrayBatchedCopy"
    assert _short("aten::mm") == "mm"


def test_what_is_counted() -> None:
    x = torch.randn(64, 64)
    found = bounds(lambda: [x @ x for _ in range(5)])
    assert found.kernels >= 5
    assert dict(found.largest)["mm"] > 0


def test_who_bounds() -> None:
    assert "bound by the device" in str(Bounds(1.0, 0.9, 10, ()))
    assert "bound by the host" in str(Bounds(1.0, 0.4, 10, ()))
    assert "bound by tokenization" in str(Bounds(1.0, 0.4, 10, (), tokenization=0.6))
