"""Two hosts train together: two agents of torchrun on this one, which find each other by rendezvous."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from evalsuite.distill import distill
from evalsuite.distill.recipe import write_recipe
from evalsuite.foundation import read_jsonl
from tests.distill.training.two_processes import needs_loopback


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


ROOT = Path(__file__).resolve().parents[3]


@needs_loopback
@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_agents_train_the_same_student_as_one_process(teacher_folder, small_recipe, stage, tmp_path):
    stages = [stage("align", "attention_output", tokens=256), stage("kd", "kd", tokens=256)]
    recipe = small_recipe(teacher_folder, stages=stages, sharding="full")
    distill(recipe, tmp_path / "one", quiet=True, device="cpu")
    (tmp_path / "recipe.yaml").write_text(write_recipe(recipe))
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "run"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += [*rendezvous, "--local-addr", "127.0.0.1", "-m", "evalsuite", "distill"]
    command += [str(tmp_path / "recipe.yaml"), "--device", "cpu", "--quiet", "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    agents = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        errors = [agent.communicate(timeout=240)[1] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], errors
    curves = [[row["loss"] for row in read_jsonl(tmp_path / out / "metrics.jsonl")] for out in ("one", "two")]
    assert len(curves[0]) == 4
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
