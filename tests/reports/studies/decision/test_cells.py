"""Cells of the deciding study from score rows: paired documents, contexts, missing ones."""

import pytest

from evalsuite.foundation import DataError
from evalsuite.reports.studies.decision.cells import cell, needle_cells, read_scores, short_task_cells
from evalsuite.reports.studies.decision.effects import Run
from evalsuite.reports.studies.decision.protocol import load_protocol
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run
from tests.reports.score_edits import edit_rows
from tests.reports.studies.decision.ids import with_common_ids

LABELS = {"kda-seed0": Run("kda", 0), "kda-seed1": Run("kda", 1)}


def test_documents_are_those_that_the_teacher_has_in_every_way():
    found = {
        "plain": {"t": {"a": 1.0, "b": 0.0, "c": 1.0}, "kda-seed0": {"a": 1.0, "b": 1.0, "c": 0.0}},
        "padded": {"t": {"a": 0.0, "b": 1.0}, "kda-seed0": {"b": 0.0, "a": 1.0, "z": 1.0}},
    }
    chance = {"plain": 0.25, "padded": 0.25}
    made = cell("task", found, chance, "t", {"kda-seed0": Run("kda", 0)})
    assert made.documents == 2
    assert made.teacher["plain"].tolist() == [1, 0]
    assert made.runs[Run("kda", 0)]["padded"].tolist() == [1, 0]
    with pytest.raises(DataError, match="'kda-seed1' lacks 2 of 2 documents by plain"):
        cell("task", found, chance, "t", LABELS)
    with pytest.raises(DataError, match="the teacher 'x' has no document in all of plain, padded"):
        cell("task", found, chance, "x", {})


def test_cells_are_read_from_the_rows_of_a_run(tmp_path):
    """Every fourth needle benchmark has its own share of right documents."""
    protocol = load_protocol()
    tasks, halves = protocol.needles.tasks, protocol.needles.halves
    protocol = protocol.model_copy(
        update={
            "needles": protocol.needles.model_copy(update={"contexts": [512, 1024]}),
            "ways": {name: way for name, way in protocol.ways.items() if way.metric != "exact_match"},
        }
    )
    names = {way.benchmark.format(task=task, half="") for task in tasks for way in protocol.ways.values()}
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark(name, name, "recall", 40, 0.25, contexts=(512, 1024)) for name in sorted(names)],
        [
            SyntheticCheckpoint("t", lambda b, p, c: 0.9, "teacher"),
            *(
                SyntheticCheckpoint(label, lambda b, p, c: 0.2 if p == "generation" else 0.7)
                for label in LABELS
            ),
        ],
    )
    # The documents of a synthetic benchmark are its own; those of needles are the same in all ways.
    for name in names:
        for each in ("loglikelihood", "generation"):
            edit_rows(run, name, each, with_common_ids())
    cells = needle_cells(run, protocol, "exploratory", "t", LABELS)
    assert [each.name for each in cells] == [f"{task} {context}" for task in tasks for context in (512, 1024)]
    first = cells[0]
    assert first.documents == 40
    assert set(first.runs) == set(LABELS.values())
    rows = read_scores(run, f"{tasks[0]}_inside", "generation", "accuracy", 512)
    assert sorted(first.runs[Run("kda", 0)]["generated"]) == sorted(rows["kda-seed0"].values())
    assert first.runs[Run("kda", 0)]["generated"].mean() < first.runs[Run("kda", 0)]["inside"].mean()
    assert halves["heldout"]
    with pytest.raises(DataError, match="no document in all of"):
        needle_cells(run, protocol, "heldout", "t", LABELS)
    with pytest.raises(DataError, match="arc_easy: the teacher 't' has no document"):
        short_task_cells(run, protocol, "t", LABELS)
