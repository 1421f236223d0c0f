"""The measured model in its engine, and the interface of what measures it."""

import gc
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.foundation.efficiency import EfficiencyRow, Kind, Status
from evalsuite.models.benchmark.gpu import Gpu, device_name
from evalsuite.models.benchmark.points import Point
from evalsuite.models.checkpoints.load import Checkpoint, CheckpointInfo
from evalsuite.models.checkpoints.positions import check_max_length, stated_positions
from evalsuite.models.decoder import StudentForCausalLM
from evalsuite.models.decoder.cost import ModelCost
from evalsuite.models.ops.dispatch import kernel_versions

MAX_NEW_TOKENS = 64
"""Positions after the context that a measurement of decoding may use."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model in an engine on a device, and what its config says about cost."""

    label: str
    weights_id: str
    teacher: str | None
    """weights_id of the teacher; None for a teacher."""
    random_weights: bool = False
    engine: str
    versions: str
    device: str
    dtype: torch.dtype
    config: PreTrainedConfig

    @cached_property
    def cost(self) -> ModelCost:
        """Its cost, from the config."""
        return ModelCost.of(self.config)

    @cached_property
    def positions(self) -> int | None:
        """Positions that the model is made for, if its config states them."""
        return stated_positions(self.config)

    def weight_bytes(self) -> int:
        """Bytes of the parameters."""
        return self.cost.num_params * self.dtype.itemsize

    def prefill_flops(self, context: int) -> float | None:
        """FLOPs per prompt token, averaged over `context` tokens; None if they are not known."""
        return None if self.cost.cache() is None else self.cost.forward_flops(context)

    def cache_bytes(self, context: int) -> int | None:
        """Cache of a sequence after `context` tokens; None if it is not known."""
        cache = self.cost.cache(self.dtype)
        return None if cache is None else cache.at(context)

    def row(self, point: Point, status: Status = "ok", detail: str = "", **measured: Any) -> EfficiencyRow:
        """The record of a point of this model."""
        cache = self.cache_bytes(point.context)
        return EfficiencyRow(
            label=self.label,
            weights_id=self.weights_id,
            teacher=self.teacher,
            random_weights=self.random_weights,
            engine=self.engine,
            versions=self.versions,
            device=self.device,
            dtype=str(self.dtype).removeprefix("torch."),
            parameters=self.cost.num_params,
            kind=point.kind,
            context=point.context,
            batch=point.batch,
            status=status,
            detail=detail,
            out_of_distribution=self.positions is not None and point.context > self.positions,
            expected_cache_bytes=cache,
            prefill_flops=self.prefill_flops(point.context),
            decode_bytes=None if cache is None else self.weight_bytes() / point.batch + cache,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            **measured,
        )

    def check_positions(self, last: int) -> None:
        """Refuse positions that the model's positional scheme does not have.

        Raises:
            ConfigError: such as a table of learned positions that ends below `last`. Plain rotary positions
                have no limit; speed beyond the trained ones is as real as below.
        """
        try:
            check_max_length(self.config, last)
        except ConfigError as error:
            raise ConfigError(f"{self.label}: {last:,} positions: {error}") from error


class Benchmark(ABC):
    """Measures points of one model in one engine."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"request"})
    """Kinds of points that it can measure."""
    subject: Subject

    @abstractmethod
    def measure(self, point: Point) -> EfficiencyRow:
        """Measure a point.

        Raises:
            ConfigError: the engine or the model cannot run this point; the message says why.
            torch.OutOfMemoryError: the point does not fit into memory.
        """

    def most_sequences(self, context: int) -> int:
        """Estimate of the number of sequences of `context` tokens whose caches fit into memory."""
        raise ConfigError(f"{self.subject.engine} measures no batches of decoding sequences")

    def release(self) -> None:  # noqa: B027 -- most engines have nothing to free
        """Free what a point left behind, so that the next one starts with all memory."""


class InProcessBenchmark(Benchmark):
    """Measures a loaded model in this process.

    Args:
        checkpoint: its model.
        engine: name of the engine.
        random_weights: whether they are.
    """

    def __init__(self, checkpoint: Checkpoint, engine: str, *, random_weights: bool = False) -> None:
        self.model = checkpoint.model
        self.device = self.model.device
        self.gpu = Gpu(self.device)
        self.subject = Subject(
            label=checkpoint.label,
            weights_id=checkpoint.weights_id,
            teacher=teacher_of(checkpoint),
            random_weights=random_weights,
            engine=engine,
            versions=_versions(self.model),
            device=device_name(self.device),
            dtype=self.model.dtype,
            config=self.model.config,
        )

    def release(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()


def teacher_of(checkpoint: Checkpoint | CheckpointInfo) -> str | None:
    """weights_id of a student's teacher, from its lineage."""
    stated = checkpoint.lineage.get("teacher")
    found = stated.get("weights_id") if isinstance(stated, dict) else stated
    return found if isinstance(found, str) else None


def _versions(model: PreTrainedModel) -> str:
    """The packages that decide the speed of a model in process."""
    parts = [f"torch {torch.__version__}", f"transformers {transformers.__version__}"]
    if isinstance(model, StudentForCausalLM):
        parts.append(kernel_versions(model.device, model.dtype))
    return ", ".join(filter(None, parts))
