"""Data that cannot be read during training: the steps before it are not lost."""

import json

import pytest

from evalsuite.distill import distill
from evalsuite.distill.data import readers
from evalsuite.foundation import DataError, read_jsonl
from tests.distill.training.saved_states import read_state

SENTENCE = "house of Igor is in Dunmore Nils likes to eat soup with a fox"
WORDS = SENTENCE.split()


@pytest.fixture
def recipe(teacher_folder, small_recipe, stage, tmp_path, monkeypatch):
    """KD on local documents, of which eight are read at a time, and sixteen before the first step."""
    monkeypatch.setattr(readers, "CHUNK_ROWS", 8)
    rows = [" ".join(WORDS[(number * k) % 14] for k in range(12)) for number in range(1, 401)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return small_recipe(
        teacher_folder,
        data={"local": {"kind": "local", "files": [str(path)], "shuffle_buffer_size": 16}},
        stages=[stage("kd", "kd", data="local", tokens=128 * 16)],
    )


def test_a_run_whose_data_fail_resumes_after_its_last_step(recipe, tmp_path, monkeypatch):
    (whole,) = distill(recipe, tmp_path / "whole", quiet=True, device="cpu")
    line_chunks = readers._line_chunks

    def failing(path, start):
        for number, chunk in enumerate(line_chunks(path, start)):
            if start + 8 * number >= 112:
                raise OSError("Input/output error")
            yield chunk

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(readers, "_line_chunks", failing)
        with pytest.raises(DataError, match=r"rows\.jsonl: cannot be read \(Input/output error\)"):
            distill(recipe, out, quiet=True, device="cpu")
    progress, _ = read_state(out / "state")
    steps = len(list(read_jsonl(out / "metrics.jsonl")))
    assert progress.step == steps > 4
    (student,) = distill(recipe, out, quiet=True, device="cpu")
    assert len(list(read_jsonl(out / "metrics.jsonl"))) == 16
    weights = [folder / "model.safetensors" for folder in (whole, student)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
