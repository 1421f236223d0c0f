"""Classes of tokens by what predicting them takes: looking back in the text, or knowing the language.

arXiv 2606.20936 ("Which tokens does a hybrid predict better?") averages losses over classes of tokens. It
finds that recurrent layers lose where a token repeats earlier text verbatim (its n-gram repetitions), which
attention looks up, and not on words that are new to the text; it controls for token frequency. The
thresholds of its classes were not available. These are the definitions here; each token is in exactly one
class, the first that applies:

- `copied`: the token completes an n-gram (`NGRAM` tokens, itself included) that stands earlier in the same
  text, so that it can be copied from there by matching the `NGRAM` − 1 tokens before it.
- `repeated`: the token itself stands earlier in the same text, after other tokens.
- `frequent`: it is new to the text, and among the most frequent tokens of a reference corpus: the smallest
  set whose occurrences make up `COVERAGE` of that corpus.
- `rare`: it is new to the text and not among those.
"""

import numpy as np
from numpy.typing import NDArray

from evalsuite.foundation import ConfigError

CLASSES = ("copied", "repeated", "frequent", "rare")
"""Names of the classes; `classify` returns their places here."""
COPIED, REPEATED, FREQUENT, RARE = range(len(CLASSES))

NGRAM = 4
"""Tokens that must stand earlier in the same order for the last of them to count as copied."""
COVERAGE = 0.8
"""Share of a reference corpus that the frequent tokens make up."""


def frequent_tokens(counts: NDArray[np.int64], coverage: float = COVERAGE) -> NDArray[np.bool_]:
    """Return which tokens are frequent: the smallest set that makes up `coverage` of a corpus.

    Args:
        counts: [vocabulary], occurrences of each token in the corpus; ties are broken by the lower id.
        coverage: above 0, at most 1.

    Returns:
        bool [vocabulary]; a token that never occurs is not frequent.

    Raises:
        ConfigError: `coverage` is out of range, or the corpus is empty.
    """
    if not 0 < coverage <= 1:
        raise ConfigError(f"coverage = {coverage}: must be above 0 and at most 1")
    total = int(counts.sum())
    if total == 0:
        raise ConfigError("the reference corpus holds no token")
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    frequent = np.zeros(len(counts), dtype=bool)
    frequent[order[before < coverage * total]] = True
    return frequent & (counts > 0)


def classify(
    tokens: NDArray[np.integer], frequent: NDArray[np.bool_], ngram: int = NGRAM
) -> NDArray[np.uint8]:
    """Return the class of every token of one text.

    Args:
        tokens: [length], ids of one text from its beginning.
        frequent: [vocabulary], as `frequent_tokens` returns it.
        ngram: see `NGRAM`; at least 2.

    Returns:
        uint8 [length], places in `CLASSES`. The first token is always frequent or rare.

    Raises:
        ConfigError: `ngram` is below 2.
    """
    if ngram < 2:
        raise ConfigError(f"ngram = {ngram}: must be at least 2, or every repeated token would be copied")
    found = np.where(frequent[tokens], FREQUENT, RARE).astype(np.uint8)
    found[previous_places(tokens, 1) >= 0] = REPEATED
    found[previous_places(tokens, ngram) >= 0] = COPIED
    return found


def previous_places(tokens: NDArray[np.integer], ngram: int) -> NDArray[np.int64]:
    """Return for every token where the n-gram that it completes stood last.

    N-grams are numbered by sorting, exactly: those of m tokens first, then those of up to 2m as pairs of such
    numbers, in O(n log n) for n tokens.

    Args:
        tokens: [length], ids of one text from its beginning.
        ngram: tokens of an n-gram, at least 1.

    Returns:
        int64 [length]: the greatest earlier place whose n-gram is the same; −1 if there is none, or if fewer
        than `ngram` tokens end there.

    Raises:
        ConfigError: `ngram` is below 1.
    """
    if ngram < 1:
        raise ConfigError(f"ngram = {ngram}: must be at least 1")
    found = np.full(len(tokens), -1, dtype=np.int64)
    if len(tokens) < ngram:
        return found
    numbers = np.unique(tokens, return_inverse=True)[1].reshape(-1)
    width = 1
    while width < ngram:
        step = min(width, ngram - width)
        pairs = numbers[:-step].astype(np.int64) * len(tokens) + numbers[step:]
        numbers, width = np.unique(pairs, return_inverse=True)[1].reshape(-1), width + step
    order = np.argsort(numbers, kind="stable")
    same = numbers[order[1:]] == numbers[order[:-1]]
    found[order[1:][same] + ngram - 1] = order[:-1][same] + ngram - 1
    return found


def position_buckets(length: int, edges: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the bucket of every position of a text: the number of edges at or below it.

    Args:
        length: tokens of the text.
        edges: ascending, exclusive upper ends: (512, 1024, 2048) gives the buckets 0 to 511, 512 to
            1023 and 1024 to 2047.

    Returns:
        uint8 [length], each below `len(edges)`.

    Raises:
        ConfigError: the text is longer than the last edge, or the edges do not ascend.
    """
    if list(edges) != sorted(set(edges)) or not edges:
        raise ConfigError(f"edges = {edges}: must ascend")
    if length > edges[-1]:
        raise ConfigError(f"a text of {length} tokens is longer than the last edge, {edges[-1]}")
    return np.searchsorted(np.asarray(edges), np.arange(length), side="right").astype(np.uint8)
