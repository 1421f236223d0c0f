"""The steps that `evalsuite bench distill` times: the trainer's own, and the naive one."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.distill.batches import Batch, StepData
from evalsuite.distill.estimate import Shape, flops_per_token
from evalsuite.distill.fused import fuse
from evalsuite.distill.parallel import Parallel
from evalsuite.distill.recipe import Stage
from evalsuite.distill.schedules import Schedule
from evalsuite.distill.step import Stepper, Trainee

PEAK_FLOPS = 790e12
"""Dense bf16 matrix products of an H200, measured on random data."""
WARM_UP = 5
"""Steps before the clock starts: kernels are tuned, and the micro-batch is captured."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One line of the table; `tokens_per_second` counts each student's tokens, over all GPUs."""

    what: str
    students: int
    rows: int
    micro_batch: int
    length: int
    gpus: int
    tokens_per_second: float
    peak_gigabytes: float | None
    """Most that tensors took at once, warm-up and capture included."""
    reserved_gigabytes: float | None
    """Most that torch took from the GPU, with what it had no use for."""
    mfu: float | None
    """Share of the GPU's matrix rate, counted over teacher and students; None off CUDA."""
    loss: float


class Bench:
    """Teacher and students of one shape on one device; each GPU of several takes `rows` rows.

    Args:
        config: arguments of a LlamaConfig.
        steps: steps that are timed.
        graphs: capture micro-batches as CUDA graphs, as the trainer does.
        sharded: FSDP2 instead of whole students on every GPU.
    """

    def __init__(
        self,
        config: dict[str, Any],
        parallel: Parallel,
        *,
        rows: int,
        length: int,
        steps: int,
        graphs: bool = True,
        sharded: bool = False,
    ) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        self.parallel, self.device = parallel, parallel.device
        self.rows, self.length, self.steps, self.graphs = rows, length, steps, graphs
        self.kind: type[Trainee] = Trainee
        if sharded:
            from evalsuite.distill.sharding import ShardedTrainee

            self.kind = ShardedTrainee
        self.bf16 = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.bf16 else torch.float32
        torch.manual_seed(0)
        master: Any = LlamaForCausalLM(LlamaConfig(**config))
        self.master = master.to(self.device).eval().requires_grad_(False)
        self.shape = Shape(
            hidden_size=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["hidden_size"] // config["num_attention_heads"],
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
        )

    def teacher(self, dtype: torch.dtype, *, fused: bool) -> Any:
        """A frozen copy of the teacher."""
        from transformers import LlamaForCausalLM

        with torch.device(self.device):
            teacher: Any = LlamaForCausalLM(self.master.config).eval().requires_grad_(False)
        teacher.load_state_dict(self.master.state_dict())
        for parameter in teacher.parameters():
            parameter.data = parameter.data.to(dtype)
        if fused:
            fuse(teacher)
        return teacher

    def student(self, mixer: str, stage: Stage, dtype: torch.dtype, *, fused: bool = True) -> Trainee:
        """A fresh student that is ready for `stage`."""
        from evalsuite.models import build_student

        model: Any = build_student(self.master, mixer).train()
        if fused:
            fuse(model)
        trainee = self.kind(mixer, model, dtype)
        trainee.enter(stage)
        return trainee

    def stage(self, objective: str) -> Stage:
        """A stage long enough for any number of steps."""
        rows = self.rows * self.parallel.world
        sizes = {"tokens": rows * self.length * 1000, "length": self.length, "batch": rows, "lr": 1e-4}
        return Stage.model_validate({"name": "bench", "objective": objective, "data": "random", **sizes})

    def tokens(self, seed: int, rows: int) -> tuple[Tensor, Tensor]:
        """Random inputs and labels [rows, T], the same on every process."""
        make = torch.Generator().manual_seed(seed)
        drawn = torch.randint(0, self.shape.vocab_size, (rows, self.length + 1), generator=make)
        return drawn[:, :-1].contiguous().to(self.device), drawn[:, 1:].contiguous().to(self.device)

    def step_data(self, micro_batch: int, *, seed: int, rows: int) -> StepData:
        """This process's share of a batch of `rows` rows over all GPUs."""
        inputs, labels = (x[self.parallel.rank :: self.parallel.world] for x in self.tokens(seed, rows))
        batches = [
            Batch(inputs[start : start + micro_batch].contiguous(), labels[start : start + micro_batch])
            for start in range(0, len(inputs), micro_batch)
        ]
        return StepData(batches, rows * self.length, rows * self.length, {})

    def stepper(self, stage: Stage, mixers: Sequence[str]) -> Stepper:
        """The trainer's steps, as a run of that stage takes them."""
        teacher = self.teacher(self.dtype, fused=True)
        trainees = [self.student(mixer, stage, self.dtype) for mixer in mixers]
        return Stepper(teacher, trainees, stage, self.parallel, graphs=self.graphs)

    def trainer_step(self, objective: str, mixers: Sequence[str], micro_batch: int) -> Timing:
        """Time the trainer's step."""
        stepper = self.stepper(self.stage(objective), mixers)
        rows = self.rows * self.parallel.world
        data = self.step_data(micro_batch, seed=0, rows=rows)
        flops = flops_per_token(self.shape, self.stage(objective), 0, len(mixers))
        return self._time(
            f"{objective} {' + '.join(mixers)}",
            len(mixers),
            micro_batch,
            flops,
            lambda number: stepper.step(data, number)[0][0, 0],
        )

    def losses(self, mixer: str, rows: int, steps: int) -> Iterator[float]:
        """Losses of the first steps, at full speed, on fresh batches of `rows` rows over all GPUs."""
        fast = {"lr": 1e-3, "schedule": Schedule(kind="constant", warmup=0.0)}
        stepper = self.stepper(self.stage("kd").model_copy(update=fast), [mixer])
        for number in range(steps):
            data = self.step_data(max(1, rows // self.parallel.world // 2), seed=number, rows=rows)
            yield float(stepper.step(data, number)[0][0, 0])

    def naive_step(self, mixer: str, *, autocast: bool) -> Timing:
        """Both models' logits of all tokens at once, in fp32, through torch's own losses and AdamW.

        Args:
            autocast: fp32 weights under autocast; otherwise bf16 weights, which lose small updates.
        """
        teacher = self.teacher(self.dtype, fused=False)
        trainee = self.student(mixer, self.stage("kd"), torch.float32, fused=False)
        trainee.leave()
        student: Any = trainee.model
        if self.bf16 and not autocast:
            for parameter in student.parameters():
                parameter.data = parameter.data.bfloat16()
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
        inputs, _ = self.tokens(0, self.rows)

        def casting() -> AbstractContextManager[Any]:
            return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16 and autocast)

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            with casting():
                with torch.no_grad():
                    target = teacher(input_ids=inputs, use_cache=False).logits
                logits = student(input_ids=inputs, use_cache=False).logits
            loss = functional.kl_div(
                logits.float().log_softmax(-1),
                target.float().log_softmax(-1),
                log_target=True,
                reduction="sum",
            ) / (self.rows * self.length)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        how = "autocast" if autocast else "bf16 weights"
        return self._time(
            f"naive kd {mixer} ({how})",
            1,
            self.rows,
            flops_per_token(self.shape, self.stage("kd"), 0, 1),
            step,
        )

    def _time(
        self, what: str, students: int, micro_batch: int, flops: float, step: Callable[[int], Tensor]
    ) -> Timing:
        cuda = self.device.type == "cuda"
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for number in range(WARM_UP if cuda else 3):
            loss = step(number)
        self.parallel.wait()
        if cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(self.steps):
            loss = step(WARM_UP + number)
        last = float(loss)
        self.parallel.wait()
        seconds = time.perf_counter() - started
        world = self.parallel.world
        rate = self.steps * self.rows * world * self.length / seconds
        return Timing(
            what=what,
            students=students,
            rows=self.rows * world,
            micro_batch=micro_batch,
            length=self.length,
            gpus=world,
            tokens_per_second=rate,
            peak_gigabytes=torch.cuda.max_memory_allocated() / 1e9 if cuda else None,
            reserved_gigabytes=torch.cuda.max_memory_reserved() / 1e9 if cuda else None,
            mfu=rate * flops / world / PEAK_FLOPS if cuda else None,
            loss=last,
        )
