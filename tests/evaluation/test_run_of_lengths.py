"""A run over sources with several prompt lengths: what is read, left out, paired and scored."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import read_json
from evalsuite.reports.records.reading import read_run_scores
from tests.evaluation.runs import evaluate_quietly

SUITE = """\
name: s
title: S
limit: 3
benchmarks:
  - {benchmark: babilong_qa1, contexts: [1152, 4608]}
  - {benchmark: mrcr_2needle, contexts: [8192, 16384]}
"""


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows in the columns of the hub's datasets, and a suite."""
    for config in ("1k", "4k"):
        rows = [
            {
                "input": f"Mary went to the garden. {config} {n}",
                "question": "Where is Mary?",
                "target": "garden",
            }
            for n in range(5)
        ]
        write(tmp_path / "data" / "RMT-team__babilong-1k-samples" / config / "qa1.parquet", rows)
    chat = json.dumps([{"role": "user", "content": "Prepend Z to the 1st riddle."}])
    chats = [
        {
            "prompt": chat,
            "answer": f"Zriddle {n}",
            "random_string_to_prepend": "Z",
            "n_needles": needles,
            "desired_msg_index": 0,
            "total_messages": 1,
            "n_chars": n,
        }
        for n in (100, 24576, 24577, 40000, 50000)
        for needles in (2, 4)
    ]
    write(tmp_path / "data" / "openai__mrcr" / "default" / "train.parquet", chats)
    (tmp_path / "s.yaml").write_text(SUITE)
    return tmp_path


def test_lengths_that_no_checkpoint_reads_are_left_out_by_name(crew: Any, folder: Path) -> None:
    crew.positions = 8192
    out = folder / "run"
    evaluate_quietly(suite=folder / "s.yaml", checkpoints=["a"], out=out, data=folder / "data")
    manifest = read_json(out / "run.json")
    assert manifest["left_out"].keys() == {"mrcr_2needle@16384"}
    protocols = {each["name"]: each["protocols"] for each in manifest["benchmarks"]}
    assert protocols["babilong_qa1"]["generation"]["documents"] == {"1152": 3, "4608": 3}
    assert protocols["mrcr_2needle"]["generation"]["documents"] == {"8192": 2}
    chosen, written = (
        read_run_scores(out, "babilong_qa1", protocol) for protocol in ("loglikelihood", "generation")
    )
    assert sorted(chosen["doc_id"]) == sorted(written["doc_id"])
    assert sorted(chosen["context"]) == [1152] * 3 + [4608] * 3
    assert chosen["chance"].tolist() == pytest.approx([1 / 6] * 6)
    assert read_run_scores(out, "mrcr_2needle", "generation")["context"].tolist() == [8192, 8192]
