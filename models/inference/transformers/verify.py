"""Load-time checks of a model in the transformers engine: is it causal, and how may its texts be read?

Reading each text alone and whole is always right. Batches and the model's own cache are used only if they
give the same logits.
"""

import torch
from torch import Tensor

from evalsuite.models.checkpoints.positions import stated_positions
from evalsuite.models.inference.proof import (
    Text,
    UnsupportedModelError,
    largest_deviation,
    proof_texts,
    refuse_unsupported,
)
from evalsuite.models.inference.transformers.runner import CachedReader, PlainRunner

STEPS = 4
"""Tokens that are read one at a time."""


@torch.inference_mode()
def verify(runner: PlainRunner) -> list[str]:
    """Find out how the model may read texts, and set it in `runner`.

    Returns:
        What the model's batches or cache get wrong, in words; empty if all is right.

    Raises:
        UnsupportedModelError: the model cannot be run at all, or not twice with the same logits, or sees
            tokens before they are read.
    """
    name = type(runner.model).__name__
    texts = proof_texts(runner.vocab_size, stated_positions(runner.model.config))
    with refuse_unsupported(f"{name}: transformers cannot run it on plain token ids"):
        whole = [runner.logits([text])[0] for text in texts]
    runner.vocab_size = min(runner.vocab_size, whole[0].shape[-1])
    continued = runner.logits([texts[1] + texts[0][: len(texts[0]) - len(texts[1])]])[0, : len(texts[1])]
    if (deviation := largest_deviation(whole[1:2], [continued])) is not None:
        if (noise := largest_deviation(whole[1:2], [runner.logits(texts[1:2])[0]])) is not None:
            raise UnsupportedModelError(f"{name}: the logits of two equal passes differ by up to {noise:.3g}")
        raise UnsupportedModelError(
            f"{name}: the logits of a text change by up to {deviation:.3g} when other tokens follow it, so "
            "that it is no causal language model: it would predict tokens that it has seen"
        )
    problems: list[str] = []
    equal = _batch_deviation(runner, whole[1:3], texts[1:3])
    if equal is None:
        runner.batching = "equal lengths"
        equal = _batch_deviation(runner, whole, texts)
        if equal is None:
            runner.batching = "padded"
    if equal is not None:
        problems.append(f"texts in a batch give other logits than alone, by up to {equal}")
    wrong = _cache_deviation(runner, whole[:1], texts[:1])
    if wrong is not None:
        how = "generation reads every text again for every token"
    else:
        how, runner.caching = "generation is one text at a time", "single texts"
        if runner.batching != "single texts":
            wrong = _cache_deviation(runner, whole, texts)
            runner.caching = "batches" if wrong is None else runner.caching
    if wrong is not None:
        problems.append(f"its own cache gives other logits than the text read whole ({wrong}): {how}")
    return problems


def _batch_deviation(runner: PlainRunner, whole: list[Tensor], texts: list[Text]) -> str | None:
    """How far texts in one batch are from each alone; None: by rounding."""
    try:
        together = runner.logits(texts)
    except Exception as error:  # Code that reads one text only fails in any way.
        return f"{type(error).__name__}: {error}"
    parts = [row[: len(text)] for row, text in zip(together, texts, strict=True)]
    deviation = largest_deviation(whole, parts)
    return None if deviation is None else f"{deviation:.3g}"


def _cache_deviation(runner: PlainRunner, whole: list[Tensor], texts: list[Text]) -> str | None:
    """How far reading on from the cache is from reading whole; None: by rounding. Measures the cache."""
    shortest = min(map(len, texts))
    tokens = torch.tensor([text[:shortest] for text in texts], device=runner.device)
    reader = CachedReader(runner)
    expected: list[Tensor] = []
    found: list[Tensor] = []
    sizes: list[int] = []
    try:
        for end in range(shortest - STEPS, shortest + 1):
            start = end - 1 if found else 0
            found.append(reader.read(tokens[:, start:end]))
            expected.append(torch.stack([each[end - 1] for each in whole]))
            if not reader.cache:
                return "it returns no cache"
            sizes.append(reader.num_bytes() // len(texts))
    except Exception as error:  # Caches of strangers fail in any way.
        return f"{type(error).__name__}: {error}"
    deviation = largest_deviation(expected, found)
    if deviation is not None:
        return f"by up to {deviation:.3g}"
    runner.kv_bytes_per_token = max(0, sizes[-1] - sizes[0]) // STEPS
    runner.state_bytes_per_seq = max(0, sizes[-1] - shortest * runner.kv_bytes_per_token)
    return None
