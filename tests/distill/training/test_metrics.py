"""The loss curve in the folder of a finished student."""

import shutil
from math import hypot

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from evalsuite.distill import distill
from evalsuite.distill.training.metrics import loss_curve
from evalsuite.distill.training.optim import components
from evalsuite.foundation import read_jsonl
from evalsuite.models import weights_id


def test_a_finished_student_stores_its_loss_curve(teacher_folder, small_recipe, stage, tmp_path):
    recipe = small_recipe(
        teacher_folder,
        student={"mixers": ["linear_attention", "retnet"]},
        stages=[stage("mixer", "attention_output", tokens=384), stage("kd", "kd", tokens=384)],
    )
    out = tmp_path / "out"
    folders = distill(recipe, out, quiet=True, device="cpu")
    metrics = list(read_jsonl(out / "metrics.jsonl"))
    for folder in folders:
        rows = list(read_jsonl(folder / "training.jsonl"))
        mine = [row for row in metrics if row["student"] == folder.name]
        assert [(row["stage"], row["tokens"]) for row in rows] == [
            (name, start + 128 * step) for name, start in (("mixer", 128), ("kd", 512)) for step in range(3)
        ]
        for row, logged in zip(rows, mine, strict=True):
            components = {"ce", "kl"} if row["stage"] == "kd" else set()
            assert row.keys() == {"stage", "tokens", "loss", "lr", "seconds"} | components
            for name in row.keys() - {"stage"}:
                assert row[name] == pytest.approx(logged[name], rel=5e-4 if name == "lr" else 5e-6), name
        bare = shutil.copytree(folder, tmp_path / folder.name)
        (bare / "training.jsonl").unlink()
        assert weights_id(bare) == weights_id(folder)
    # Intermediate checkpoints are points on the same curve.
    assert {path.name for path in (out / "checkpoints" / "retnet").iterdir()} == {"mixer-384"}
    assert not list((out / "checkpoints").rglob("training.jsonl"))


def test_a_loss_curve_is_rounded_and_belongs_to_one_student():
    logged = {"stage": "kd", "step": 0, "tokens": 64, "loss": 1 / 3, "ce": 200000 / 3, "kl": 2e-9 / 3}
    logged |= {"grad_norm": 1.0, "lr": 1e-3 / 3, "seconds": 12.345}
    rows = [logged | {"student": name} for name in ("gla", "gla-seed1")]
    (row,) = loss_curve(rows, "gla")
    assert list(row.items()) == [
        ("stage", "kd"),
        ("tokens", 64),
        ("loss", 0.333333),
        ("ce", 66666.7),
        ("kl", 6.66667e-10),
        ("lr", 0.0003333),
        ("seconds", 12.345),
    ]
    assert loss_curve(rows, "retnet") == []


def test_checkpoints_at_token_intervals_and_tracked_metrics(teacher_folder, tmp_path, small_recipe, stage):
    recipe = small_recipe(
        teacher_folder,
        stages=[stage("kd", "kd", tokens=1280)],
        checkpoint={"save_tokens": 300},
        track="tensorboard",
    )
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    names = {path.name for path in (tmp_path / "out" / "checkpoints" / "gated_deltanet").iterdir()}
    assert names == {"kd-384", "kd-640", "kd-1024"}
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    rows = list(read_jsonl(tmp_path / "out" / "metrics.jsonl"))
    assert len(rows) == 10
    for name in ("loss", "ce", "kl", "grad_norm", "lr"):
        found = events.Tensors(f"gated_deltanet/{name}")
        assert [event.step for event in found] == [row["tokens"] for row in rows]
        values = [make_ndarray(event.tensor_proto).item() for event in found]
        assert values == pytest.approx([row[name] for row in rows], rel=1e-6)


def test_gradient_norms_of_components_make_up_the_whole(teacher_folder, tmp_path, small_recipe, stage):
    """Their squares add up; a stage logs the components that it trains."""
    students = {"mixers": ["linear_attention", "gla"]}
    stages = [stage("mixer", "attention_output"), stage("kd", "kd")]
    plain = small_recipe(teacher_folder, student=students, stages=stages)
    logged = plain.model_copy(update={"log_grad_norms": True})
    assert plain.hash == logged.hash
    found = {}
    for name, recipe in (("plain", plain), ("logged", logged)):
        distill(recipe, tmp_path / name, quiet=True, device="cpu")
        found[name] = list(read_jsonl(tmp_path / name / "metrics.jsonl"))
    for row, expected in zip(found["logged"], found["plain"], strict=True):
        assert row | expected | {"seconds": 0} == row | {"seconds": 0}
        norms = {key.removeprefix("grad_norm_"): row[key] for key in row.keys() - expected.keys()}
        trained = {"mixers"} if row["stage"] == "mixer" else {"embedding", "mixers", "mlps", "norms"}
        assert norms.keys() == trained
        assert min(norms.values()) > 0
        assert hypot(*norms.values()) == pytest.approx(row["grad_norm"], rel=1e-5)


def test_components_of_a_model_with_a_head_of_its_own():
    names = {
        "model.embed_tokens.weight": "embedding",
        "model.layers.3.self_attn.o_norm.weight": "mixers",
        "model.layers.3.mlp.up_proj.weight": "mlps",
        "model.layers.3.input_layernorm.weight": "norms",
        "model.norm.weight": "norms",
        "lm_head.weight": "head",
    }
    found = components(names)
    assert {name: component for component, members in found.items() for name in members} == names
