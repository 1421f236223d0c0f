"""Whole runs on a tiny teacher: order of stages, lineage, resume after a kill, and refusals."""

import json
import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from evalsuite.distill import Recipe, TrainingError, distill
from evalsuite.distill.batches import Batch, StageData, StepData
from evalsuite.distill.parallel import Parallel
from evalsuite.distill.recipe import Saving, Stage
from evalsuite.distill.step import Stepper, Trainee
from evalsuite.foundation import CheckpointError, ConfigError, RunFolderError, read_jsonl
from evalsuite.models import build_student, load_checkpoint, weights_id

MIXERS = ["linear_attention", "gated_deltanet"]


def curves(out: Path) -> list[tuple]:
    return [
        (row["stage"], row["step"], row["student"], row["loss"], row["grad_norm"])
        for row in read_jsonl(out / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, teacher_folder, small_recipe):
    """One undisturbed run of two students."""
    torch.set_num_threads(1)
    recipe = small_recipe(teacher_folder, student={"mixers": MIXERS})
    out = tmp_path_factory.mktemp("run") / "out"
    return recipe, out, distill(recipe, out, quiet=True, device="cpu")


def test_a_run_leaves_loadable_students_with_their_lineage(finished, teacher_folder):
    recipe, out, folders = finished
    assert folders == [out / mixer for mixer in MIXERS]
    for folder, mixer in zip(folders, MIXERS, strict=True):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.mixers == [mixer] * 3
        told = json.loads((folder / "lineage.json").read_text())
        assert told["teacher"] == {"path": str(teacher_folder), "weights_id": weights_id(teacher_folder)}
        assert told["recipe"]["hash"] == recipe.hash
        assert [(stage["name"], stage["objective"], stage["tokens"]) for stage in told["stages"]] == [
            ("mixer", "attention_output", 512),
            ("block", "hidden_state", 512),
            ("kd", "kd", 512),
        ]
        assert told["complete"]
        assert told["tokens"] == 1536
        assert told["versions"]["torch"]


def test_stages_come_in_order_and_all_students_see_all_steps(finished):
    _, out, _ = finished
    assert [row[:3] for row in curves(out)] == [
        (stage, step, mixer) for stage in ("mixer", "block", "kd") for step in range(4) for mixer in MIXERS
    ]


def test_each_stage_leaves_a_checkpoint_that_says_how_far_it_is(finished):
    _, out, _ = finished
    for mixer in MIXERS:
        assert {path.name for path in (out / "checkpoints" / mixer).iterdir()} == {"mixer-512", "block-1024"}
        told = json.loads((out / "checkpoints" / mixer / "mixer-512" / "lineage.json").read_text())
        assert not told["complete"]
        assert [stage["name"] for stage in told["stages"]] == ["mixer"]


def test_alignment_moves_mixers_only(finished, teacher_folder):
    _, out, _ = finished
    teacher = AutoModelForCausalLM.from_pretrained(teacher_folder).state_dict()
    student = AutoModelForCausalLM.from_pretrained(
        out / "checkpoints" / "gated_deltanet" / "block-1024"
    ).state_dict()
    for name, tensor in student.items():
        if ".self_attn." not in name:
            assert torch.equal(tensor, teacher[name]), name
    trained = AutoModelForCausalLM.from_pretrained(out / "gated_deltanet").state_dict()
    assert not torch.equal(trained["model.norm.weight"], teacher["model.norm.weight"])


def test_a_student_trained_with_others_equals_one_trained_alone(finished, tmp_path):
    recipe, out, _ = finished
    (alone,) = distill(recipe, tmp_path / "alone", mixers=["gated_deltanet"], quiet=True, device="cpu")
    shared = load_file(out / "gated_deltanet" / "model.safetensors")
    for name, tensor in load_file(alone / "model.safetensors").items():
        assert torch.equal(tensor, shared[name]), name


def test_a_finished_run_is_not_run_again(finished):
    recipe, out, folders = finished
    before = (out / "metrics.jsonl").read_bytes()
    assert distill(recipe, out, quiet=True, device="cpu") == folders
    assert (out / "metrics.jsonl").read_bytes() == before


def start(recipe: Recipe, out: Path) -> multiprocessing.Process:
    """The run in a process of its own; a fork, since importing torch takes longer than the run."""

    def run() -> None:
        try:
            distill(recipe, out, quiet=True, device="cpu")
        except KeyboardInterrupt:
            os._exit(130)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def states(out: Path) -> int:
    """How many training states were saved so far."""
    latest = out / "state" / "latest.json"
    return json.loads(latest.read_text())["number"] if latest.exists() else 0


def test_killed_anywhere_and_resumed_the_run_is_the_same_to_the_bit(finished, tmp_path):
    recipe, out, folders = finished
    always = recipe.model_copy(update={"saving": Saving(state_seconds=0)})
    again = tmp_path / "again"
    for after in (2, 5, 9):
        process = start(always, again)
        while states(again) < after and process.is_alive():
            time.sleep(0.002)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    distill(always, again, quiet=True, device="cpu")
    assert curves(again) == curves(out)
    for folder in folders:
        steps, expected = (
            [{**row, "seconds": None} for row in read_jsonl(each / "training.jsonl")]
            for each in (again / folder.name, folder)
        )
        assert steps == expected
        found = load_file(again / folder.name / "model.safetensors")
        for name, tensor in load_file(folder / "model.safetensors").items():
            assert torch.equal(found[name], tensor), name


def test_sigterm_saves_and_a_resume_goes_on(teacher_folder, tmp_path, small_recipe, stage):
    stages = [stage("align", "attention_output"), stage("kd", "kd", tokens=128 * 60)]
    recipe = small_recipe(teacher_folder, stages=stages)
    undisturbed, again = tmp_path / "undisturbed", tmp_path / "again"
    process = start(recipe, again)
    while states(again) < 1 and process.is_alive():
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    assert process.exitcode == 130
    assert states(again) == 2
    assert not (again / "gated_deltanet").exists()
    distill(recipe, again, quiet=True, device="cpu")
    distill(recipe, undisturbed, quiet=True, device="cpu")
    assert curves(again) == curves(undisturbed)


def test_a_loss_that_is_no_number_stops_and_keeps_the_batch(teacher_folder, tmp_path, small_recipe, stage):
    wild = stage("kd", "kd", lr=1e30, clip=None, schedule={"kind": "constant", "warmup": 0})
    recipe = small_recipe(teacher_folder, stages=[wild])
    with pytest.raises(
        TrainingError, match=r"stage 'kd', step \d: gated_deltanet: the loss is nan.*failed/kd-"
    ):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    (kept,) = (tmp_path / "out" / "failed").iterdir()
    assert load_file(kept)["inputs"].shape == (2, 64)
    assert not (tmp_path / "out" / "gated_deltanet").exists()


def test_a_folder_belongs_to_one_recipe(finished, tmp_path):
    recipe, out, _ = finished
    other = recipe.model_copy(update={"seed": 1})
    with pytest.raises(RunFolderError, match=r"holds another run \(of recipe 'small'; differs in seed\)"):
        distill(other, out, quiet=True, device="cpu")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty"):
        distill(recipe, tmp_path, quiet=True, device="cpu")


def test_a_full_disk_leaves_the_last_state_whole(finished, tmp_path, monkeypatch):
    recipe, _, _ = finished
    recipe = recipe.model_copy(update={"saving": Saving(state_seconds=0)})
    from evalsuite.distill import saving

    real, calls = saving.save_file, []

    def full(tensors, path):
        calls.append(path)
        if len(calls) == 3:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(RunFolderError, match="No space left"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    progress, tensors = saving.load_state(tmp_path / "out")
    assert progress.step == 2
    assert "random" in tensors
    assert [path.name for path in (tmp_path / "out" / "state").iterdir() if path.is_dir()] == ["000002"]


def test_wrong_layers_mixers_devices_and_teachers_are_refused(teacher_folder, tmp_path, small_recipe):
    for number, (changes, error, message) in enumerate(
        [
            ({"student": {"softmax_layers": [7]}}, ConfigError, "layers 0 to 2, not \\[7\\]"),
            ({"student": {"softmax_layers": "nowhere.json"}}, ConfigError, "no such file"),
            ({"student": {"mixers": ["gated_deltnet"]}}, ConfigError, "did you mean 'gated_deltanet'"),
        ]
    ):
        with pytest.raises(error, match=message):
            distill(small_recipe(teacher_folder, **changes), tmp_path / str(number), quiet=True, device="cpu")
    with pytest.raises(CheckpointError, match="nowhere"):
        distill(small_recipe(tmp_path / "nowhere"), tmp_path / "t", quiet=True, device="cpu")
    with pytest.raises(ConfigError, match="unknown device"):
        distill(small_recipe(teacher_folder), tmp_path / "d", quiet=True, device="gpu")


def test_vocabularies_that_differ_are_refused(finished, tmp_path, small_recipe, stage, tokenizer):
    from evalsuite.distill.recipe import Architecture
    from evalsuite.distill.setup import from_architecture

    _, out, _ = finished
    tiny = Architecture(
        tokenizer="pocket", hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=16,
        max_length=64,
    )  # fmt: skip
    other = from_architecture(tiny, 500, tokenizer, seed=0)
    other.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    recipe = small_recipe(
        tmp_path / "other",
        student={"checkpoints": {"gated_deltanet": str(out / "gated_deltanet")}},
        stages=[stage("kd", "kd")],
    )
    with pytest.raises((ConfigError, CheckpointError), match="vocabular"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")


def test_a_hybrid_keeps_its_softmax_layers_from_a_selection_file(
    teacher_folder, tmp_path, small_recipe, stage
):
    (tmp_path / "layers.json").write_text('{"layers": [1]}')
    recipe = small_recipe(
        teacher_folder,
        student={"mixers": ["gla"], "softmax_layers": str(tmp_path / "layers.json")},
        stages=[stage("align", "attention_output"), stage("kd", "kd", train="no_softmax")],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    student = AutoModelForCausalLM.from_pretrained(folder)
    teacher = AutoModelForCausalLM.from_pretrained(teacher_folder).state_dict()
    assert student.config.mixers == ["gla", "softmax", "gla"]
    for name, tensor in student.state_dict().items():
        frozen = "embed" in name or "lm_head" in name or ".1.self_attn." in name
        assert torch.equal(tensor, teacher[name]) == frozen if name in teacher else True, name


def test_post_training_goes_on_from_a_student_without_teacher(finished, tmp_path, small_recipe, stage):
    _, out, _ = finished
    recipe = small_recipe(
        None,
        student={"checkpoints": {"gated_deltanet": str(out / "gated_deltanet")}},
        stages=[stage("tune", "sft", mask="completion", packing="documents")],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    told = json.loads((folder / "lineage.json").read_text())
    assert told["teacher"] is None
    before = load_file(out / "gated_deltanet" / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    assert any(not torch.equal(after[name], before[name]) for name in after)


def test_gradient_accumulation_changes_nothing_but_rounding(teacher_folder, tmp_path, small_recipe, stage):
    found = []
    for micro in (4, 1):
        options = {
            "batch": 4,
            "micro_batch": micro,
            "mask": "completion",
            "packing": "documents",
            "tokens": 1024,
        }
        recipe = small_recipe(
            teacher_folder,
            stages=[stage("align", "attention_output", **options), stage("kd", "kd", **options)],
        )
        distill(recipe, tmp_path / str(micro), quiet=True, device="cpu")
        found.append([row[3:] for row in curves(tmp_path / str(micro))])
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(found[1]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("objective", ["kd", "sft", "attention_output"])
def test_a_batch_without_a_token_that_counts_pulls_nowhere(teacher, stage, objective):
    chosen = Stage.model_validate(
        stage("s", objective, optimizer={"weight_decay": 0.0}, schedule={"kind": "constant"})
    )
    trainee = Trainee("student", build_student(teacher, "gla", seed=1).train())
    trainee.enter(chosen)
    before = {name: tensor.clone() for name, tensor in trainee.weights().items()}
    tokens = torch.arange(8, 40).view(2, 16)
    batch = Batch(tokens, tokens, torch.zeros(0, dtype=torch.int64))
    stepper = Stepper(teacher, [trainee], chosen, Parallel("cpu"))
    losses, norms, _ = stepper.step(StepData([batch], 0, 32, {}), 5)
    assert not losses.any()
    assert not norms.any()
    assert all(torch.equal(before[name], tensor) for name, tensor in trainee.weights().items())


def test_a_capture_that_fails_leaves_nothing_in_the_gradients(teacher, stage, monkeypatch):
    """It breaks off between two students, whose backward passes have left gradients on the bf16 copies."""
    chosen = Stage.model_validate(stage("s", "kd", schedule={"kind": "constant"}))
    tokens = torch.arange(8, 40).view(2, 16)
    data = StepData([Batch(tokens, tokens)], 32, 32, {})

    @contextmanager
    def capturing(graph, **_):
        loss = sum(weight.float().sum() for weight in trainees[0].parameters.values())
        loss.backward()
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    found = []
    teacher = teacher.bfloat16()
    for graphs in (False, True):
        trainees = [
            Trainee(mixer, build_student(teacher, mixer, seed=1).train(), torch.bfloat16) for mixer in MIXERS
        ]
        for trainee in trainees:
            trainee.enter(chosen)
        stepper = Stepper(teacher, trainees, chosen, Parallel("cpu"))
        stepper._graphs = graphs
        norms = torch.stack([stepper.step(data, number)[1] for number in range(4)])
        assert not stepper._captured
        assert not stepper._graphs
        found.append(norms)
    assert torch.equal(*found)


def test_checkpoints_every_so_many_tokens(teacher_folder, tmp_path, small_recipe, stage):
    recipe = small_recipe(
        teacher_folder,
        stages=[stage("kd", "kd", tokens=1280)],
        saving={"checkpoint_tokens": 300, "tensorboard": True},
    )
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    names = {path.name for path in (tmp_path / "out" / "checkpoints" / "gated_deltanet").iterdir()}
    assert names == {"kd-384", "kd-640", "kd-1024"}
    assert list((tmp_path / "out" / "tensorboard").iterdir())


def test_checkpoints_after_a_list_of_tokens(teacher_folder, tmp_path, small_recipe, stage):
    recipe = small_recipe(
        teacher_folder, stages=[stage("kd", "kd", tokens=1280)], saving={"checkpoint_tokens": [256, 1000]}
    )
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    names = {path.name for path in (tmp_path / "out" / "checkpoints" / "gated_deltanet").iterdir()}
    assert names == {"kd-256", "kd-1024"}


def test_a_variant_goes_on_from_the_student_of_another(teacher_folder, tmp_path, small_recipe, stage):
    stages = [stage("kd", "kd", tokens=256)]
    first = small_recipe(teacher_folder, stages=stages)
    (made,) = distill(first, tmp_path / "variants" / "first", quiet=True, device="cpu")
    second = small_recipe(
        teacher_folder,
        stages=[{**stages[0], "lr": 1e-9}],
        student={"checkpoints": {"gated_deltanet": ":first"}},
        variants={"first": {}},
    )
    (further,) = distill(second, tmp_path / "variants" / "second", quiet=True, device="cpu")
    start, end, fresh = (
        load_checkpoint(folder).model.model.layers[0].self_attn.q_proj.weight
        for folder in (made, further, teacher_folder)
    )
    assert torch.allclose(start, end, atol=1e-6)
    assert not torch.allclose(start, fresh, atol=1e-4)
    with pytest.raises(ConfigError, match=r"its variant 'first', which is not in"):
        distill(second, tmp_path / "elsewhere" / "second", quiet=True, device="cpu")


def test_the_same_batches_reach_every_run_of_a_recipe(small_recipe, tokenizer):
    recipe = small_recipe("unused")
    first, second = (next(StageData(recipe, recipe.stages[0], tokenizer)) for _ in range(2))
    assert torch.equal(first.micro_batches[0].inputs, second.micro_batches[0].inputs)
