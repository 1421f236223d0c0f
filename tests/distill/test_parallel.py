"""Two processes make the student that one makes."""

import multiprocessing
import os
import socket

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.distill import distill
from evalsuite.foundation import read_jsonl


def worker(rank: int, port: int, recipe, out) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    distill(recipe, out, quiet=True, device="cpu")
    torch.distributed.destroy_process_group()


def loopback_works() -> bool:
    """Whether processes of this machine can talk: a fresh network namespace has its loopback down."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        try:
            socket.create_connection(listening.getsockname(), timeout=5).close()
        except OSError:
            return False
    return True


def losses(out) -> list[float]:
    return [row["loss"] for row in read_jsonl(out / "metrics.jsonl")]


@pytest.mark.skipif(not loopback_works(), reason="the loopback interface is down")
def test_two_processes_make_what_one_makes(teacher_folder, tmp_path, small_recipe, stage):
    options = {"batch": 4, "tokens": 1024, "mask": "completion", "packing": "documents"}
    stages = [stage("align", "attention_output", **options), stage("kd", "kd", **options)]
    recipe = small_recipe(teacher_folder, stages=stages)
    distill(recipe, tmp_path / "one", quiet=True, device="cpu")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=worker, args=(rank, port, recipe, tmp_path / "two")) for rank in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        process.kill()
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one = load_file(tmp_path / "one" / "gated_deltanet" / "model.safetensors")
    two = load_file(tmp_path / "two" / "gated_deltanet" / "model.safetensors")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-4)
