"""Rounding of a decoder's weights and recurrent states, to see what quantization would cost.

Everything is computed in the model's dtype: the numbers are those of a quantized model, memory and speed are
not.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from evalsuite.foundation import ConfigError
from evalsuite.models.decoder.model import StudentForCausalLM
from evalsuite.models.mixers import Mixer, RecurrentMixer, StateKind
from evalsuite.models.ops.quantization import quantize_dequantize

MixerOrClass = TypeVar("MixerOrClass", Mixer, type[Mixer])


@torch.no_grad()
def round_weights(model: Any, kind: str) -> None:
    """Round the linear layers of mixers and MLPs in place, with one scale per output channel.

    Embeddings, head, norms, biases, convolutions and parameters that are no linear layer (decays) stay.

    Args:
        model: a `StudentForCausalLM`.
        kind: as in `quantize_dequantize`.

    Raises:
        ConfigError: a model that is no decoder of evalsuite, or a weight that is not finite.
    """
    _require_decoder(model)
    for name, module in model.model.layers.named_modules():
        if isinstance(module, nn.Linear):
            rounded = quantize_dequantize(module.weight, kind, dim=1)
            if not bool(rounded.isfinite().all()):
                raise ConfigError(f"weights = {kind}: layer {name} has weights that are not finite")
            module.weight.copy_(rounded)


def round_states(model: Any, kind: str) -> None:
    """Round recurrent states from now on whenever a layer stores one in a cache.

    Args:
        model: a `StudentForCausalLM`.
        kind: as in `quantize_dequantize`; int8 and fp8 have one scale per head and key channel.

    Raises:
        ConfigError: a model that is no decoder of evalsuite, without recurrent states, or with layers of
            another package whose states cannot be rounded.
    """
    _require_decoder(model)
    mixers = [layer.self_attn for layer in model.model.layers]
    for each in with_states(mixers, kind):
        if not any(isinstance(part, RecurrentMixer) for part in each.modules()):
            raise ConfigError(f"state = {kind}: mixer {each.name} stores its state itself")
    for mixer in _state_precisions(model):
        mixer.state_precision = kind


def with_states(mixers: Iterable[MixerOrClass], kind: str) -> list[MixerOrClass]:
    """The mixers of a model with a recurrent state, or their classes. Raises ConfigError without one."""
    found = [each for each in mixers if StateKind.RECURRENT in each.state_kind]
    if not found:
        raise ConfigError(f"state = {kind}: the model has no recurrent state")
    return found


def rounds_states(model: Any) -> bool:
    """Whether any layer rounds its state."""
    return any(_state_precisions(model).values())


@contextmanager
def state_precision(model: Any, kind: str | None) -> Iterator[None]:
    """Round the recurrent states of a model to `kind` in this context, or not at all (None).

    Raises:
        ConfigError: as `round_states`.
    """
    before = _state_precisions(model)
    for mixer in before:
        mixer.state_precision = None
    try:
        if kind is not None:
            round_states(model, kind)
        yield
    finally:
        for mixer, precision in before.items():
            mixer.state_precision = precision


def _state_precisions(model: Any) -> dict[RecurrentMixer, str | None]:
    return {each: each.state_precision for each in model.modules() if isinstance(each, RecurrentMixer)}


def _require_decoder(model: Any) -> None:
    if not isinstance(model, StudentForCausalLM):
        raise ConfigError(
            f"{type(model).__name__} is not run by evalsuite's decoder, which alone rounds weights and states"
        )
