"""Load-time check that the engine carries everything that a model remembers of a text it has read.

The engine reads a context once and continues it per choice and token, through caches of its own, in batches.
A model that keeps its state elsewhere, such as RWKV, would silently start each part of a text afresh.
"""

from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.models.checkpoints.positions import stated_positions
from evalsuite.models.inference.proof import Text, UnsupportedModelError, largest_deviation, proof_texts
from evalsuite.models.inference.sampling import SamplingMetadata
from evalsuite.models.inference.torch.kv_cache import KVCache
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import DecodeBatch

STEPS = 3
"""Tokens that are read one at a time, as in generation."""


@torch.inference_mode()
def verify_cache(runner: ModelRunner, model: PreTrainedModel) -> None:
    """Compare texts that are read in parts, in a batch, and token by token, with each read whole and alone.

    Raises:
        UnsupportedModelError: they differ by more than rounding.
    """
    try:
        _compare_all(runner, model)
    except UnsupportedModelError as refusal:
        if runner.device.type != "cpu" or runner.dtype is not torch.float32:
            raise
        # Many layers with weights that are not trained make much of rounding, which float64 has not.
        double = deepcopy(model).double()
        try:
            _compare_all(ModelRunner(double), double)
        except RuntimeError:
            # Some layers compute in float32 only (gpt-oss, XGLM).
            raise refusal from None


def _compare_all(runner: ModelRunner, model: PreTrainedModel) -> None:
    texts = proof_texts(runner.vocab_size, stated_positions(model.config))
    whole = [
        model(input_ids=torch.tensor([text], device=runner.device), use_cache=False).logits[0]
        for text in texts
    ]
    hidden, cache = runner.prefill([_start(text) for text in texts], keep=True)
    assert cache is not None
    _compare(
        model, "in a batch", whole, runner.head.logits(hidden), [(0, len(_start(text))) for text in texts]
    )
    # Branches in another order than their contexts, as choices of questions are.
    order = list(reversed(range(len(texts))))
    rest = [texts[row][len(_start(texts[row])) : -STEPS] for row in order]
    hidden, _ = runner.prefill(rest, parent=cache, parent_rows=order)
    places = [(len(_start(texts[row])), len(texts[row]) - STEPS) for row in order]
    _compare(model, "in parts", [whole[row] for row in order], runner.head.logits(hidden), places)
    logits = _decode(runner, texts, cache)
    places = [(len(_start(text)), len(_start(text)) + STEPS) for text in texts]
    _compare(model, "token by token", whole, logits, places)


def _start(text: Text) -> Text:
    """The part of a text that is read first; at least one token and `STEPS` more follow."""
    return text[: len(text) // 2]


def _decode(runner: ModelRunner, texts: list[Text], cache: KVCache) -> Tensor:
    """Logits [R, STEPS, V] of the tokens after `_start`, read one at a time in static slots."""
    sampling = SamplingMetadata.allocate(len(texts), (), runner.device)
    length = max(map(len, texts))
    batch = DecodeBatch(runner, cache, sampling, len(texts), length)
    batch.cache.write(range(len(texts)), cache)
    batch.position.copy_(cache.lengths)
    found = []
    for step in range(STEPS):
        tokens = [text[len(_start(text)) + step] for text in texts]
        batch.token.copy_(torch.tensor(tokens, device=runner.device))
        found.append(batch.read(len(texts), length))
        batch.position.add_(1)
    return torch.stack(found, 1)


def _compare(
    model: PreTrainedModel, how: str, whole: list[Tensor], logits: Tensor, places: list[tuple[int, int]]
) -> None:
    expected = [each[start:end] for each, (start, end) in zip(whole, places, strict=True)]
    found = [row[: end - start] for row, (start, end) in zip(logits, places, strict=True)]
    if (deviation := largest_deviation(expected, found)) is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__}: a text that engine torch reads {how} gives other logits than the text "
            f"read whole, by up to {deviation:.3g}"
        )
