"""Structure of RULER documents: needles, chains, lists, passages and pairs."""

import json
import random
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from evalsuite.foundation import DataError
from evalsuite.tasks.synthetic.ruler import niah, rows
from evalsuite.tasks.synthetic.ruler.aggregation import frequencies
from evalsuite.tasks.synthetic.ruler.niah import DEPTHS, FILLER, TASKS, Essays
from evalsuite.tasks.synthetic.ruler.words import words as words_of

Inputs = dict[str, list[list[dict[str, Any]]]]
NEEDLE = re.compile(r"One of the special magic (number|uuid)s for (\S.*?) is: (\S+)\.")


def words(text: str) -> int:
    return len(text.split())


def drawn(task: str, inputs: Inputs, context: int = 1024, count: int = 6) -> list[dict[str, Any]]:
    return rows(task, seed=0, count=count, context=context, count_tokens=words, inputs=inputs.get(task, ()))


@pytest.mark.parametrize("task", sorted(TASKS))
def test_needles_and_questions_match_ruler(task: str, inputs: Inputs) -> None:
    spec = TASKS[task]
    for row in drawn(task, inputs):
        head, _, rest = row["prompt"].partition("\n")
        context, _, question = rest.rpartition("\n")
        hidden = NEEDLE.findall(context)
        several = len(row["answers"]) > 1
        some, are, are_all = ("Some", "are", "are all") if several else ("A", "is", "is")
        magic = f"special magic {spec.value}{'s' if several else ''}"
        assert head == (
            f"{some} {magic} {are} hidden within the following text. Make sure to memorize it. I will quiz "
            f"you about the {magic.removeprefix('special magic ')} afterwards."
        )
        there = "mentioned in the provided text"
        question = re.fullmatch(
            rf"What {are_all} the {magic} for (.*) {there}\? The {magic} for (.*) {there} {are}", question
        )
        assert question is not None
        assert question[1] == question[2]
        keys = re.split(r", and |, ", question[1])
        assert len(keys) == spec.queries
        found = {key: [value for _, name, value in hidden if name == key] for key in keys}
        assert sorted(row["answers"]) == sorted(value for values in found.values() for value in values)
        assert len(row["answers"]) == spec.queries * spec.values
        expected = spec.keys * spec.values + (row["units"] if spec.haystack == "needles" else 0)
        assert len(hidden) == expected
        for value in row["answers"]:
            assert re.fullmatch(
                r"\d{7}" if spec.value == "number" else r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value
            )


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "niah_multikey_3"])
def test_needle_position_among_lines(task: str, inputs: Inputs) -> None:
    found = drawn(task, inputs, count=20)
    for row in found:
        lines = row["prompt"].split("\n")[1:-1]
        assert len(lines) == row["units"] + 1
        assert row["answers"][0] in lines[row["position"]]
        if task == "niah_single_1":
            assert lines.count(FILLER) == row["units"]
    shares = [row["position"] / row["units"] for row in found]
    assert min(shares) < 0.25
    assert max(shares) > 0.75


@pytest.mark.parametrize("task", ["niah_single_2", "niah_multikey_1", "niah_multivalue"])
def test_needle_depths_in_essays(task: str, inputs: Inputs) -> None:
    (essays,) = inputs[task]
    text = " ".join(row["text"] for row in essays)
    for row in drawn(task, inputs, context=400):
        context = row["prompt"].split("\n")[1]
        bare = " ".join(NEEDLE.sub("", context).split())
        assert (text + " " + text).startswith(bare)
        assert words(bare) == row["units"]
        sentences = re.findall(r"[^.]+\.?", bare)
        assert sorted(row["depths"]) == row["depths"]
        assert set(row["depths"]) <= set(DEPTHS)
        for depth, needle in zip(row["depths"], NEEDLE.finditer(context), strict=True):
            before = re.findall(r"[^.]+\.?", " ".join(NEEDLE.sub("", context[: needle.start()]).split()))
            assert len(before) == len(sentences) * depth // 100


