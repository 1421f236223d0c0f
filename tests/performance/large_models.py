"""Distillation of models of 0.6B to 8B parameters: tokens per second, memory and the share of the peak.

Times the trainer's own steps of knowledge distillation on random tokens, with random weights that are drawn
on the GPU, and prints one JSON object. Options choose what saves memory. Under `torchrun`, every GPU takes
`--sequences` sequences, and `--sharded` shards teacher and student:

    python -m tests.performance.large_models --shape qwen3-4b --sequences 16
    torchrun --nproc-per-node 2 -m tests.performance.large_models --shape qwen3-8b …
"""

import argparse
import json
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from evalsuite.cli.exit_codes import guarded
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.trainable import TRAINABLE_SETS, trainable_names
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.estimate import stage_memory
from evalsuite.distill.training.fsdp import select_strategy
from evalsuite.distill.training.placement import check_head
from evalsuite.distill.training.provenance import package_versions
from evalsuite.distill.training.train_step import TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.foundation import write_json
from evalsuite.foundation.parser import Parser
from evalsuite.models.benchmark.random_models import FORM, parse_student, read_shape, shape_names
from evalsuite.models.decoder import StudentConfig, StudentForCausalLM
from evalsuite.models.decoder.config import decoder_config
from evalsuite.models.decoder.cost import ModelCost
from evalsuite.models.decoder.deferred_init import DrawnWeights, replace_parameters
from tests.performance.distill_steps import random_tokens, utilization

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
}
STD = 0.02
"""Standard deviation of random weights."""


class RandomOnDevice:
    """`Weights` that are drawn on the device when they are read; vectors are those of a new model."""

    def __init__(self, make: Callable[[], Any], device: torch.device) -> None:
        self._drawn = DrawnWeights(make, seed=None)
        self.model, self._device = self._drawn.model, device

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        parameter = self.model.get_parameter(name)
        if parameter.ndim < 2:
            return self._drawn[name][start:stop]
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(f"{name} {start}".encode()))
        shape = (stop - start, *parameter.shape[1:])
        return torch.randn(shape, generator=generator, device=self._device).mul_(STD)

    def whole(self, dtype: torch.dtype, trained: Collection[str], frozen: dict[str, nn.Parameter]) -> Any:
        """The model on one device.

        Args:
            dtype: of parameters that are not trained; the others are fp32.
            frozen: parameters by name, which are used instead of own ones where nothing is trained.
        """
        new = {}
        for name, parameter in self.model.named_parameters():
            if name in frozen and name not in trained:
                new[parameter] = frozen[name]
                continue
            value = self.rows(name, 0, len(parameter)).to(self._device)
            new[parameter] = nn.Parameter(value if name in trained else value.to(dtype))
        replace_parameters(self.model, new)
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self._device)
        return self.model


def build(options: argparse.Namespace, config: Any, stage: Stage, group: ProcessGroup) -> tuple[Any, Any]:
    """Teacher and student, sharded or on every GPU."""
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if group.device.type == "cuda" else torch.float32
    teacher_weights = RandomOnDevice(
        lambda: AutoModelForCausalLM.from_config(decoder_config(config), dtype=torch.float32), group.device
    )
    mixers = parse_student(options.mixer, config.num_hidden_layers)
    student_config = StudentConfig(config.to_dict(), *mixers, attn_implementation="sdpa")
    student_weights = RandomOnDevice(lambda: StudentForCausalLM(student_config), group.device)
    trained = set(trainable_names(student_weights.model, stage.trainable_set))
    teacher: Any
    student: Any
    if options.sharded:
        from evalsuite.distill.training.fsdp import shard

        student = shard(student_weights, group.device, dtype, trained)
        teacher = shard(teacher_weights, group.device, dtype, ())
    else:
        teacher = teacher_weights.whole(dtype, (), {})
        student = student_weights.whole(dtype, trained, dict(teacher.named_parameters()))
    return check_head(teacher.eval().requires_grad_(False)), student.train()


