"""The benchmark of large models times the trainer's steps, whatever saves memory."""

import json
from pathlib import Path

import pytest

from tests.performance import large_models

TINY = ["--shape", "tiny", "--seq", "16", "--sequences", "2", "--micro-batches", "2", "--device", "cpu"]
TINY += ["--warmup", "1", "--steps", "2"]


def test_options_that_save_memory_do_not_change_the_first_loss(tmp_path: Path) -> None:
    found = {}
    for name, extra in (
        ("plain", []),
        ("recomputed", ["--activation-checkpointing"]),
        ("frozen", ["--trainable", "no_mlp", "--activation-checkpointing"]),
    ):
        out = tmp_path / f"{name}.json"
        assert large_models.main([*TINY, *extra, "--out", str(out)]) == 0
        found[name] = json.loads(out.read_text())
        assert found[name]["tokens_per_second"] > 0
        assert len(found[name]["step_seconds"]) == 3
    assert found["recomputed"]["losses"] == found["plain"]["losses"]
    assert found["frozen"]["losses"][0] == found["plain"]["losses"][0]
    assert found["plain"]["losses"][2] < found["plain"]["losses"][0]
    assert found["frozen"]["trained_parameters"] < found["plain"]["trained_parameters"]


def test_micro_batches_divide_the_sequences() -> None:
    with pytest.raises(SystemExit):
        large_models.parse(["--shape", "tiny", "--sequences", "3", "--micro-batches", "2"])
