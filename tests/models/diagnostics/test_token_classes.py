"""Token classes and position buckets on sequences made by hand."""

import numpy as np
import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models.diagnostics.token_classes import (
    CLASSES,
    classify,
    frequent_tokens,
    position_buckets,
    previous_places,
)


def names(tokens: list[int], frequent: list[int], ngram: int) -> list[str]:
    known = np.zeros(100, dtype=bool)
    known[frequent] = True
    return [CLASSES[place] for place in classify(np.array(tokens), known, ngram)]


def test_every_class_on_a_sequence_made_by_hand() -> None:
    #         1 is frequent; 1 2 3 comes back, its third token completes a trigram seen before
    tokens = [1, 2, 3, 4, 1, 2, 3, 9]
    expected = ["frequent", "rare", "rare", "rare", "repeated", "repeated", "copied", "rare"]
    assert names(tokens, [1], ngram=3) == expected


def test_a_longer_ngram_copies_less() -> None:
    tokens = [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert names(tokens, [], ngram=2)[4:] == ["repeated", "copied", "copied", "copied", "copied"]
    assert names(tokens, [], ngram=4)[4:] == ["repeated", "repeated", "repeated", "copied", "copied"]


def test_an_ngram_may_overlap_itself() -> None:
    assert names([5, 5, 5, 5], [], ngram=3) == ["rare", "repeated", "repeated", "copied"]


def test_short_texts_and_numpy_dtypes() -> None:
    known = np.ones(10, dtype=bool)
    assert classify(np.array([], dtype=np.uint16), known).tolist() == []
    assert classify(np.array([3], dtype=np.uint16), known).tolist() == [CLASSES.index("frequent")]


@pytest.mark.parametrize("ngram", [1, 2, 3, 4, 5, 7])
def test_previous_places_are_those_of_a_search(ngram: int) -> None:
    generator = np.random.default_rng(ngram)
    for length in (0, 1, ngram, 200):
        tokens = generator.integers(0, 4, length).astype(np.uint16)
        grams = [tuple(tokens[max(0, end - ngram + 1) : end + 1].tolist()) for end in range(length)]
        expected = [
            max((place for place in range(ngram - 1, end) if grams[place] == grams[end]), default=-1)
            if end >= ngram - 1
            else -1
            for end in range(length)
        ]
        assert previous_places(tokens, ngram).tolist() == expected


def test_ngrams_of_no_token_are_refused() -> None:
    with pytest.raises(ConfigError, match="ngram = 0"):
        previous_places(np.array([1]), 0)


def test_unigrams_are_refused() -> None:
    with pytest.raises(ConfigError, match="ngram = 1"):
        classify(np.array([1]), np.ones(2, dtype=bool), ngram=1)


def test_frequent_tokens_are_the_smallest_set_that_covers() -> None:
    counts = np.array([10, 50, 0, 30, 10])
    assert frequent_tokens(counts, 0.5).tolist() == [False, True, False, False, False]
    assert frequent_tokens(counts, 0.51).tolist() == [False, True, False, True, False]
    # 80 of 100 are covered by two; the third, of two tied ones, has the lower id.
    assert frequent_tokens(counts, 0.81).tolist() == [True, True, False, True, False]
    assert frequent_tokens(counts, 1.0).tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("coverage", [0.0, 1.1])
def test_coverage_out_of_range_is_refused(coverage: float) -> None:
    with pytest.raises(ConfigError, match="coverage"):
        frequent_tokens(np.array([1]), coverage)


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(ConfigError, match="no token"):
        frequent_tokens(np.zeros(3, dtype=np.int64))


def test_position_buckets() -> None:
    assert position_buckets(7, (2, 4, 8)).tolist() == [0, 0, 1, 1, 2, 2, 2]
    with pytest.raises(ConfigError, match="longer than the last edge"):
        position_buckets(9, (2, 4, 8))
    with pytest.raises(ConfigError, match="must ascend"):
        position_buckets(1, (4, 4))
