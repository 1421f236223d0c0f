"""Decode batches of any context without a prefill: caches filled with the states of a short text.

The time of a decode step depends on the shapes of its caches, not on their values. A sweep over batch sizes
would otherwise spend its time on prefills, and could not reach batches whose prefill does not fit.
"""

import torch
from torch import Tensor

from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.sampling import SamplingMetadata
from evalsuite.models.inference.torch.kv_cache import KVCache, LayerState
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import KEY_BLOCK, DecodeBatch

SHORT_TOKENS = 64
"""Tokens of the text whose states are repeated."""


def allocate_batch(
    runner: ModelRunner, sample: KVCache, *, num_seqs: int, context: int, new_tokens: int
) -> DecodeBatch:
    """A decode batch with empty caches of `context + new_tokens` tokens, as the scheduler allocates it."""
    capacity = -(-(context + new_tokens) // KEY_BLOCK) * KEY_BLOCK
    greedy = SamplingMetadata.allocate(
        num_seqs, [GenerateRequest((0,), SamplingParams(new_tokens))], runner.device
    )
    batch = DecodeBatch(runner, sample, greedy, num_seqs, capacity)
    batch.position.fill_(context)
    return batch


@torch.inference_mode()
def synthetic_batch(runner: ModelRunner, *, num_seqs: int, context: int, new_tokens: int) -> DecodeBatch:
    """A decode batch whose sequences have `context` tokens, each with states of a short random text.

    Raises:
        torch.OutOfMemoryError: the caches do not fit.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(runner.vocab_size, (min(SHORT_TOKENS, context),), generator=generator)
    _, short = runner.prefill([tokens.tolist()], keep=True)
    assert short is not None
    batch = allocate_batch(runner, short, num_seqs=num_seqs, context=context, new_tokens=new_tokens)
    for stored, source in zip(batch.cache.layers, short.layers, strict=True):
        _fill(stored, source, context)
    batch.token.copy_(tokens[-1].to(runner.device))
    return batch


def _fill(stored: LayerState, source: LayerState, context: int) -> None:
    """Repeat the single row of `source` over all rows, its keys and values also over `context` tokens."""
    for mine, short in ((stored.keys, source.keys), (stored.values, source.values)):
        if mine is not None and short is not None:
            _repeat_tokens(mine, short, context)
    for name, state in source.recurrent.items():
        stored.recurrent[name].copy_(state.expand_as(stored.recurrent[name]))
        if name == "length":
            stored.recurrent[name].fill_(context)


def _repeat_tokens(target: Tensor, short: Tensor, context: int) -> None:
    """Fill `target` [R, H, L, D] up to `context` with `short` [1, H, T, D], again and again."""
    done = min(short.shape[2], context)
    target[:, :, :done] = short[:, :, :done]
    # Doubling copies need few kernels, however long the context is.
    while done < context:
        count = min(done, context - done)
        target[:, :, done : done + count] = target[:, :, :count]
        done += count
