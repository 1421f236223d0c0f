"""What engines prove at load: the same logits however a text is read.

A text that is read in parts, with others, or token by token must give the logits of the text read whole and
alone. The texts here are short; what only shows at greater lengths must be known from the config.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError, EvalsuiteError

TOKENS = 24
"""Length of the longest text."""
MIN_TOKENS = 8

Text = tuple[int, ...]

_ROUNDING = {"cpu": 2e-4, "cuda": 3e-2}
"""Largest deviation of a logit that is rounding in float32, as a share of the logits' standard deviation.
Kernels for GPUs multiply in TF32."""
_HALF_ROUNDING = 0.25
"""The same for 16-bit dtypes, of the mean over the vocabulary at the median position."""


class UnsupportedModelError(ConfigError):
    """A model that an engine cannot run, or whose numbers it would get wrong."""


@contextmanager
def refuse_unsupported(what: str) -> Iterator[None]:
    """Turn what a model raises while it is tried on a few tokens, which can be anything, into a refusal.

    Args:
        what: the model does wrong.

    Raises:
        UnsupportedModelError: the model cannot be run; the cause is chained.
    """
    try:
        yield
    except (EvalsuiteError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(f"{what} ({type(error).__name__}: {error})") from error


def proof_texts(vocab_size: int, positions: int | None) -> list[Text]:
    """Texts of three lengths, two of them equal, in an order in which the prefix matters.

    Args:
        vocab_size: ids are below it.
        positions: most tokens of a text; None: no limit.

    Raises:
        UnsupportedModelError: the model reads fewer than `MIN_TOKENS` tokens.
    """
    longest = min(TOKENS, positions or TOKENS)
    if longest < MIN_TOKENS:
        raise UnsupportedModelError(f"it reads {longest} tokens; engines are checked on {MIN_TOKENS} or more")
    lengths = (longest, longest * 2 // 3, longest * 2 // 3, longest // 2)
    return [
        tuple((7 * place + 3 + 11 * number) % vocab_size for place in range(length))
        for number, length in enumerate(lengths)
    ]


def largest_deviation(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float | None:
    """Compare logits of texts.

    Args:
        expected, found: per text, logits [T, V] of the same tokens.

    Returns:
        None if they differ by rounding alone; otherwise the largest difference, infinite if logits are finite
        in one of them only. Positions that are not finite in either are left out: there every response is
        an error.
    """
    a, b = torch.cat(list(expected)), torch.cat(list(found))
    half = expected[0].dtype not in (torch.float32, torch.float64)
    a, b = a.float(), b.float()
    finite = a.isfinite().all(-1)
    if not torch.equal(finite, b.isfinite().all(-1)):
        return float("inf")
    a, b = a[finite], b[finite]
    if not len(a):
        return None
    difference = (a - b).abs()
    spread = a.std(-1).clamp(min=1e-6)
    if half:
        # Single positions are not conclusive: massive activations at first and special tokens make two
        # summation orders differ by whole nats.
        close = float((difference.mean(-1) / spread).median()) < _HALF_ROUNDING
    else:
        close = bool((difference.amax(-1) <= _ROUNDING.get(a.device.type, _ROUNDING["cuda"]) * spread).all())
    return None if close else float(difference.max())
