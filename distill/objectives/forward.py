"""Forward passes of teacher and students up to the language-model head."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from evalsuite.distill.types import CausalLM, MicroBatch
from evalsuite.foundation import ConfigError
from evalsuite.models import StudentForCausalLM
from evalsuite.models.decoder.block import Observer
from evalsuite.models.decoder.head import LanguageModelHead
from evalsuite.models.decoder.model import attention_of
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.ops.recurrence import RecurrenceInputs

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


def set_attention(teacher: CausalLM, implementation: str) -> None:
    """Switch the teacher's attention implementation; `eager` instead of `sdpa` if its scores are capped.

    sdpa has no soft cap, and eager attention holds [B, H, T, T] scores, which is logged as a warning.
    """
    supported = attention_of(teacher.config, implementation)
    assert supported is not None
    if supported != implementation:
        _log.warning(
            "the teacher caps its attention scores, which %s does not support: softmax layers of teacher and "
            "students use %s attention, whose memory grows with the square of the sequence length",
            implementation,
            supported,
        )
    teacher.set_attn_implementation(supported)


def set_activation_checkpointing(model: CausalLM, *, enabled: bool) -> None:
    """Compute the activations of every block again in the backward pass, or store them."""
    for block in model.model.layers:
        block.recomputes = enabled


def set_recurrence(model: CausalLM, recurrence: Callable[[RecurrenceInputs], tuple[Tensor, Tensor]]) -> None:
    """Let `recurrence` compute the recurrences of a model."""
    for module in model.modules():
        if isinstance(module, RecurrentMixer):
            module.recurrence = recurrence


def hidden_states(model: CausalLM, batch: MicroBatch, *, observe: Observer | None = None) -> Tensor:
    """Last hidden states [B, T, D] of a teacher or student, whose packed documents are isolated.

    Args:
        observe: called with the activations of every block, in which packed documents are one row.
    """
    return read_out(model, batch, lambda hidden, _: hidden, observe=observe)


def read_out(
    model: Any,
    batch: MicroBatch,
    readout: Callable[[Tensor, LanguageModelHead], Result],
    *,
    observe: Observer | None = None,
) -> Result:
    """`readout` of the last hidden states [B, T, D] and the head, within the model's forward pass, for which
    the parameters of a sharded model are gathered.

    Raises:
        ConfigError: blocks of an architecture that is no family are to be observed.
    """
    ids, positions = batch.input_ids, batch.position_ids

    def read(hidden: Tensor, head: LanguageModelHead) -> Result:
        return readout(hidden.view(*batch.input_ids.shape, -1), head)

    if not isinstance(model, StudentForCausalLM):
        if observe is not None:
            raise ConfigError(f"layers of {type(model).__name__} cannot be compared; use objective kd")
        return _read_out_foreign(model, batch, read)
    packing: dict[str, Any] = {}
    if batch.cu_seqlens is not None:
        # One varlen sequence, since recurrent layers isolate documents by their boundaries only.
        assert positions is not None
        packing = {"cu_seqlens": batch.cu_seqlens, "row_length": ids.shape[1]}
        ids, positions = ids.view(1, -1), positions.view(1, -1)
    found: Any = model(
        input_ids=ids,
        position_ids=positions,
        use_cache=False,
        readout=read,
        observe=observe,
        sequence_parallel=batch.sequence_parallel,
        **packing,
    )
    result: Result = found
    return result


def _read_out_foreign(
    model: Any, batch: MicroBatch, readout: Callable[[Tensor, LanguageModelHead], Result]
) -> Result:
    """`read_out` of a model of transformers, whose head cannot be replaced."""

    def run() -> Result:
        hidden = model.model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
        ).last_hidden_state
        return readout(hidden, LanguageModelHead.of(model))

    # Of a sharded model: gathers the parameters first (see `training.fsdp`).
    within: Callable[[Callable[[], Result]], Result] | None = getattr(model, "within", None)
    return run() if within is None else within(run)
