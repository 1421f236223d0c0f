"""Training questions: what comes out of templates and of running text, and in which prompts."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from evalsuite.distill.data.questions import corpora, promptsource
from evalsuite.distill.data.questions.formats import TrainingQuestion
from evalsuite.protocols.generation import RowConverter
from evalsuite.tasks.benchmark import load_benchmark

CASES = [
    (
        "P3/adversarial_qa_dbert_based_on",
        "Extract the answer to the question from the following context.\n"
        "Question: Who came?\nContext: Ann came.",
        "Ann",
        ("squad", "Passage: Ann came.\nQuestion: Who came?\nAnswer with words from the passage.", "Ann"),
    ),
    (
        "P3/sciq_Multiple_Choice_Closed_Book_",
        "Q: What is frozen water?\n\n\n Choices:\n\n- ice\n\n- steam\n\nA:",
        "ice",
        (
            "arc_easy_text",
            "Question: What is frozen water?\nOptions:\n- ice\n- steam\nAnswer with one of the options.",
            "ice",
        ),
    ),
    (
        "P3/qasc_qa_with_combined_facts_1",
        "If ice floats, then what floats?\n\nAnswer choices:\n- ice\n - iron",
        "ice",
        (
            "sciq",
            "Passage: ice floats\nQuestion: what floats?\n"
            "Options:\n- ice\n- iron\nAnswer with one of the options.",
            "ice",
        ),
    ),
    (
        "flan-cot/qasc",
        "Q: What do fungi need?\nOptions:\n- (A) food\n- (B) light\n Let's think.",
        "Fungi eat. So the final answer is (A).",
        (
            "arc_easy_text",
            "Question: What do fungi need?\nOptions:\n- food\n- light\nAnswer with one of the options.",
            "food",
        ),
    ),
    (
        "flan-cot/strategyqa",
        "Answer step by step. Is ice colder than steam?",
        "Ice is frozen. Steam is hot. So, the answer is yes.",
        (
            "boolq",
            "Passage: Ice is frozen. Steam is hot.\nQuestion: is ice colder than steam?\nAnswer yes or no.",
            "yes",
        ),
    ),
]


@pytest.mark.parametrize(("source", "text", "response", "expected"), CASES)
def test_a_template_gives_a_question(
    source: str, text: str, response: str, expected: tuple[str, str, str]
) -> None:
    found = promptsource.parse(source, text, response)
    assert found is not None
    assert (found.kind, found.prompt, found.answer) == expected


@pytest.mark.parametrize(
    ("source", "text", "response"),
    [
        ("P3/unknown_template", CASES[0][1], "Ann"),
        (CASES[0][0], "Something else.", "Ann"),
        (CASES[0][0], CASES[0][1], "Tom"),
        (CASES[1][0], CASES[1][1], "rain"),
        (CASES[4][0], CASES[4][1], "It is unclear."),
    ],
)
def test_what_is_not_usable_is_left_out(source: str, text: str, response: str) -> None:
    assert promptsource.parse(source, text, response) is None


@pytest.mark.parametrize(
    ("benchmark", "row"),
    [
        ("squad", {"context": "Ann came.", "question": "Who came?"}),
        ("boolq", {"passage": "Ann came.", "question": "did ann come", "label": 1}),
        (
            "sciq",
            {
                "support": "Ice is cold.",
                "question": "What?",
                "correct_answer": "ice",
                **{f"distractor{number}": f"other {number}" for number in (1, 2, 3)},
            },
        ),
        ("lambada_last_word", {"text": "Ann saw Tom and then Ann called Tom"}),
    ],
)
def test_the_prompt_is_that_of_the_evaluation(benchmark: str, row: dict[str, Any]) -> None:
    generation = load_benchmark(benchmark).generation
    assert generation is not None
    evaluated = RowConverter(generation).convert(row)
    assert TrainingQuestion(benchmark, evaluated, "", "", "").prompt == evaluated["prompt"]


NARRATIVE = " ".join(
    f"The old captain walked to the harbor number {i} again and looked for the old boat." for i in range(9)
)
PROSE = (
    "The old bridge was built in 1890 by the town. It was paid for by Edith Crane, and the river below it is "
    "wide, like the Thames. In spring many boats from Salford pass under it on their way, and Tom Hale opens "
    "the gates for them. On some days as many as 40 boats go to Bolton and return at night with the tide. "
    "Nobody has counted them since, although the town of Preston wanted it."
)


def test_a_last_word_stands_earlier_in_its_passage() -> None:
    found = list(corpora.last_words(NARRATIVE, "novels", random.Random(0)))
    assert found
    for question in found:
        assert question.row["text"] == f"{question.plain} {question.answer}"
        assert question.answer in question.plain


def test_questions_about_text_are_answered_by_it() -> None:
    made = [corpora.blanks, corpora.statements]
    found = [each for make in made for seed in range(20) for each in make(PROSE, "x", random.Random(seed))]
    assert {question.kind for question in found} == {"squad", "sciq"}
    for question in found:
        assert question.answer in PROSE
    prompts = " ".join(question.prompt for question in found)
    assert "When was the old bridge built?" in prompts
    assert corpora.BLANK in prompts


def test_the_command_writes_conversations_of_every_kind(tmp_path: Path) -> None:
    rows = [
        {
            "source": source,
            "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}],
        }
        for source, text, answer, _ in CASES
    ]
    files = {
        "instruct/t0_p3_50k": rows[:3],
        "instruct/flan_cot": rows[3:],
        "corpora/novels": [{"text": NARRATIVE}],
        "corpora/standard_ebooks": [{"text": NARRATIVE}],
        "corpora/wiki_c4_sample": [{"text": PROSE}],
        "corpora/openstax_cc_by": [{"text": PROSE}],
    }
    for name, content in files.items():
        path = tmp_path / "data" / f"{name}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pyarrow.output_stream(str(path), compression="zstd") as file:
            file.write("".join(json.dumps(row) + "\n" for row in content).encode())
    command = [sys.executable, "-m", "evalsuite.distill.data.questions", "--generated", "200"]
    arguments = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    subprocess.run([*command, *arguments], check=True, capture_output=True)
    with pyarrow.input_stream(str(tmp_path / "out/short_arithmetic.jsonl.zst"), compression="zstd") as file:
        written = [json.loads(line) for line in file.read().splitlines()]
    assert len(written) == 200
    assert [turn["role"] for turn in written[0]["messages"]] == ["user", "assistant"]
    assert {path.name.split(".")[0] for path in (tmp_path / "out").iterdir()} == {
        "squad",
        "sciq",
        "arc_easy_text",
        "boolq",
        "lambada_last_word",
        "short_arithmetic",
        "format_following",
        "plain",
    }
