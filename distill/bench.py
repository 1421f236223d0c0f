"""How fast a stage trains: `python -m evalsuite.distill.bench`.

Times the trainer's own steps on random tokens, beside the naive knowledge-distillation step (teacher and
student produce all logits, which are then compared in fp32), in one process and one run, so that the
ratios mean something on any device.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from evalsuite.distill.alignment import align
from evalsuite.distill.batches import Batch
from evalsuite.distill.end_to_end import end_to_end
from evalsuite.distill.lineage import versions
from evalsuite.distill.optimizers import set_learning_rate
from evalsuite.distill.recipe import Stage
from evalsuite.distill.trainer import Trainee
from evalsuite.foundation import write_json

SMOLLM2_135M = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
TINY = {
    **SMOLLM2_135M,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
FOUR = ("linear_attention", "retnet", "gla", "gated_deltanet")


@dataclass(frozen=True)
class Timing:
    """One line of the table; `tokens_per_second` counts each student's tokens."""

    what: str
    students: int
    rows: int
    micro_batch: int
    length: int
    tokens_per_second: float
    peak_gigabytes: float | None
    loss: float


class Bench:
    """Teacher and students of one shape on one device."""

    def __init__(
        self, shape: dict[str, Any], device: torch.device, *, rows: int, length: int, steps: int
    ) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        self.device, self.rows, self.length, self.steps = device, rows, length, steps
        torch.manual_seed(0)
        master: Any = LlamaForCausalLM(LlamaConfig(**shape))
        self.master = master.to(device).eval().requires_grad_(False)
        self.bf16 = device.type == "cuda"
        self.teacher: Any = LlamaForCausalLM(LlamaConfig(**shape)).eval().requires_grad_(False)
        self.teacher.load_state_dict(self.master.state_dict())
        self.teacher = self.teacher.to(device, torch.bfloat16 if self.bf16 else torch.float32)
        tokens = torch.randint(0, shape["vocab_size"], (rows, length + 1), device=device)
        self.inputs, self.labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _student(self, mixer: str, stage: Stage) -> Trainee:
        from evalsuite.models import build_student

        trainee = Trainee(mixer, build_student(self.master, mixer).train())
        trainee.enter(stage)
        return trainee

    def _stage(self, objective: str) -> Stage:
        tokens = self.rows * self.length * 1000
        sizes = {"tokens": tokens, "length": self.length, "batch": self.rows, "lr": 1e-4}
        return Stage.model_validate({"name": "bench", "objective": objective, "data": "random", **sizes})

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def _batches(self, micro_batch: int) -> Iterator[Batch]:
        for start in range(0, self.rows, micro_batch):
            yield Batch(self.inputs[start : start + micro_batch], self.labels[start : start + micro_batch])

    def trainer_step(self, objective: str, mixers: Sequence[str], micro_batch: int) -> Timing:
        """The trainer's step: shared teacher forward, chunked loss or layer-by-layer alignment."""
        stage = self._stage(objective)
        trainees = [self._student(mixer, stage) for mixer in mixers]
        models = [trainee.model for trainee in trainees]
        counted = self.rows * self.length

        def step(number: int) -> float:
            for trainee in trainees:
                assert trainee.gradients is not None
                trainee.gradients.clear()
            losses = torch.zeros((), device=self.device)
            with self._autocast():
                for batch in self._batches(micro_batch):
                    if stage.aligns:
                        losses += align(self.teacher, models, batch, stage, micro_batch / self.rows)[0]
                    else:
                        losses += end_to_end(self.teacher, models, batch, stage, counted)[0, 0]
            for trainee in trainees:
                assert trainee.gradients is not None
                trainee.gradients.clip(stage.clip)
                set_learning_rate(trainee.optimizers, stage, number)
                for optimizer in trainee.optimizers:
                    optimizer.step()
            return losses.item()

        what = f"{objective} {' + '.join(mixers)}"
        return self._time(what, len(mixers), micro_batch, step)

    def naive_step(self, mixer: str) -> Timing:
        """Both models' logits of all tokens at once, in fp32, through torch's own losses and AdamW."""
        trainee = self._student(mixer, self._stage("kd"))
        trainee.leave()
        student: Any = trainee.model
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)

        def step(number: int) -> float:
            optimizer.zero_grad()
            with self._autocast():
                with torch.no_grad():
                    target = self.teacher(input_ids=self.inputs, use_cache=False).logits
                logits = student(input_ids=self.inputs, use_cache=False).logits
            loss = functional.kl_div(
                logits.float().log_softmax(-1),
                target.float().log_softmax(-1),
                log_target=True,
                reduction="sum",
            ) / (self.rows * self.length)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            return loss.item()

        return self._time(f"naive kd {mixer}", 1, self.rows, step)

    def _time(self, what: str, students: int, micro_batch: int, step: Callable[[int], float]) -> Timing:
        for number in range(3):
            step(number)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        for number in range(self.steps):
            loss = step(3 + number)
        seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else None
        rate = self.steps * self.rows * self.length / seconds
        return Timing(what, students, self.rows, micro_batch, self.length, rate, peak, loss)


def table(timings: Sequence[Timing]) -> str:
    """The timings as Markdown."""
    lines = [
        "| step | rows × length | rows at a time | tokens/s per student | peak GB | loss |",
        "|---|---|---|---|---|---|",
    ]
    for at in timings:
        peak = "–" if at.peak_gigabytes is None else f"{at.peak_gigabytes:.1f}"
        lines.append(
            f"| {at.what} | {at.rows} × {at.length} | {at.micro_batch} | {at.tokens_per_second:,.0f} "
            f"| {peak} | {at.loss:.4f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements and print the table."""
    parser = argparse.ArgumentParser(prog="python -m evalsuite.distill.bench", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--mixer", default="gated_deltanet")
    parser.add_argument("--tiny", action="store_true", help="a shape that a CPU can time")
    parser.add_argument("--out", type=Path, help="folder for table.md and timings.json")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    bench = Bench(
        TINY if given.tiny else SMOLLM2_135M, device, rows=given.rows, length=given.length, steps=given.steps
    )
    quarter = max(1, given.rows // 4)
    measurements: list[Callable[[], Timing]] = [
        lambda: bench.naive_step(given.mixer),
        lambda: bench.trainer_step("kd", [given.mixer], given.rows),
        lambda: bench.trainer_step("kd", [given.mixer], quarter),
        *(lambda mixer=mixer: bench.trainer_step("attention_output", [mixer], given.rows) for mixer in FOUR),
        lambda: bench.trainer_step("attention_output", FOUR, given.rows),
    ]
    timings: list[Timing] = []
    for measure in measurements:
        timings.append(measure())
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        print(json.dumps(asdict(timings[-1])), flush=True)
        if given.out is not None:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
            write_json(
                given.out / "timings.json",
                {"device": name, "versions": versions(), "timings": [asdict(at) for at in timings]},
            )
    text = table(timings)
    if given.out is not None:
        (given.out / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
