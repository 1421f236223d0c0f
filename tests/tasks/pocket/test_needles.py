"""Needles: RULER's structure, and contexts that are as full as they say."""

import re
from collections.abc import Callable

import pytest

from evalsuite.tasks.pocket import CONTEXTS, count_tokens, rows
from evalsuite.tasks.pocket.drawing import generator
from evalsuite.tasks.pocket.needles import NOISE, STYLES, draw

PROMPT = re.compile(
    r"Some special magic (?P<kind>number|string)s are hidden within the following text\. "
    r"Make sure to memorize it\. I will quiz you about the (?P=kind)s afterwards\.\n(?P<text>[^\n]*)\n"
    r"What is the special magic (?P=kind) for (?P<key>\w+ \w+) mentioned in the provided text\? "
    r"The special magic (?P=kind) for (?P=key) mentioned in the provided text is"
)
VALUES = {"number": r"[1-9][0-9]{6}", "string": r"[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}"}


def _sentences(text: str) -> list[str]:
    return [part + "." for part in text.removesuffix(".").split(". ")]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("style", STYLES)
def test_one_needle_in_filler(style: str, context: int) -> None:
    for row in rows(style, count=20, context=context):
        match = PROMPT.fullmatch(row["prompt"])
        assert match is not None, row["prompt"]
        needle = f"One of the special magic {match['kind']}s for {match['key']} is: {row['answer']}."
        assert match["kind"] == STYLES[style].value
        assert re.fullmatch(VALUES[match["kind"]], row["answer"])
        assert match["text"].count("One of the special magic") == 1
        sentences = _sentences(match["text"])
        sentences.remove(needle)
        if style == "niah_single_1":
            assert sentences == [NOISE[place % len(NOISE)] for place in range(len(sentences))]
        else:
            assert not set(sentences) & set(NOISE)
            assert not re.search(r"\d", " ".join(sentences))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("style", STYLES)
def test_the_context_is_full(style: str, context: int) -> None:
    """Prompt and reserve fit the context; with one more sentence of the same filler they would not."""
    chosen = STYLES[style]

    def filler(size: int, index: int) -> tuple[int, list[str]]:
        question = draw(generator("test", index), chosen, size, count_tokens)[0]
        match = PROMPT.fullmatch(question.prompt)
        assert match is not None
        kept = [part for part in _sentences(match["text"]) if not part.startswith("One of the special")]
        return size - chosen.reserve - count_tokens(question.prompt), kept

    for index in range(10):
        room, sentences = filler(context, index)
        _, more = filler(context + 64, index)
        assert room >= 0
        assert more[: len(sentences)] == sentences
        assert count_tokens(f" {more[len(sentences)]}") > room


def test_the_reserve_holds_every_answer() -> None:
    for style in STYLES:
        for row in rows(style, count=50, context=128):
            assert all(count_tokens(f"{choice}\n") <= STYLES[style].reserve for choice in row["choices"])


@pytest.mark.parametrize("style", STYLES)
def test_needles_lie_at_all_depths(style: str) -> None:
    depths = []
    for row in rows(style, count=60, context=512):
        text = row["prompt"].split("\n")[1]
        depths.append(text.index("One of the special magic") / len(text))
    assert min(depths) < 0.15
    assert max(depths) > 0.75
    assert 0.3 < sum(depths) / len(depths) < 0.6


@pytest.mark.parametrize("counter", [len, lambda text: -(-len(text) // 3)])
def test_another_tokenizer_fits_too(counter: Callable[[str], int]) -> None:
    for row in rows("niah_single_2", count=5, context=2048, count_tokens=counter):
        left = 2048 - STYLES["niah_single_2"].reserve - counter(row["prompt"])
        # The second one's counts do not add up, so it may leave more room than one sentence takes.
        assert 0 <= left < 150
