"""Candidates split over two processes are rated as by one."""

import json
import multiprocessing
import os
import socket

import pytest
import torch

from evalsuite.distill.selection import select
from tests.distill.test_parallel import loopback_works


def worker(rank: int, port: int, selector: str, recipe, options, folder) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    select(recipe, selector, folder / "layers.json", budget=1, options=options, device="cpu", quiet=True)
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not loopback_works(), reason="the loopback interface is down")
@pytest.mark.parametrize("selector", ["ga_s2", "beam_add"])
def test_two_processes_rate_layers_as_one_does(ground, recipe, options, tmp_path, selector):
    """The beam search without a trunk, which both must then make together before either measures."""
    trunk = str(ground.trunk_path) if selector == "ga_s2" else None
    options = options(trunk=trunk, stop=False, every=2)
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
    assert two["scores"] == pytest.approx(one["scores"], rel=1e-6 if trunk else 1e-3)
    assert two["layers"] == one["layers"]
    if selector == "beam_add":
        assert two["details"]["hybrids_measured"] == one["details"]["hybrids_measured"] == 5
        return
    states = {path.name for path in folder.rglob("layer-*.safetensors")}
    assert states == {f"layer-{layer}.safetensors" for layer in range(3)}
