"""`evalsuite show benchmark --sample`: prompts as models receive them."""

from pathlib import Path

import pytest

from evalsuite.evaluator.samples import samples
from evalsuite.foundation import ConfigError
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.documents import documents


def test_both_protocols_show_the_prompt_and_what_is_expected(tiny: Path) -> None:
    text = samples("pocket_facts", 2, checkpoint=str(tiny))
    for document in documents(load_benchmark("pocket_facts"), limit=2):
        assert text.count(document.doc_id) == 2
        assert text.count(document.row["prompt"]) == 2
        for choice in document.row["choices"]:
            assert f"▸{choice!r}" in text
    assert "up to 8 tokens, until '\\n'" in text


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="--sample 0"):
        samples("pocket_facts", 0)