def random_batch(options: argparse.Namespace, vocab_size: int, group: ProcessGroup) -> GlobalBatch:
    """This process's share of a batch of random tokens."""
    tokens = random_tokens(vocab_size, options.sequences, options.seq, group.rank, group.device)
    parts = (each.chunk(options.micro_batches) for each in tokens)
    batches = [MicroBatch(*pair) for pair in zip(*parts, strict=True)]
    count = options.sequences * options.seq * group.world_size
    return GlobalBatch(batches, count, count, {})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = Parser(
        prog="large_models.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [*(name.lower() for name in shape_names()), "tiny"]
    parser.add_argument("--shape", choices=names, required=True)
    parser.add_argument("--layers", type=int, help="number of layers, instead of the shape's")
    parser.add_argument("--mixer", default="gated_deltanet", help=FORM)
    parser.add_argument("--objective", default="kd", choices=["kd", "attention_output"])
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=2, help="sequences per step and GPU")
    parser.add_argument("--micro-batches", type=int, default=1, help="forward passes per step and GPU")
    parser.add_argument("--trainable", choices=TRAINABLE_SETS, help="default: that of the objective")
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--state-bits", type=int, choices=[8, 32], default=32)
    parser.add_argument("--sharded", action="store_true", help="under torchrun: FSDP2")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--warmup", type=int, default=3, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=8, help="timed steps")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; default: CUDA if available")
    parser.add_argument("--out", type=Path, help="file for the JSON object")
    options = parser.parse_args(arguments)
    if options.sequences % options.micro_batches:
        parser.error("--sequences is not a multiple of --micro-batches")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps, and print and write what was measured."""
    options = parse(arguments)
    began = time.perf_counter()
    group = ProcessGroup(options.device)
    cuda = group.device.type == "cuda"
    _, config = read_shape("qwen3-0.6b" if options.shape == "tiny" else options.shape)
    if options.shape == "tiny":
        config.update(TINY)
    if options.layers is not None:
        config.num_hidden_layers = options.layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1] * config.num_hidden_layers
    cost = ModelCost.of(config)
    settings = {
        "name": "bench",
        "objective": options.objective,
        "data": "random",
        "tokens": 10**12,
        "seq_len": options.seq,
        "batch_size": options.sequences * group.world_size,
        "micro_batch_size": options.sequences // options.micro_batches,
        "lr": 1e-4,
        "schedule": {"kind": "constant", "warmup_ratio": 0.0},
        "optimizer": {"state_bits": options.state_bits},
        "trainable": options.trainable,
    }
    if options.activation_checkpointing:
        settings["activation_checkpointing"] = "block"
    stage = Stage.model_validate(settings)
    torch.manual_seed(0)
    teacher, student = build(options, config, stage, group)
    dtype = torch.bfloat16 if cuda else torch.float32
    train_state = select_strategy(student)(options.mixer, student, dtype, {stage.trainable_set})
    train_state.begin_stage(stage)
    step = TrainStep(teacher, [train_state], stage, group, cuda_graphs=not options.eager)
    batch = random_batch(options, cost.config.vocab_size, group)
    _say(group, f"models built after {time.perf_counter() - began:.1f} s")
    seconds, losses = [], []
    for number in range(options.warmup + options.steps):
        if cuda and number == options.warmup:
            torch.cuda.synchronize()
        started = time.perf_counter()
        losses.append(float(step(batch, number)["loss"][0]))
        seconds.append(time.perf_counter() - started)
        _say(group, f"step {number}: {seconds[-1]:.2f} s, loss {losses[-1]:.4f}{_memory(cuda)}")
    median = statistics.median(seconds[options.warmup :])
    rate = batch.tokens / median
    students = [ModelCost.of(student.config)]
    flops = stage.flops_per_token(cost, students)
    tflops, mfu = utilization(rate, flops, group)
    shards = group.world_size if options.sharded else 1
    estimated = stage_memory(cost, students, stage, (), bf16=cuda, on_gpu=cuda, shards=shards)
    result = {
        "shape": options.shape,
        "options": {key: value for key, value in vars(options).items() if key not in ("out", "shape")},
        "device": group.device_name,
        "gpus": group.world_size,
        "teacher_parameters": cost.num_params,
        "student_parameters": sum(parameter.numel() for parameter in student.parameters()),
        "trained_parameters": sum(parameter.numel() for parameter in train_state.parameters.values()),
        "tokens_per_second": round(rate, 1),
        "median_step_seconds": round(median, 4),
        "step_seconds": [round(value, 4) for value in seconds],
        "flops_per_token": flops,
        "tflops": round(tflops, 4),
        "mfu": None if mfu is None else round(mfu, 4),
        "peak_gb": _peaks(group) if cuda else None,
        "estimated_gb": round(estimated / 1e9, 1),
        "losses": losses,
        "versions": package_versions(),
    }
    if group.is_main:
        print(json.dumps(result))
        if options.out is not None:
            write_json(options.out, result)
    return 0


def _say(group: ProcessGroup, text: str) -> None:
    if group.is_main:
        print(text, file=sys.stderr, flush=True)


def _memory(cuda: bool) -> str:
    return f", peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB" if cuda else ""


def _peaks(group: ProcessGroup) -> list[float]:
    """Peak of allocated memory on every GPU."""
    own = torch.tensor([torch.cuda.max_memory_allocated() / 1e9], device=group.device)
    if group.world_size == 1:
        return [round(own.item(), 1)]
    found = [torch.zeros_like(own) for _ in range(group.world_size)]
    distributed.all_gather(found, own)
    return [round(each.item(), 1) for each in found]


if __name__ == "__main__":
    sys.exit(guarded("large_models", main, resumable=False))
