"""What a run prints: every score is what its metric's name says."""

from pathlib import Path

import pandas as pd

from evalsuite.evaluation.run import Summary


def test_summary_prints_perplexities() -> None:
    row = {"label": "a", "main": True, "context": None, "protocol": "loglikelihood", "documents": 2}
    scores = pd.DataFrame(
        [
            row | {"benchmark": "wikitext", "metric": "word_perplexity", "direction": "lower", "score": 3.62},
            row | {"benchmark": "lambada", "metric": "perplexity", "direction": "lower", "score": 135.0},
            row | {"benchmark": "piqa", "metric": "acc", "direction": "higher", "score": 0.62},
        ]
    )
    told = [line.split() for line in str(Summary(run=Path("runs/a"), scores=scores)).splitlines()]
    found = {line[0]: line[-1] for line in told if line and line[0] in ("wikitext", "lambada", "piqa")}
    assert found == {"wikitext": "37.338", "lambada": "4.26e+58", "piqa": "0.620"}
    assert scores["score"].tolist() == [3.62, 135.0, 0.62]
