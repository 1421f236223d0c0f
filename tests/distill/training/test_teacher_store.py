"""Teacher stores: the same losses as with the teacher, resumable, and refused where they do not fit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evalsuite.cli import main
from evalsuite.distill import Recipe, distill, dry_run, write_recipe
from evalsuite.distill.data.loader import StageDataLoader
from evalsuite.distill.data.teacher_store import MANIFEST, TeacherStore
from evalsuite.distill.recipe.config import CheckpointConfig
from evalsuite.distill.training import builders, teacher_stores
from evalsuite.distill.training.teacher_stores import make_stores
from evalsuite.foundation import ConfigError, DataError, file_hash, read_jsonl
from evalsuite.models import load_checkpoint
from tests.distill.conftest import TINY
from tests.distill.random_models import build_random_model
from tests.distill.stage_data import interrupted, stage_data

TOP = {"top_k": 8, "tail": "bucket"}


@pytest.fixture
def with_store(small_recipe: Any, stage: Any, teacher_folder: Path, tmp_path: Path) -> Any:
    """Factory of recipes: alignment on the same data, then kd from a store of 8 tokens."""

    def make(folder: str | None = "store", teacher: Path = teacher_folder, **changes: Any) -> Recipe:
        store = {} if folder is None else {"teacher_store": str(tmp_path / folder)}
        kd = stage("kd", "kd", **{"packing": "documents", "loss": TOP, **store, **changes})
        return small_recipe(teacher, stages=[stage("align", "attention_output", tokens=256), kd])

    return make


def curve(out: Path) -> list[tuple[float, ...]]:
    rows = read_jsonl(out / "metrics.jsonl")
    return [(row["tokens"], row["loss"], row["grad_norm"]) for row in rows if row["stage"] == "kd"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss_mask": "completion", "packing": "concat", "loss": {**TOP, "temperature": 2.0}},
        {"loss": {**TOP, "direction": "reverse", "ce": 0.5, "ce_tokens": "teacher_right"}},
        {"loss": {**TOP, "tail": "renormalize"}, "token_weights": {"copied": 3.0}, "micro_batch_size": 1},
        {"loss": {"kl": 0.0, "ce": 1.0, "ce_tokens": "teacher_right"}},
    ],
    ids=["bucket", "completions", "reverse", "renormalize", "argmax"],
)
def test_losses_are_those_with_the_teacher(with_store: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    stored, live = with_store(**changes), with_store(None, **changes)
    list(make_stores(stored, quiet=True))
    for name, recipe in (("a", stored), ("b", live)):
        distill(recipe, tmp_path / name, quiet=True, device="cpu")
    for found, expected in zip(curve(tmp_path / "a"), curve(tmp_path / "b"), strict=True):
        assert found == pytest.approx(expected, rel=2e-3)
    lineage = json.loads((tmp_path / "a/gated_deltanet/lineage.json").read_text())
    assert lineage["stages"][1]["teacher_store"] == TeacherStore(tmp_path / "store").id(8)


def test_fewer_tokens_than_stored_are_those_of_a_smaller_store(with_store: Any, tmp_path: Path) -> None:
    small = with_store("small", loss={**TOP, "top_k": 3})
    list(make_stores(with_store(), quiet=True))
    list(make_stores(small, quiet=True))
    large = with_store(loss={**TOP, "top_k": 3})
    for name, recipe in (("a", large), ("b", small)):
        distill(recipe, tmp_path / name, quiet=True, device="cpu")
    for found, expected in zip(curve(tmp_path / "a"), curve(tmp_path / "b"), strict=True):
        assert found == pytest.approx(expected, rel=1e-3)


def test_weights_of_a_teacher_that_no_stage_runs_are_not_read(
    with_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_store()
    list(make_stores(recipe, quiet=True))
    (student,) = distill(recipe, tmp_path / "a", quiet=True, device="cpu")
    opened, found = [], load_checkpoint
    monkeypatch.setattr(
        "evalsuite.models.load_checkpoint", lambda path, **_: opened.append(path) or found(path)
    )
    kd = recipe.stages[1].model_copy(update={"restart_data": True, "teacher_store": str(tmp_path / "kd")})
    start = recipe.student.model_copy(update={"initial_checkpoints": {"gated_deltanet": str(student)}})
    changed = recipe.model_copy(update={"stages": [kd], "student": start})
    list(make_stores(changed, quiet=True))
    opened.clear()
    models = builders.build_models(changed, torch.device("cpu"), share_frozen=True)
    assert (opened, models.teacher) == ([str(student)], None)
    assert models.teacher_lineage is not None
    distill(changed, tmp_path / "b", quiet=True, device="cpu")
    with_teacher = dry_run(with_store(None), device="cpu").stages[1]
    stored = dry_run(changed, device="cpu").stages[0]
    assert stored.flops < with_teacher.flops
    assert stored.memory < with_teacher.memory
    assert stored.store == 512 * (4 * 8 + 4)


def test_a_run_resumes_bit_by_bit_and_with_its_own_store_only(with_store: Any, tmp_path: Path) -> None:
    recipe = with_store()
    list(make_stores(recipe, quiet=True))
    distill(recipe, tmp_path / "whole", quiet=True, device="cpu")
    saved = recipe.model_copy(update={"checkpoint": CheckpointConfig(state_interval_seconds=0)})
    interrupted(saved, tmp_path / "out", steps=4)  # two of each stage
    other = with_store("other", loss={**TOP, "top_k": 9})
    list(make_stores(other, quiet=True))
    moved = recipe.stages[1].model_copy(update={"teacher_store": str(tmp_path / "other")})
    stages = [recipe.stages[0], moved]
    with pytest.raises(ConfigError, match="is another store"):
        distill(recipe.model_copy(update={"stages": stages}), tmp_path / "out", quiet=True, device="cpu")
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    assert curve(tmp_path / "out") == curve(tmp_path / "whole")


def test_an_interrupted_store_is_refused_and_continued(
    with_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_stores, "PART_BYTES", 64 * 36 * 3)
    list(make_stores(with_store("whole"), quiet=True))
    draw, drawn = StageDataLoader.draw, []

    def interrupted(self: StageDataLoader, count: int) -> Any:
        drawn.append(count)
        if len(drawn) == 5:
            raise KeyboardInterrupt
        return draw(self, count)

    with monkeypatch.context() as patch:
        patch.setattr(StageDataLoader, "draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(make_stores(with_store(), quiet=True))
    with pytest.raises(ConfigError, match=r"has 6 of the stage's 8 sequences.*--make-stores"):
        distill(with_store(), tmp_path / "out", quiet=True, device="cpu")
    list(make_stores(with_store(), quiet=True))
    whole, found = (TeacherStore(tmp_path / name) for name in ("whole", "store"))
    assert found.parts == whole.parts
    assert len(found.parts) == 3
    before = found.id(8)
    list(make_stores(with_store(tokens=1024), quiet=True))
    longer = TeacherStore(tmp_path / "store")
    assert (longer.sequences, longer.id(8)) == (16, before)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seq_len": 32}, "seq_len 64, not 32"),
        ({"packing": "concat"}, "packing documents, not concat"),
        ({"restart_data": True}, "earlier stages"),
        ({"loss": {**TOP, "temperature": 2.0}}, "temperature 1.0, not 2.0"),
        ({"loss": {**TOP, "top_k": 9}}, "has the 8 most likely tokens, and loss.top_k is 9"),
        ({"tokens": 1024}, "has 8 of the stage's 16 sequences"),
        ({"seed": 3}, "seed 0, not 3"),
        (
            {"data": {"pocket": {"kind": "pocket", "max_haystack_tokens": 96}}},
            "max_haystack_tokens 128, not 96",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_store_of_other_settings_is_refused_by_name(
    with_store: Any, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    list(make_stores(with_store(), quiet=True))
    of_recipe = {key: changes[key] for key in ("seed", "data") if key in changes}
    recipe = with_store(**{key: value for key, value in changes.items() if key not in of_recipe})
    recipe = Recipe.model_validate({**recipe.model_dump(), **of_recipe})
    with pytest.raises(ConfigError) as refused:
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    assert named in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_store_of_another_teacher_is_refused(with_store: Any, tmp_path: Path, tokenizer: Any) -> None:
    build_random_model(TINY, len(tokenizer), tokenizer, seed=1).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    list(make_stores(with_store(), quiet=True))
    with pytest.raises(ConfigError, match=r"other settings: teacher \w+, not \w+"):
        distill(with_store(teacher=tmp_path / "other"), tmp_path / "out", quiet=True, device="cpu")


def test_each_process_reads_the_output_on_its_own_sequences(with_store: Any, tokenizer: Any) -> None:
    recipe, read = with_store(), []

    def targets(number: int, sequence: Any) -> Any:
        read.append(number)
        return np.zeros((0, 8), np.int32), np.zeros((0, 9), np.float32)

    for rank in (0, 1):
        loader = stage_data(recipe, tokenizer, recipe.stages[1], rank=rank, world_size=2, targets=targets)
        next(loader), next(loader)
    assert read == [0, 2, 1, 3]


def damage(folder: Path, how: str) -> None:
    file = folder / "part-00000.npy"
    if how == "truncated":
        file.write_bytes(file.read_bytes()[:-8])
    elif how == "flipped":
        file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    elif how == "manifest":
        (folder / MANIFEST).write_text("{")
    else:
        sequences = folder / "part-00000.sequences.npy"
        about = np.load(sequences)
        about["crc32"][1] ^= 1
        np.save(sequences, about)
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["parts"][0]["files"][sequences.name]["sha256"] = file_hash(sequences)
        (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", r"part-00000.npy: is missing or truncated"),
        ("flipped", r"part-00000.npy: differs from its checksum"),
        ("manifest", r"manifest.json: not JSON"),
        ("data", r"sequence 1 differs, although all settings are the same"),
    ],
)
def test_damage_is_refused(with_store: Any, tmp_path: Path, how: str, message: str) -> None:
    list(make_stores(with_store(), quiet=True))
    damage(tmp_path / "store", how)
    with pytest.raises(DataError, match=message):
        distill(with_store(), tmp_path / "out", quiet=True, device="cpu")


@pytest.mark.parametrize(
    ("loss", "message"),
    [({}, "set loss: {top_k: 64, tail: bucket}"), ({"kl": 0.0, "ce": 1.0}, "does not depend on the teacher")],
)
def test_losses_that_no_store_serves_are_refused(with_store: Any, loss: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_store(loss=loss)


def test_the_command_makes_stores(
    with_store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(write_recipe(with_store()))
    assert main(["distill", str(path), "--make-stores", "--quiet"]) == 0
    assert "500 loss tokens, 37 bytes each; mass outside of the 8" in capsys.readouterr().out
    without = with_store(None).model_dump()
    mixed = {**without, "variants": {"stored": {"stage.kd.teacher_store": str(tmp_path / "of-variant")}}}
    path.write_text(write_recipe(Recipe.model_validate(mixed)))
    assert main(["distill", str(path), "--variants", "all", "--make-stores", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert f"{tmp_path / 'of-variant'}: 500 loss tokens" in shown
    assert "no stage names a teacher store: small" in shown
    recipe = with_store(None)
    assert recipe.hash != with_store().hash == with_store("elsewhere").hash
    path.write_text(write_recipe(recipe))
    assert main(["distill", str(path), "--make-stores", "--quiet"]) >= 64
    assert "no stage names a teacher store" in capsys.readouterr().err
