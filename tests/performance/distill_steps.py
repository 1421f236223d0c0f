"""The training steps that `bench_distill` times: the trainer's own, and a naive one."""

import copy
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedConfig

from evalsuite.distill.optim.schedules import Constant
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.fsdp import select_strategy
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.models.decoder.build import student_config, to_decoder
from evalsuite.models.decoder.cost import ModelCost, peak_flops
from evalsuite.models.decoder.deferred_init import DrawnWeights

WARMUP_STEPS = 5
"""Untimed steps, in which kernels are autotuned and the micro-batch is captured."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One measurement; `tokens_per_second` is per student, over all GPUs."""

    name: str
    students: int
    batch_size: int
    micro_batch_size: int
    seq_len: int
    gpus: int
    tokens_per_second: float
    peak_gigabytes: float | None
    """Peak allocated memory, including warmup and capture."""
    reserved_gigabytes: float | None
    """Peak memory reserved by torch's allocator."""
    tflops: float
    """TFLOP/s of one GPU, over teacher and students, without recomputation."""
    mfu: float | None
    """Their share of the vendor's dense peak; None for a device without one in `PEAK_FLOPS`."""
    loss: float


def random_tokens(
    vocab_size: int, batch_size: int, seq_len: int, seed: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Random input ids and labels [batch_size, T]."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, vocab_size, (batch_size, seq_len + 1), generator=generator)
    return drawn[:, :-1].contiguous().to(device), drawn[:, 1:].contiguous().to(device)


def utilization(rate: float, flops: float, group: ProcessGroup) -> tuple[float, float | None]:
    """TFLOP/s of one GPU, and their share of the vendor's dense peak, if that is known.

    Args:
        rate: tokens per second of all GPUs.
        flops: per token.
        group: its GPUs.
    """
    per_gpu, peak = rate * flops / group.world_size, peak_flops(group.device_name)
    return per_gpu / 1e12, None if peak is None else per_gpu / peak


class WeightsOf:
    """`Weights` of a model that is in memory."""

    def __init__(self, model: Any) -> None:
        self._parameters = dict(model.named_parameters())
        self.model = DrawnWeights(lambda: type(model)(model.config), seed=None).model

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self._parameters[name].detach()[start:stop]


class Bench:
    """Teacher and students of one shape; every GPU takes `batch_size` sequences per step.

    Args:
        config: of the teacher.
        steps: timed steps.
        cuda_graphs: capture micro-batches as CUDA graphs, as the trainer does.
        sharded: FSDP2 instead of replicated students.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        process_group: ProcessGroup,
        *,
        batch_size: int,
        seq_len: int,
        steps: int,
        cuda_graphs: bool = True,
        sharded: bool = False,
    ) -> None:
        self.process_group, self.device = process_group, process_group.device
        self.batch_size, self.seq_len = batch_size, seq_len
        self.steps, self.cuda_graphs = steps, cuda_graphs
        self.sharded = sharded
        self.bf16 = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.bf16 else torch.float32
        torch.manual_seed(0)
        with self.device:
            reference: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        self.reference = reference.eval().requires_grad_(False)
        self.shape = ModelCost.of(self.reference.config)

    def teacher(self, dtype: torch.dtype, *, fused: bool) -> Any:
        """A frozen copy of the teacher."""
        teacher: Any = copy.deepcopy(self.reference)
        for parameter in teacher.parameters():
            parameter.data = parameter.data.to(dtype)
        return to_decoder(teacher) if fused else teacher

    def student(self, mixer: str, stage: Stage, dtype: torch.dtype) -> StudentTrainState:
        """A new student, prepared for `stage`."""
        from evalsuite.models import build_student

        model: Any = build_student(self.reference, mixer)
        if self.sharded:
            from evalsuite.distill.training.fsdp import shard

            names = {name for name, _ in model.named_parameters()}
            model = shard(WeightsOf(model), self.device, dtype, names)
        train_state = select_strategy(model)(mixer, model.train(), dtype)
        train_state.begin_stage(stage)
        return train_state

    def stage(self, objective: str) -> Stage:
        """A stage with an ample token budget."""
        batch_size = self.batch_size * self.process_group.world_size
        sizes = {
            "tokens": batch_size * self.seq_len * 1000,
            "seq_len": self.seq_len,
            "batch_size": batch_size,
            "lr": 1e-4,
        }
        return Stage.model_validate({"name": "bench", "objective": objective, "data": "random", **sizes})

    def flops_per_token(self, objective: str, mixers: Sequence[str]) -> float:
        """FLOPs of teacher and students."""
        teacher, layers = self.reference.config, self.shape.config.num_hidden_layers
        students = [ModelCost.of(student_config(teacher, [name] * layers, {}, "qkvo")) for name in mixers]
        return self.stage(objective).flops_per_token(self.shape, students)

    def tokens(self, seed: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Random input ids and labels [batch_size, T], identical in every process."""
        return random_tokens(self.shape.config.vocab_size, batch_size, self.seq_len, seed, self.device)

    def global_batch(self, micro_batch_size: int, *, seed: int, batch_size: int) -> GlobalBatch:
        """This process's share of a batch of `batch_size` sequences over all GPUs."""
        group = self.process_group
        input_ids, labels = (x[group.rank :: group.world_size] for x in self.tokens(seed, batch_size))
        batches = [
            MicroBatch(
                input_ids[start : start + micro_batch_size].contiguous(),
                labels[start : start + micro_batch_size],
            )
            for start in range(0, len(input_ids), micro_batch_size)
        ]
        return GlobalBatch(batches, batch_size * self.seq_len, batch_size * self.seq_len, {})

    def train_step(self, stage: Stage, mixers: Sequence[str]) -> TrainStep:
        """The trainer's step of that stage, with new students."""
        teacher = self.teacher(self.dtype, fused=True)
        students = [self.student(mixer, stage, self.dtype) for mixer in mixers]
        return TrainStep(teacher, students, stage, self.process_group, cuda_graphs=self.cuda_graphs)

    def trainer_step(self, objective: str, mixers: Sequence[str], micro_batch_size: int) -> Timing:
        """Time the trainer's step."""
        train_step = self.train_step(self.stage(objective), mixers)
        batch_size = self.batch_size * self.process_group.world_size
        batch = self.global_batch(micro_batch_size, seed=0, batch_size=batch_size)
        flops = self.flops_per_token(objective, mixers)
        return self._time(
            f"{objective} {' + '.join(mixers)}",
            len(mixers),
            micro_batch_size,
            flops,
            lambda step: train_step(batch, step)["loss"][0],
        )

    def losses(self, mixer: str, batch_size: int, steps: int) -> Iterator[float]:
        """Losses of the first steps, on new batches of `batch_size` sequences over all GPUs."""
        changes = {"lr": 1e-3, "schedule": Constant(kind="constant", warmup_ratio=0.0)}
        train_step = self.train_step(self.stage("kd").model_copy(update=changes), [mixer])
        micro_batch_size = max(1, batch_size // self.process_group.world_size // 2)
        for step in range(steps):
            batch = self.global_batch(micro_batch_size, seed=step, batch_size=batch_size)
            yield float(train_step(batch, step)["loss"][0])

    def naive_step(self, mixer: str, *, autocast: bool, batch_size: int | None = None) -> Timing:
        """Time a naive step: full fp32 logits of both models, torch's own loss and AdamW.

        Args:
            autocast: fp32 weights under autocast; otherwise bf16 weights, which round small updates away.
            batch_size: sequences of a step, which has no micro-batches; default: that of the other steps.
        """
        batch_size = batch_size or self.batch_size
        teacher = self.teacher(self.dtype, fused=False)
        train_state = self.student(mixer, self.stage("kd"), torch.float32)
        train_state.end_stage()
        student: Any = train_state.model
        if self.bf16 and not autocast:
            for parameter in student.parameters():
                parameter.data = parameter.data.bfloat16()
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
        input_ids, _ = self.tokens(0, batch_size)

        def autocast_context() -> AbstractContextManager[Any]:
            return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16 and autocast)

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            with autocast_context():
                with torch.no_grad():
                    target = teacher(input_ids=input_ids, use_cache=False).logits
                logits = student(input_ids=input_ids, use_cache=False).logits
            loss = functional.kl_div(
                logits.float().log_softmax(-1),
                target.float().log_softmax(-1),
                log_target=True,
                reduction="sum",
            ) / (batch_size * self.seq_len)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        precision = "autocast" if autocast else "bf16 weights"
        return self._time(
            f"naive kd {mixer} ({precision})",
            1,
            batch_size,
            self.flops_per_token("kd", [mixer]),
            step,
            batch_size=batch_size,
        )

    def _time(
        self,
        name: str,
        students: int,
        micro_batch_size: int,
        flops: float,
        step: Callable[[int], Tensor],
        *,
        batch_size: int | None = None,
    ) -> Timing:
        batch_size = batch_size or self.batch_size
        cuda = self.device.type == "cuda"
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for number in range(WARMUP_STEPS if cuda else 3):
            loss = step(number)
        self.process_group.barrier()
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(self.steps):
            loss = step(WARMUP_STEPS + number)
        last_loss = float(loss)
        self.process_group.barrier()
        seconds = time.perf_counter() - started
        world_size = self.process_group.world_size
        rate = self.steps * batch_size * world_size * self.seq_len / seconds
        tflops, mfu = utilization(rate, flops, self.process_group)
        return Timing(
            name=name,
            students=students,
            batch_size=batch_size * world_size,
            micro_batch_size=micro_batch_size,
            seq_len=self.seq_len,
            gpus=world_size,
            tokens_per_second=rate,
            peak_gigabytes=torch.cuda.max_memory_allocated() / 1e9 if cuda else None,
            reserved_gigabytes=torch.cuda.max_memory_reserved() / 1e9 if cuda else None,
            tflops=tflops,
            mfu=mfu,
            loss=last_loss,
        )
