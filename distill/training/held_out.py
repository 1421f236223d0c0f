"""The held-out slice, which no student is trained on, and measurements on it during and after training."""

import threading
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from math import exp, inf
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evalsuite.distill.data.loader import DataSources, StageDataLoader
from evalsuite.distill.objectives.forward import hidden_states, read_out
from evalsuite.distill.objectives.kl_and_cross_entropy import LossTokens
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.config import LossConfig
from evalsuite.distill.recipe.data_sources import Subset
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.builders import TrainingModels
from evalsuite.distill.training.train_step import StudentTrainState
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.decoder.block import LayerActivations
from evalsuite.models.decoder.head import LanguageModelHead

K = TypeVar("K", bound=Hashable)

MAX_LOGITS = 1 << 26
"""Logits per chunk of tokens: where training fills the memory, little of it is left for measurements."""

SEQUENCE_FIELDS = {"data", "seq_len", "packing", "loss_mask", "batch_size", "micro_batch_size"}
"""Fields of a stage that its held-out sequences depend on."""


def without_held_out(recipe: Recipe) -> Recipe:
    """Return the recipe without the held-out documents."""
    return _with_subset(recipe, "train")


def _with_subset(recipe: Recipe, subset: Subset) -> Recipe:
    return recipe.model_copy(
        update={"data": {name: source.restrict(subset) for name, source in recipe.data.items()}}
    )


def held_out_batches(
    recipe: Recipe, stage: Stage, tokenizer: Any, count: int, device: torch.device, *, num_workers: int = 0
) -> list[MicroBatch]:
    """Return the first `count` sequences of the held-out subset of a stage's data.

    Args:
        num_workers: processes that parse and tokenize; they do not change the sequences.

    Raises:
        DataError: the subset has no loss tokens.
    """
    held_out = _with_subset(recipe, "held_out")
    with closing(_open(held_out, tokenizer, num_workers)) as sources:
        batches = _read(sources, stage, count)
    return [batch.to(device) for batch in batches]


def _open(held_out: Recipe, tokenizer: Any, num_workers: int) -> DataSources:
    return DataSources(held_out.data, tokenizer, seed=held_out.seed, num_workers=num_workers)


def _read(sources: DataSources, stage: Stage, count: int) -> list[MicroBatch]:
    # No more sequences per forward pass than in training, whose memory they have to fit in.
    largest = min(count, stage.micro_batch_size or stage.batch_size)
    micro = next(size for size in range(largest, 0, -1) if count % size == 0)
    reading = stage.model_copy(
        update={
            "batch_size": count,
            "micro_batch_size": micro,
            "tokens": count * stage.seq_len,
            "token_weights": None,
        }
    )
    step = next(StageDataLoader(sources, reading))
    if step.num_loss_tokens == 0:
        raise DataError(f"stage '{stage.name}': the held-out slice has no loss tokens")
    return step.micro_batches


