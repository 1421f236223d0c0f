"""Parity with lm-pub-quiz's own run on BEAR (it is no dependency of evalsuite), with a tiny checkpoint."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import MissingDependencyError
from evalsuite.models.checkpoints.load import load_checkpoint
from evalsuite.tasks.benchmark import load_benchmark
from tests.evaluation.runs import evaluate_quietly
from tests.parity.harness_scores import compare
from tests.parity.lm_pub_quiz import is_bear

SUITE = "name: s\ntitle: S\nbenchmarks: [bear]\n"
PLACES = ["Oslo", "Bergen", "Aven on the long river"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two relations in BEAR's columns; the second names its answer before its subject."""
    templates = {
        "P1": ["[X] lives in [Y].", "The home of [X] is [Y]."],
        "P2": ["[Y] is where [X] was born.", "x [X] [Y]"],
    }
    facts = [
        {
            "relation": relation,
            "sub_id": f"Q{number}",
            "sub_label": f"name {number}",
            "sub_aliases": [],
            "obj_id": f"A{number % 3}",
            "obj_label": PLACES[number % 3],
            "answer_idx": number % 3,
        }
        for relation in templates
        for number in range(7)
    ]
    relations: list[dict[str, Any]] = [
        {
            "relation": relation,
            "templates": texts,
            "answer_space_labels": PLACES,
            "answer_space_ids": ["A0", "A1", "A2"],
        }
        for relation, texts in templates.items()
    ]
    folder = tmp_path / "data" / "lm-pub-quiz__BEAR" / "BEAR"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(facts), folder / "test.parquet")
    pq.write_table(pa.Table.from_pylist(relations), folder / "relations.parquet")
    return tmp_path / "data"


def test_bear_accuracy_equals_lm_pub_quiz(tiny: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    evaluate_quietly(suite=tmp_path / "s.yaml", checkpoints=[str(tiny)], out=tmp_path / "run", data=data)
    checkpoint = load_checkpoint(tiny, dtype="float32")
    if find_spec("lm_pub_quiz") is None:
        with pytest.raises(MissingDependencyError, match="pip install lm-pub-quiz, or name the other bench"):
            list(compare(tmp_path / "run", checkpoint, data))
        pytest.skip("lm-pub-quiz is not installed")
    (row,) = compare(tmp_path / "run", checkpoint, data)
    assert (row.benchmark, row.metric, row.documents, row.harness) == ("bear", "acc", 14, "lm-pub-quiz")
    assert row.ours == row.reference


def test_is_bear() -> None:
    assert is_bear(load_benchmark("bear"))
    assert not is_bear(load_benchmark("wikitext"))