def test_essays_repeat_when_exhausted() -> None:
    essays = Essays.of_rows([{"text": "One two. Three"}, {"text": "four five.  Six"}])
    assert essays.words(8) == ["One", "two.", "Three", "four", "five.", "Six", "One", "two."]
    assert essays.ends(6) == [2, 5, 6]
    assert essays.ends(8) == [2, 5, 8]
    assert essays.ends(4) == [2, 4]
    with pytest.raises(DataError, match="no text"):
        Essays.of_rows([{"body": "x"}])


def test_an_excerpt_has_all_words_and_sentences_of_the_essays() -> None:
    essays = Essays(["One", "two.", "Three", "four", "five.", "Six", "seven."])
    starts = set()
    for seed in range(20):
        excerpt = essays.excerpt(random.Random(seed))
        found = excerpt.words(7)
        starts.add(found[0])
        assert " ".join(sorted(found)) == " ".join(sorted(essays.words(7)))
        assert excerpt.ends(7) == [end for end, word in enumerate(found, 1) if word.endswith(".")]
    assert starts == {"One", "Three", "Six"}


def test_variable_chains_are_consistent(inputs: Inputs) -> None:
    for row in drawn("vt", inputs):
        example, _, question = row["prompt"].rpartition("Memorize and track the chain(s)")
        statements = re.findall(r"VAR ([A-Z]+) = (?:VAR )?(\S+)", question)
        assert [name for name, _ in statements] == row["answers"]
        value = statements[0][1]
        assert [source for _, source in statements[1:]] == row["answers"][:-1]
        assert re.fullmatch(r"\d{5}", value)
        assert all(re.fullmatch("[A-Z]{5}", name) for name in row["answers"])
        assert f"5 variables are assgined the value {value}, they are:" in question
        assert row["prompt"].endswith("they are:")
        # The example is solved, with different names.
        solved = re.findall(r"VAR ([A-Z]{3}) = ", example)
        assert example.endswith(f"they are:  {' '.join(solved)}\n\n\n\n")
        assert len(set(solved)) == 5
        before = [
            question[: match.start()].count("The grass is green.")
            for match in re.finditer("VAR [A-Z]+ =", question)
        ]
        assert before == row["positions"]
        assert all(a < b for a, b in pairwise(before))
        assert before[-1] < row["units"] == question.count("The grass is green.")
    (short,) = drawn("vt", inputs, context=512, count=1)
    assert short["prompt"].count("Memorize") == 1


@pytest.mark.parametrize(
    ("context", "often", "seldom", "example"), [(1024, 6, 1, (3, 1)), (4096, 30, 3, (10, 3))]
)
def test_common_word_frequencies_match_ruler(
    context: int, often: int, seldom: int, example: tuple[int, int], inputs: Inputs
) -> None:
    for row in drawn("cwe", inputs, context=context, count=2):
        first, second = row["prompt"].split("\nBelow is a numbered list")
        for text, expected in ((first, example), (second, (often, seldom))):
            listed = re.findall(
                r"\d+\. (.+?)(?= \d+\. |$)", text.split("ones that appear most often.\n")[1].split("\n")[0]
            )
            counts = Counter(listed)
            assert sorted(Counter(counts.values())) == sorted(expected)
            assert Counter(counts.values())[expected[0]] == 10
        assert Counter(counts).most_common(10) == [
            (word, often) for word, _ in Counter(counts).most_common(10)
        ]
        assert {word for word, number in counts.items() if number == often} == set(row["answers"])
        assert len(counts) == row["units"]
    (short,) = drawn("cwe", inputs, context=512, count=1)
    (long,) = drawn("cwe", inputs, context=60_000, count=1)
    assert long["units"] > 8200 > len(words_of("noun", "adjective", "verb"))
    assert short["prompt"].count("numbered list") == 1


