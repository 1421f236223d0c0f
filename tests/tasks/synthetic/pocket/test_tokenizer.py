"""The pocket tokenizer: words, digits, no unknown tokens, and `count_tokens`."""

import re
import string
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalsuite.tasks.synthetic.pocket import (
    build_tokenizer,
    corpus,
    count_tokens,
    lexicon,
    load_tokenizer,
    rows,
)
from evalsuite.tasks.synthetic.pocket.tokenizer import PATTERN, words

TOKENIZER = build_tokenizer()


@given(st.text())
def test_any_text_round_trips_and_is_counted(text: str) -> None:
    encoding = TOKENIZER.encode(text)
    assert TOKENIZER.decode(encoding.ids) == text
    assert count_tokens(text) == len(encoding.ids)


def test_printable_ascii_round_trips() -> None:
    for character in string.printable:
        assert TOKENIZER.decode(TOKENIZER.encode(f"x{character}y").ids) == f"x{character}y"


def test_digits_are_single_tokens() -> None:
    assert [len(TOKENIZER.encode(text).ids) for text in ("7", "1234567", " 42")] == [1, 7, 3]


def test_words_of_the_world_are_single_tokens() -> None:
    lists = (lexicon.NAMES, lexicon.TOWNS, lexicon.RIVERS, lexicon.TRADES, lexicon.PETS, lexicon.DISHES)
    more = (lexicon.PRODUCTS, lexicon.THINGS, lexicon.QUALITIES, lexicon.SPOTS, lexicon.GOODS, lexicon.TIMES)
    for word in (word for each in (*lists, *more) for word in each):
        assert count_tokens(f" {word}") == 1, word


def test_word_lists_are_disjoint() -> None:
    every = [word for value in vars(lexicon).values() if isinstance(value, tuple) for word in value]
    assert len(every) == len(set(every))


def test_corpus_has_no_out_of_vocabulary_words() -> None:
    """Except for letters of hexadecimal strings, which are single tokens by design."""
    known = set(words())
    for text in islice(corpus(1), 1500):
        for piece in re.findall(PATTERN, text):
            assert len(piece) == 1 or piece in known or re.fullmatch(" ?[a-f]{1,4}", piece), piece


def test_token_counts_are_additive_at_word_boundaries() -> None:
    row = rows("niah_single_2", count=1, context=256)[0]
    places = [match.start() for match in re.finditer(r" [A-Za-z]", row["prompt"])]
    for place in places:
        assert count_tokens(row["prompt"]) == count_tokens(row["prompt"][:place]) + count_tokens(
            row["prompt"][place:]
        )


def test_prompt_and_choice_tokenize_independently() -> None:
    """Log-likelihood then scores exactly the tokens that generation would produce."""
    for task in ("facts", "arithmetic", "recall"):
        for row in rows(task, count=20):
            prompt = TOKENIZER.encode(row["prompt"]).ids
            for choice in row["choices"]:
                assert TOKENIZER.encode(row["prompt"] + choice).ids == prompt + TOKENIZER.encode(choice).ids


@pytest.mark.parametrize("text", ["", "Answer: goat\n"])
def test_tokenizer_adds_no_special_tokens(text: str) -> None:
    tokenizer = load_tokenizer()
    assert tokenizer(text)["input_ids"] == TOKENIZER.encode(text).ids
    assert tokenizer.bos_token is None
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (0, 1, 960)
