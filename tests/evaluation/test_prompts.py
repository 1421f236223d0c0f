"""`evalsuite show benchmark --sample`: prompts as models receive them."""

from pathlib import Path

import pytest

from evalsuite.evaluation.prompts import sample_prompts
from evalsuite.foundation import ConfigError
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents


def test_sample_prompts_of_both_protocols(tiny: Path) -> None:
    text = sample_prompts("pocket_facts", 2, checkpoint=str(tiny))
    for document in documents(load_benchmark("pocket_facts"), limit=2):
        assert text.count(document.doc_id) == 2
        assert text.count(document.row["prompt"]) == 2
        for choice in document.row["choices"]:
            assert f"▸{choice!r}" in text
    assert "up to 8 tokens, until '\\n'" in text


def test_sample_prompts_refuse_count_below_1() -> None:
    with pytest.raises(ConfigError, match="--sample 0"):
        sample_prompts("pocket_facts", 0)
