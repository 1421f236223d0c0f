"""Candidates split over two processes."""

import json
import multiprocessing
import os
import socket

import pytest
import torch

from evalsuite.distill.selection import select
from tests.distill.training.test_distributed import loopback_works


def worker(rank: int, port: int, selector: str, recipe, options, folder) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    select(recipe, selector, folder / "layers.json", budget=1, options=options, device="cpu", quiet=True)
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not loopback_works(), reason="the loopback interface is down")
@pytest.mark.parametrize("selector", ["ga_s2", "beam_add"])
def test_two_processes_give_the_scores_of_one(context, recipe, options, tmp_path, selector):
    """Beam search without a given all-linear student, which both processes must distil together first."""
    all_linear = str(context.all_linear_path) if selector == "ga_s2" else None
    options = options(all_linear=all_linear, early_stop=False, snapshot_interval=2)
    one = select(recipe, selector, tmp_path / "one.json", budget=1, options=options, device="cpu", quiet=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    folder = tmp_path / "two"
    both = [
        context.Process(target=worker, args=(rank, port, selector, recipe, options, folder))
        for rank in (0, 1)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(240)
        process.kill()
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    two = json.loads((folder / "layers.json").read_text())
    assert two["scores"] == pytest.approx(one["scores"], rel=1e-6 if all_linear else 1e-3)
    assert two["layers"] == one["layers"]
    if selector == "beam_add":
        assert two["details"]["hybrids_measured"] == one["details"]["hybrids_measured"] == 4
        return
    states = {path.name for path in folder.rglob("layer-*.safetensors")}
    assert states == {f"layer-{layer}.safetensors" for layer in range(3)}
