"""Capture of CUDA graphs: by one function, while other threads use the device."""

import re
import threading
from pathlib import Path

import pytest
import torch

from evalsuite.models.ops.capture import capture

ROOT = Path(__file__).parents[3]


def test_graphs_are_captured_in_one_place() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for room in ("evalsuite", "tasks", "models", "distill", "reports")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"torch\.cuda\.graph\(|CUDAGraph\(\)", path.read_text())
    ]
    assert found == ["models/ops/capture.py"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_other_threads_use_the_device_meanwhile() -> None:
    x = torch.ones(64, 64, device="cuda")
    y = torch.zeros_like(x)
    torch.mm(x, x, out=y)
    begun, failed, ended = threading.Event(), [], threading.Event()

    def others() -> None:
        begun.wait()
        try:
            # Prefetched batches pin memory; states that are written wait for their own stream.
            torch.empty(1 << 20, pin_memory=True).to("cuda", non_blocking=True)
            torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            failed.append(error)
        ended.set()

    thread = threading.Thread(target=others)
    thread.start()

    def launch() -> None:
        begun.set()
        assert ended.wait(60)
        torch.mm(x, x, out=y)

    graph = capture(launch)
    thread.join()
    assert failed == []
    x.fill_(2)
    graph.replay()
    assert torch.equal(y, torch.full_like(y, 256.0))
