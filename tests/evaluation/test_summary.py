"""What a run prints: every score is what its metric's name says."""

from pathlib import Path

import pandas as pd
import pytest

from evalsuite.evaluation.run import Summary


def test_summary_prints_perplexities() -> None:
    row = {"label": "a", "main": True, "context": None, "protocol": "loglikelihood", "documents": 2}
    scores = pd.DataFrame(
        [
            row | {"benchmark": "wikitext", "metric": "word_perplexity", "direction": "lower", "score": 3.62},
            row | {"benchmark": "piqa", "metric": "acc", "direction": "higher", "score": 0.62},
        ]
    )
    told = [line.split() for line in str(Summary(run=Path("runs/a"), scores=scores)).splitlines()]
    found = {line[0]: float(line[-1]) for line in told if line and line[0] in ("wikitext", "piqa")}
    assert found == {"wikitext": pytest.approx(37.338), "piqa": 0.62}
    assert scores["score"].tolist() == [3.62, 0.62]
