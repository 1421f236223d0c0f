"""Lineage: distinct tokens over the stages, and the whole chain of checkpoints that a student comes from."""

import json
import shutil
from types import SimpleNamespace

import datasets
import pytest
import torch

from evalsuite.distill import distill
from evalsuite.distill.training import trainer
from evalsuite.models import MIXERS, weights_id


def read_lineage(folder):
    return json.loads((folder / "lineage.json").read_text())


@pytest.fixture
def batches(monkeypatch):
    """The input ids of every step."""
    found, prefetch = [], trainer.prefetch

    def recording(loader, **options):
        for batch in prefetch(loader, **options):
            found.append(torch.cat([each.input_ids for each in batch.micro_batches]))
            yield batch

    monkeypatch.setattr(trainer, "prefetch", recording)
    return found


def test_every_stage_reads_new_text(teacher_folder, tmp_path, small_recipe, batches):
    recipe = small_recipe(teacher_folder)
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    rows = [tuple(row.tolist()) for batch in batches for row in batch]
    assert len(rows) == 3 * 4 * 2
    assert len(set(rows)) == len(rows)
    lineage = read_lineage(folder)
    assert (lineage["tokens"], lineage.get("distinct_tokens")) == (1536, 1536)
    assert lineage["mixer_titles"] == {name: MIXERS[name].display_name for name in lineage["mixers"]}


def test_a_stage_can_restart_its_sources(teacher_folder, tmp_path, small_recipe, stage, batches):
    stages = [stage("mixer", "attention_output"), stage("kd", "kd", tokens=1024, restart_data=True)]
    (folder,) = distill(
        small_recipe(teacher_folder, stages=stages), tmp_path / "out", quiet=True, device="cpu"
    )
    assert torch.equal(batches[0], batches[4])
    lineage = read_lineage(folder)
    assert (lineage["tokens"], lineage["distinct_tokens"]) == (1536, 1024)


def test_chunks_that_are_written_twice_are_distinct_once(teacher_folder, tmp_path, small_recipe, stage):
    """In each of two stages, 256 of 512 tokens come from a source that writes chunks of 8 twice."""
    pocket = {"kind": "pocket", "max_haystack_tokens": 128}
    recipe = small_recipe(
        teacher_folder,
        data={"plain": pocket, "twice": {**pocket, "seed": 1, "repeat_chunk_tokens": 8}},
        stages=[stage(name, "kd", data={"plain": 1, "twice": 1}) for name in ("first", "second")],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    lineage = read_lineage(folder)
    assert lineage["tokens"] == 1024
    # Each stage may end after a first copy of at most 8 tokens whose second one is not read.
    assert 512 + 256 <= lineage["distinct_tokens"] <= 512 + 256 + 2 * 4
    counts = f"1,024 tokens, {lineage['distinct_tokens']} of them distinct"
    assert counts in (folder / "README.md").read_text()


@pytest.mark.parametrize("pinned", [None, "9f9f"])
def test_commits_of_teacher_and_data_are_recorded(
    teacher_folder, tmp_path, small_recipe, stage, monkeypatch, pinned
):
    """Of hub data the pinned commit, or else the current one."""
    rows = [{"text": f"Document {number} " + "has words " * 20} for number in range(50)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    load = datasets.load_dataset_builder

    def load_dataset_builder(name, config, *, revision):
        assert (name, revision) == ("org/name", pinned or "5e5e")
        return load(str(tmp_path / "data"), config)

    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)
    info = SimpleNamespace(sha="5e5e")
    hub = SimpleNamespace(dataset_info=lambda name: info)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: hub)
    teacher = tmp_path / "models--org--teacher" / "snapshots" / "1a2b"
    shutil.copytree(teacher_folder, teacher)
    recipe = small_recipe(
        teacher,
        data={
            "hub": {"kind": "hub", "dataset": "org/name", "revision": pinned},
            "pocket": {"kind": "pocket", "max_haystack_tokens": 128},
        },
        stages=[stage("kd", "kd", data={"hub": 1, "pocket": 1})],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    lineage = read_lineage(folder)
    assert lineage["teacher"]["revision"] == "1a2b"
    assert lineage["data_revisions"] == {"hub": pinned or "5e5e"}


def test_a_student_of_a_student_names_its_whole_chain(teacher_folder, tmp_path, small_recipe, stage):
    """teacher → first → second → third, and another student with the second as its teacher."""
    stages = [stage("kd", "kd")]
    folders = []
    for number, name in enumerate(("first", "second", "third")):
        student = {"initial_checkpoints": {"gated_deltanet": str(folders[-1])}} if folders else {}
        teacher = teacher_folder if number < 2 else None
        objective = [stage("tune", "sft")] if teacher is None else stages
        recipe = small_recipe(teacher, name=name, student=student, stages=objective)
        folders += distill(recipe, tmp_path / name, quiet=True, device="cpu")
    lineages = [read_lineage(folder) for folder in folders]
    assert [lineage.get("total_tokens") for lineage in lineages] == [512, 1024, 1536]
    chain = lineages[2]["ancestors"]
    assert [each["recipe"]["name"] for each in chain] == ["first", "second"]
    assert [each["weights_id"] for each in chain] == [weights_id(folder) for folder in folders[:2]]
    assert [[stage["name"] for stage in each["stages"]] for each in chain] == [["kd"], ["kd"]]
    assert {each["teacher"]["weights_id"] for each in chain} == {weights_id(teacher_folder)}
    assert lineages[0]["ancestors"] == lineages[0]["teacher"]["ancestors"] == []
    recipe = small_recipe(
        folders[1],
        name="fourth",
        student={"initial_checkpoints": {"gated_deltanet": str(folders[0])}},
        stages=stages,
    )
    (last,) = distill(recipe, tmp_path / "fourth", quiet=True, device="cpu")
    lineage = read_lineage(last)
    assert [each["recipe"]["name"] for each in lineage["ancestors"]] == ["first"]
    assert [each["recipe"]["name"] for each in lineage["teacher"]["ancestors"]] == ["first", "second"]
    assert lineage["teacher"]["ancestors"][-1]["weights_id"] == lineage["teacher"]["weights_id"]