def test_coded_words_follow_zipf(inputs: Inputs) -> None:
    for row in drawn("fwe", inputs, context=2000):
        text = row["prompt"].split("coded words. ")[1].split("\nQuestion")[0]
        counts = Counter(text.split())
        assert [word for word, _ in counts.most_common(4)] == ["...", *row["answers"]]
        assert [number for _, number in counts.most_common()] == [
            n for n in frequencies(row["units"], 40) if n
        ]
        assert len({number for _, number in counts.most_common(5)}) == 5


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_supporting_passages_are_in_the_prompt(task: str, inputs: Inputs) -> None:
    for row in drawn(task, inputs, context=400):
        passages = re.findall(r"Document (\d+):\n(.*?)\n\n", row["prompt"], flags=re.DOTALL)
        own = 1 if task == "qa_1" else 2
        assert [int(number) for number, _ in passages] == list(range(1, row["units"] + own + 1))
        assert len({passage for _, passage in passages}) == len(passages)
        number = re.search(r"river (\d+)", row["prompt"].split("Question: ")[1])
        assert number is not None
        for position in row["positions"]:
            assert re.search(rf"\b{number[1]}\b", passages[position][1])
        assert len(row["positions"]) == own
        assert row["answers"][0] == f"town {number[1]}"


def test_distractors_of_the_same_article_are_used_first(inputs: Inputs) -> None:
    for row in drawn("qa_1", inputs, context=200):
        numbers = [int(number) for number in re.findall(r"Passage (\d+) ", row["prompt"])]
        queried = int(row["answers"][1])
        near = [number for number in numbers if number % 5 == queried % 5]
        assert len(near) == min(12, len(numbers))


def test_too_few_passages_are_refused(inputs: Inputs) -> None:
    with pytest.raises(DataError, match="all 180 passages make a prompt of"):
        drawn("qa_1", inputs, context=4000, count=1)
    with pytest.raises(DataError, match="qa_2: a row lacks a column of its dataset"):
        drawn("qa_2", {"qa_2": inputs["qa_1"]}, context=400, count=1)


def test_key_value_prompt_is_json_with_one_query(inputs: Inputs) -> None:
    for row in drawn("kv_retrieval", inputs):
        text = row["prompt"].split("JSON data:\n")[1]
        records, _, question = text.partition("\n\nKey: ")
        pairs = json.loads(records)
        key = json.loads(question.split("\n")[0])
        assert len(pairs) == row["units"]
        assert pairs[key] == row["answers"][0]
        assert list(pairs).index(key) == row["position"]
        assert question.endswith("\nCorresponding value:")


def test_mqar_queries_follow_the_power_law(inputs: Inputs) -> None:
    first = []
    for row in drawn("mqar", inputs, count=30):
        *lines, key = row["prompt"].split("\n")
        pairs = dict(line.split() for line in lines[: row["units"]])
        answered = [tuple(line.split()) for line in lines[row["units"] :]]
        assert len(pairs) == row["units"] == len(set(pairs.values()))
        assert not set(pairs) & set(pairs.values())
        assert len(answered) == row["queries"] == len(set(answered))
        assert all(pairs[name] == value for name, value in answered)
        assert key not in dict(answered)
        assert [pairs[key]] == row["answers"]
        assert list(pairs)[row["position"]] == key
        assert row["choices"][row["gold"]] == f" {pairs[key]}"
        assert len(set(row["choices"])) == 16
        assert {choice.strip() for choice in row["choices"]} <= set(pairs.values())
        if answered:
            first.append(list(pairs).index(answered[0][0]) / row["units"])
    # Under the power law, the first gap is mostly taken by one of the first keys.
    assert sum(first) / len(first) < 0.3


def test_niah_constants_match_ruler() -> None:
    assert niah.TOKENS_TO_GENERATE == 128
    assert DEPTHS[:4] == (0, 3, 5, 8)
    assert DEPTHS[-1] == 100
