"""Needle tasks: RULER's prompt structure and full contexts."""

import re
from collections.abc import Callable

import pytest

from evalsuite.tasks.synthetic.pocket import CONTEXTS, count_tokens, rows
from evalsuite.tasks.synthetic.pocket.niah import NOISE, TASKS, draw
from evalsuite.tasks.synthetic.pocket.question import generator

PROMPT = re.compile(
    r"Some special magic (?P<task>number|string)s are hidden within the following text\. "
    r"Make sure to memorize it\. I will quiz you about the (?P=task)s afterwards\.\n(?P<text>[^\n]*)\n"
    r"What is the special magic (?P=task) for (?P<key>\w+ \w+) mentioned in the provided text\? "
    r"The special magic (?P=task) for (?P=key) mentioned in the provided text is"
)
VALUES = {"number": r"[1-9][0-9]{6}", "string": r"[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}"}


def _sentences(text: str) -> list[str]:
    return [part + "." for part in text.removesuffix(".").split(". ")]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("task", TASKS)
def test_prompt_has_one_needle_in_filler(task: str, context: int) -> None:
    for row in rows(task, count=20, context=context):
        match = PROMPT.fullmatch(row["prompt"])
        assert match is not None, row["prompt"]
        needle = f"One of the special magic {match['task']}s for {match['key']} is: {row['answer']}."
        assert match["task"] == TASKS[task].value
        assert re.fullmatch(VALUES[match["task"]], row["answer"])
        assert match["text"].count("One of the special magic") == 1
        sentences = _sentences(match["text"])
        sentences.remove(needle)
        if task == "niah_single_1":
            assert sentences == [NOISE[place % len(NOISE)] for place in range(len(sentences))]
        else:
            assert not set(sentences) & set(NOISE)
            assert not re.search(r"\d", " ".join(sentences))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("task", TASKS)
def test_context_is_full(task: str, context: int) -> None:
    """Prompt and reserved tokens fit the context; with one more filler sentence they would not."""
    chosen = TASKS[task]

    def filler(size: int, index: int) -> tuple[int, list[str]]:
        question = draw(generator("test", index), chosen, size, count_tokens)[0]
        match = PROMPT.fullmatch(question.prompt)
        assert match is not None
        filler_sentences = [
            part for part in _sentences(match["text"]) if not part.startswith("One of the special")
        ]
        return size - chosen.tokens_to_generate - count_tokens(question.prompt), filler_sentences

    for index in range(10):
        room, sentences = filler(context, index)
        _, more = filler(context + 64, index)
        assert room >= 0
        assert more[: len(sentences)] == sentences
        assert count_tokens(f" {more[len(sentences)]}") > room


def test_reserved_tokens_hold_every_answer() -> None:
    for task in TASKS:
        for row in rows(task, count=50, context=128):
            assert all(
                count_tokens(f"{choice}\n") <= TASKS[task].tokens_to_generate for choice in row["choices"]
            )


@pytest.mark.parametrize("task", TASKS)
def test_needle_depths_cover_the_context(task: str) -> None:
    depths = []
    for row in rows(task, count=60, context=512):
        text = row["prompt"].split("\n")[1]
        depths.append(text.index("One of the special magic") / len(text))
    assert min(depths) < 0.15
    assert max(depths) > 0.75
    assert 0.3 < sum(depths) / len(depths) < 0.6


@pytest.mark.parametrize("counter", [len, lambda text: -(-len(text) // 3)])
def test_other_tokenizers_fit_the_context(counter: Callable[[str], int]) -> None:
    for row in rows("niah_single_2", count=5, context=2048, count_tokens=counter):
        left = 2048 - TASKS["niah_single_2"].tokens_to_generate - counter(row["prompt"])
        # Counts of the second one are not additive, so it may leave more room than one sentence.
        assert 0 <= left < 150