def held_out_text(
    recipe: Recipe, tokenizer: Any, tokens: int, length: int, *, num_workers: int = 0
) -> NDArray[np.int64]:
    """Return held-out natural text of the recipe's last stage: ids [rows, length], at least `tokens`.

    Args:
        num_workers: processes that read it.

    Raises:
        ConfigError: a source was trained on in full, or all sources repeat chunks.
    """
    stage = recipe.stages[-1]
    natural = {
        name: share for name, share in stage.mixture.items() if recipe.data[name].repeat_chunk_tokens is None
    }
    if not natural:
        raise ConfigError(f"stage '{stage.name}': every source repeats chunks; add one of natural text")
    for name in natural:
        if not recipe.data[name].leaves_held_out:
            raise ConfigError(
                f"data.{name}: has no held-out documents; set data.{name}.subset: train, so that no stage "
                "trains on them"
            )
    reading = stage.model_copy(
        update={"data": natural, "seq_len": length, "packing": "concat", "loss_mask": "full"}
    )
    count = -(-tokens // length)
    batches = held_out_batches(
        recipe, reading, tokenizer, count, torch.device("cpu"), num_workers=num_workers
    )
    return np.concatenate([batch.input_ids.numpy() for batch in batches])[:count]


class HeldOutBatches:
    """Held-out batches of several stages, read while students are trained.

    Finding the documents means reading through all sources, which takes longer than the first steps. It
    begins with the first call, after the first step, which it would delay. A thread does it, in the order of
    the stages, if worker processes parse and tokenize; otherwise the call does. Stages of the same sequences
    share them.

    Args:
        tokens: of each stage, rounded up to whole sequences.
    """

    def __init__(
        self, recipe: Recipe, stages: Sequence[Stage], tokenizer: Any, tokens: int, *, num_workers: int = 0
    ) -> None:
        self._held_out, self._stages = _with_subset(recipe, "held_out"), stages
        self._tokenizer, self._tokens, self._num_workers = tokenizer, tokens, num_workers

    @cached_property
    def _futures(self) -> dict[str, Future[list[MicroBatch]]]:
        """By stage; whoever needs them first begins to read."""
        futures: dict[str, Future[list[MicroBatch]]] = {stage.name: Future() for stage in self._stages}
        if self._num_workers:
            threading.Thread(target=self._fill, args=[futures], daemon=True, name="held-out").start()
        else:
            self._fill(futures)
        return futures

    def _fill(self, futures: Mapping[str, Future[list[MicroBatch]]]) -> None:
        read: dict[str, list[MicroBatch]] = {}
        with closing(_open(self._held_out, self._tokenizer, self._num_workers)) as sources:
            for stage in self._stages:
                future, key = futures[stage.name], stage.model_dump_json(include=SEQUENCE_FIELDS)
                try:
                    if key not in read:
                        count = -(-self._tokens // stage.seq_len)
                        read[key] = _read(sources, stage, count)
                    future.set_result(read[key])
                except BaseException as error:  # raised again by `get`
                    future.set_exception(error)

    def is_read(self, stage: Stage) -> bool:
        """Whether `get` returns, or raises, at once."""
        return self._futures[stage.name].done()

    def get(self, stage: Stage) -> list[MicroBatch]:
        """The batches of a stage, on the CPU; waits for them.

        Raises:
            DataError: the data cannot be read, or have no loss tokens.
        """
        return self._futures[stage.name].result()


class HeldOut:
    """Held-out batches on the device, with the teacher's final hidden states.

    The teacher is evaluated once, in the constructor, without skipped layers. Without a teacher (None),
    only cross-entropy can be measured.
    """

    def __init__(self, teacher: Any, batches: Sequence[MicroBatch], temperature: float = 1.0) -> None:
        self.teacher, self.batches, self.temperature = teacher, list(batches), temperature
        self._targets: list[Tensor | None] = [None] * len(self.batches)
        if teacher is not None:
            with torch.no_grad():
                self._targets = [batch.select(hidden_states(teacher, batch)) for batch in self.batches]

    @property
    def num_tokens(self) -> int:
        """Number of loss tokens."""
        return sum(
            batch.labels.numel() if batch.loss_indices is None else batch.loss_indices.numel()
            for batch in self.batches
        )

    @torch.no_grad()
    def losses(self, model: Any, *, kl: bool = True) -> tuple[float, float]:
        """Mean CE and KL(teacher ‖ model) per token, in nats, the latter times temperature² (Eq. 5).

        Args:
            model: a student, or the teacher with a skipped layer.
            kl: if false, only CE is computed and KL is 0.
        """
        loss_config = LossConfig(ce=1.0, kl=float(kl), temperature=self.temperature)
        sums = torch.zeros(2, dtype=torch.float64)
        for batch, targets in zip(self.batches, self._targets, strict=True):
            loss = partial(self._loss, batch, targets if kl else None, loss_config)
            sums += torch.stack(read_out(model, batch, loss)[1:]).double().cpu()
        mean_ce, mean_kl = (sums / self.num_tokens).tolist()
        return mean_ce, mean_kl

    def _loss(
        self,
        batch: MicroBatch,
        targets: Tensor | None,
        config: LossConfig,
        hidden: Tensor,
        head: LanguageModelHead,
    ) -> tuple[Tensor, Tensor, Tensor]:
        labels = batch.select(batch.labels)
        teacher_head = None if targets is None else LanguageModelHead.of(self.teacher)
        weights = torch.ones(labels.shape, device=labels.device)
        tokens = LossTokens(batch.select(hidden), head, labels, weights, targets, teacher_head)
        return tokens.distillation(config, chunk_size=max(1, MAX_LOGITS // head.weight.shape[0]))

    def kl(self, student: Any) -> float:
        """Held-out KL(teacher ‖ student), nats per token: −I(ℓ) of Eq. 6."""
        return self.losses(student)[1]

    def perplexity(self, student: Any) -> float:
        """exp of the mean cross-entropy."""
        return perplexity(self.losses(student, kl=False)[0])

    @torch.no_grad()
    def hidden_distances(self, students: Mapping[K, Any]) -> dict[K, float]:
        """Σ over layers of the mean over tokens of ‖U_teacher − U_student‖² (Eq. 4), of several students.

        U is the residual stream after a layer's mixer; each model runs on its own hidden states, the teacher
        once.
        """
        totals = dict.fromkeys(students, 0.0)
        for batch in self.batches:
            targets = [batch.select(each).float() for each in residual_streams(self.teacher, batch)]
            for key, student in students.items():
                for stream, target in zip(residual_streams(student, batch), targets, strict=True):
                    totals[key] += (batch.select(stream).float() - target).square().sum().item()
        return {key: total / self.num_tokens for key, total in totals.items()}

    @torch.no_grad()
    def final_hidden(self, model: Any) -> list[Tensor]:
        """Final hidden states of each batch at loss tokens: [N, D]."""
        return [batch.select(hidden_states(model, batch)).float() for batch in self.batches]


def perplexity(ce: float) -> float:
    """exp of a mean cross-entropy; infinity beyond the range of a float."""
    try:
        return exp(ce)
    except OverflowError:
        return inf


def residual_streams(model: Any, batch: MicroBatch) -> list[Tensor]:
    """U of every layer: the residual stream after the mixer."""
    found: list[Tensor] = []

    def record(layer: int, activations: LayerActivations) -> None:
        found.append(activations.residual)

    hidden_states(model, batch, observe=record)
    return found


@dataclass
class Validation:
    """Measures students on held-out sequences of a stage's data, packed and masked as in training.

    Every process measures all of them, since a sharded student runs in all processes at once.
    """

    every_steps: int
    stage: Stage
    models: TrainingModels
    train_states: Sequence[StudentTrainState]
    device: torch.device
    batches: HeldOutBatches
    """May still be being read; an error is raised after the step during which it is found."""
    _held_out: HeldOut | None = None

    def measure(self, steps: int) -> list[dict[str, float]]:
        """`validation_ppl` of every student, and `validation_kl` in nats per token if the teacher runs.

        Args:
            steps: completed in this stage; an empty list is returned unless a measurement is due.
        """
        if self.batches.is_read(self.stage):
            self.batches.get(self.stage)
        if steps % self.every_steps and steps != self.stage.steps:
            return []
        # A stage with a teacher store may have no teacher, depending on the other stages.
        teacher = self.models.teacher if self.stage.loads_teacher else None
        if self._held_out is None:
            # A sharded teacher runs in all processes at once, at a step that all of them know.
            batches = [batch.to(self.device) for batch in self.batches.get(self.stage)]
            self._held_out = HeldOut(teacher, batches)
        found = []
        for train_state in self.train_states:
            ce, kl = self._held_out.losses(train_state.model, kl=teacher is not None)
            found.append({"validation_ppl": perplexity(ce)})
            if teacher is not None:
                found[-1]["validation_kl"] = kl
        return found
