"""Load-time check that the engine carries everything that a model remembers of a text it has read.

The engine reads a context once and continues it per choice and token, through caches of its own. A model that
keeps its state elsewhere, such as RWKV, would silently start each part of a text afresh.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError, EvalsuiteError
from evalsuite.models.inference.torch.kv_cache import KVCache
from evalsuite.models.inference.torch.model_runner import ModelRunner, logits_close

TOKENS = 24


@contextmanager
def refuse_unsupported(model: PreTrainedModel) -> Iterator[None]:
    """Turn what a model raises while it is tried on a few tokens into a refusal in words.

    Models with caches of their own kind call methods that the engine's caches do not have, or reshape masks
    and states in ways that only they know: what they raise can be anything.

    Raises:
        ConfigError: the model cannot be run; the cause is chained.
    """
    try:
        yield
    except (EvalsuiteError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ConfigError(
            f"{type(model).__name__}: engine torch cannot run this architecture, whose layers do not work "
            f"with its caches ({type(error).__name__}: {error}); use another one (`evalsuite show engines`)"
        ) from error


@torch.inference_mode()
def verify_cache(runner: ModelRunner, model: PreTrainedModel) -> None:
    """Compare the logits of a text that is read in three parts with those of the text read whole.

    The last part is a single token, as in generation. A model whose logits are not finite is not compared.

    Raises:
        ConfigError: they differ by more than rounding.
    """
    count = min(TOKENS, runner.vocab_size)
    # In an order in which the prefix matters, and without special tokens at the cuts.
    tokens = [(7 * number + 3) % runner.vocab_size for number in range(count)]
    hidden, _ = runner.prefill([tokens])
    whole = runner.lm_head(hidden).float()
    if not whole.isfinite().all():
        return
    cuts = [0, count // 2, count - 1, count]
    cache: KVCache | None = None
    parts: list[Tensor] = []
    for start, end in itertools.pairwise(cuts):
        hidden, cache = runner.prefill(
            [tokens[start:end]], parent=cache, parent_rows=None if cache is None else [0], keep=True
        )
        parts.append(runner.lm_head(hidden).float())
    exact = runner.dtype in (torch.float32, torch.float64)
    # Only what follows the first cut depends on the cache.
    after = slice(cuts[1], None)
    joined = torch.cat(parts, 1)
    if not logits_close(whole[:, after], joined[:, after], exact=exact):
        deviation = float((whole - joined)[:, after].abs().max())
        raise ConfigError(
            f"{type(model).__name__}: a text read in parts gives other logits than the text read whole, by "
            f"up to {deviation:.3g}: engine torch does not carry all of this architecture's state; use "
            "another one (`evalsuite show engines`)"
        )
