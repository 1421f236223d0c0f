"""Throughput and memory as metrics, advice when memory is exhausted, and GPUs without bfloat16."""

import pytest
import torch
from transformers import LlamaConfig

from evalsuite.distill import distill
from evalsuite.distill.training import metrics, train_step
from evalsuite.distill.training.builders import resolve_precision
from evalsuite.distill.training.estimate import memory_options
from evalsuite.distill.training.loop import Step, TrainingError
from evalsuite.distill.training.metrics import GpuUsage
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import ConfigError, read_jsonl
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.decoder.cost import ModelCost

TEACHER = LlamaConfig(
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    vocab_size=49152,
    tie_word_embeddings=True,
)


def costs(*mixers: str) -> tuple[ModelCost, list[ModelCost]]:
    students = [StudentConfig(TEACHER.to_dict(), [name] * 30) for name in mixers]
    return ModelCost.of(TEACHER), [ModelCost.of(student) for student in students]


def test_throughput_is_that_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 12_345_000_000)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 13_000_000_000)
    memory = {"memory_gb": 12.35, "reserved_gb": 13.0}
    usage = GpuUsage(flops_per_token=1e9, world_size=2, device="NVIDIA H200")
    assert usage.measure(1000, now=5.0) == memory
    found = usage.measure(2_001_000, now=7.0)
    assert found == {"tokens_per_second": 1e6, "tflops": 500.0, "mfu": 0.5056, **memory}
    unknown = GpuUsage(flops_per_token=1e9)
    unknown.measure(0, now=0.0)
    assert unknown.measure(10, now=1.0).keys() == {"tokens_per_second", "tflops", *memory}


def test_values_that_are_read_together_have_no_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step's values are read at once after those of the step before, if the host is the bound."""
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    usage = GpuUsage(flops_per_token=1e9)
    usage.measure(1000, now=0.0)
    assert usage.measure(2000, now=0.001) == {"memory_gb": 0.0, "reserved_gb": 0.0}
    assert usage.measure(3000, now=2.0)["tokens_per_second"] == 1000


def test_options_that_save_memory_are_ordered_by_what_they_save(small_recipe, stage) -> None:
    stages = [stage("kd", "kd", seq_len=2048, batch_size=24, micro_batch_size=12, tokens=2048 * 24)]
    recipe = small_recipe("teacher", stages=stages, student={"mixers": ["gla", "kda"]})
    found = memory_options(recipe, recipe.stages[0], *costs("gla", "kda"), bf16=True, world_size=4)
    saved = [bytes_saved for _, bytes_saved in found]
    assert saved == sorted(saved, reverse=True)
    assert min(saved) > 0
    names = " ".join(name for name, _ in found)
    for name in (
        "micro_batch_size=6 (now 12)",
        "seq_len=1024",
        "--mixer",
        "trainable=mixer",
        "trainable=no_mlp",
        "activation_checkpointing=block",
        "optimizer.state_bits=8",
        "sharding=full",
    ):
        assert name in names
    mixers = recipe.stages[0].model_copy(update={"micro_batch_size": 1, "trainable": "mixer"})
    alone = memory_options(
        small_recipe("teacher", stages=[stage("m", "attention_output", micro_batch_size=1)]),
        mixers.model_copy(update={"activation_checkpointing": "block"}),
        *costs("gla"),
        bf16=True,
        world_size=1,
    )
    names = sorted(name.split("=")[0].split(".")[-1] for name, _ in alone)
    assert names == [
        "seq_len",
        "sequence_parallel",
        "state_bits",
        "two GPUs (torchrun --nproc-per-node 2) with --set sharding",
    ]


def test_exhausted_memory_names_the_options(teacher_folder, tmp_path, small_recipe, monkeypatch) -> None:
    def exhausted(self, batch, step):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 8 MiB free.")

    monkeypatch.setattr(train_step.TrainStep, "__call__", exhausted)
    with pytest.raises(
        TrainingError,
        match=r"stage 'mixer': GPU memory is exhausted \(CUDA out of memory\).*"
        r"--set stages\.mixer\.micro_batch_size=1 \(now 2\) saves about",
    ):
        distill(small_recipe(teacher_folder), tmp_path / "out", quiet=True, device="cpu")


def test_a_gpu_without_bfloat16_is_refused(small_recipe, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    recipe = small_recipe("teacher")
    with pytest.raises(ConfigError, match=r"Tesla T4 has no bfloat16; use --set precision=fp32"):
        resolve_precision(recipe, torch.device("cuda"))
    fp32 = recipe.model_copy(update={"precision": "fp32"})
    assert resolve_precision(fp32, torch.device("cuda")) == "fp32"
    assert resolve_precision(recipe, torch.device("cpu")) == "fp32"


def test_usage_is_logged_with_every_student(tmp_path, stage, small_recipe) -> None:
    class Usage:
        def measure(self, tokens: int) -> dict[str, float]:
            return {"memory_gb": 1.5, "mfu": tokens / 1000}

    tokens = torch.zeros(1, 8, dtype=torch.int64)
    step = Step(0, 128, MicroBatch(tokens, tokens), {})
    with metrics.MetricsLogger(
        folder=tmp_path,
        stage=small_recipe("teacher").stages[0],
        labels=["a", "b"],
        start=0,
        title="stage",
        quiet=True,
        is_main=True,
        usage=Usage(),
    ) as logger:
        logger.log(step, [{"loss": 1.0}, {"loss": 2.0}], 0.5)
        logger.flush()
    rows = list(read_jsonl(tmp_path / "metrics.jsonl"))
    assert [(row["student"], row["mfu"], row["memory_gb"]) for row in rows] == [
        ("a", 0.128, 1.5),
        ("b", 0.128, 1.5),
    ]
