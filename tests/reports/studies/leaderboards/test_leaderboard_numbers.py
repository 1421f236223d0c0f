"""The published leaderboards against scores averaged by other code, and ranks of gaps in docs/results.md."""

import re
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import spearmanr

from evalsuite.reports.formatting import tokens
from evalsuite.reports.studies.leaderboards.gap_ranks import NAMED, settings
from evalsuite.reports.studies.leaderboards.leaderboard_numbers import (
    FIRST,
    SECOND,
    agreement,
    chance_of,
    choices_of,
    macro,
    needles_of,
    retained,
    scores_of,
)


@pytest.mark.parametrize(("page", "count"), [(FIRST, 25), (SECOND, 35)], ids=["first", "second"])
def test_leaderboard_counts_each_request_once_and_none_that_is_barred(page: Path, count: int) -> None:
    table = pd.read_csv(page / "leaderboard.csv")
    table = table[(table["protocol"] == "loglikelihood") & (table["scope"] == "informative")]
    run = page / "samples"
    scores, chance = scores_of(run), chance_of(run)
    means = macro(scores)
    (teacher,) = table.loc[table["role"] == "teacher", "label"]
    students = table[table["role"] == "student"].set_index("label")
    assert len(students) == count
    own = means[students.index]
    assert students["recovery"].to_numpy() == pytest.approx((own / means[teacher]).to_numpy(), abs=1e-9)
    lead = (own - chance) / (means[teacher] - chance)
    assert students["chance_normalized_recovery"].to_numpy() == pytest.approx(lead.to_numpy(), abs=1e-9)
    kept = [retained(scores, student, teacher) for student in students.index]
    assert students["retained"].to_numpy() == pytest.approx(kept, abs=1e-9)
    choices = choices_of(run)
    same = [agreement(choices, student, teacher) for student in students.index]
    assert students["agreement"].to_numpy() == pytest.approx(same, abs=1e-9, nan_ok=True)
    needles = needles_of(run).loc[students.index]
    text = (page / "report.md").read_text()
    rhos = re.findall(rf"needles in (\w+) tokens: ([\d.]+) over {count} students", text)
    mine = {tokens(c): f"{spearmanr(own, needles[c]).statistic:.2f}" for c in needles}
    assert dict(rhos) == mine


def test_settings_that_the_results_name_are_those_of_the_study() -> None:
    ranks = {}
    for study, named in NAMED.items():
        rows = settings(study)
        (mine,) = (row for row in rows if row[:2] == named)
        ranks[study] = [sorted(rows, key=lambda row: -row[i]).index(mine) + 1 for i in (2, 3)], len(rows)
    assert ranks == {"pocket-10m": ([13, 29], 29), "smollm2": ([1, 1], 12)}
