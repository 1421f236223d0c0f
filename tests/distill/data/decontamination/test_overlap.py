"""Overlap between training texts and benchmark documents, by n-grams and by questions."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalsuite.distill.data.decontamination import __main__ as command
from evalsuite.distill.data.decontamination.ngrams import NgramIndex, ngram_hashes, strings
from evalsuite.distill.data.decontamination.overlap import SuiteRows, check, measure, write
from evalsuite.distill.data.decontamination.question_overlap import QuestionIndex
from evalsuite.distill.data.examples import document_hash
from evalsuite.distill.recipe import Recipe, load_recipe
from evalsuite.foundation import ConfigError, DataError

WORDS = [f"word{index}" for index in range(100)]


def run(start: int, length: int) -> str:
    return " ".join(WORDS[start : start + length])


def test_ngrams_ignore_case_and_punctuation():
    plain, decorated = ngram_hashes("a b c d"[:7], 3), ngram_hashes("“A, b!\n(C) -- d_", 3)
    assert len(plain) == 2
    assert np.array_equal(plain, decorated)
    assert len(ngram_hashes("a b", 3)) == 0
    assert not set(ngram_hashes("a b c", 3)) & set(ngram_hashes("c b a", 3))


def test_strings_of_a_row_are_matched_separately():
    row = {"question": run(0, 8), "choices": {"text": [run(8, 8), run(16, 13)]}, "label": 3}
    assert list(strings(row)) == [run(0, 8), run(8, 8), run(16, 13)]
    index = NgramIndex({"b": [row]})
    assert not index.match([run(0, 16)]).any()
    assert index.match([run(10, 30)]).all()


def test_counts_are_per_document():
    rows = {"first": [run(0, 20), run(40, 20), run(0, 5)], "second": [run(10, 20)], "none": [run(70, 14)]}
    index = NgramIndex(rows)
    texts = [f"before {run(5, 18)} after", "nothing at all", run(0, 12), "x"]
    assert index.match(texts).tolist() == [
        [True, True, False],
        [False] * 3,
        [False] * 3,
        [False] * 3,
    ]
    counts = index.counts()
    assert (counts["first"].documents, counts["first"].long_enough, counts["first"].overlapping) == (3, 2, 1)
    assert counts["second"].overlapping == 1
    assert counts["none"].overlapping == 0


QUESTIONS = {
    "quiz": [
        {"question": "Who built the old mill of Salford?", "answer": "Edith Crane", "passage": run(0, 30)}
    ],
    "verdicts": [{"question": "is the old mill older than the bridge", "label": 1}],
    "sums": [{"prompt": "What is 12 + 7, as a number?", "answers": ["19"]}],
}


@pytest.mark.parametrize(
    ("prompt", "completion", "questions", "pairs"),
    [
        ("Text. Who built the OLD mill of Salford", "It was Edith Crane.", ["quiz"], ["quiz"]),
        ("Who built the old mill of Salford?", "Tom Hale", ["quiz"], []),
        ("Is the old mill older than the bridge? Say yes.", "yes", ["verdicts"], ["verdicts"]),
        ("What is 12 + 7, as a number?", "19", ["sums"], ["sums"]),
        ("What is 12 + 8, as a number?", "20", [], []),
        ("Who built the old mill of Bolton?", "Edith Crane", [], []),
    ],
)
def test_questions_are_found_without_ngrams(
    prompt: str, completion: str, questions: list[str], pairs: list[str]
) -> None:
    found, same_answer = QuestionIndex(QUESTIONS).match([("nothing", "at all"), (prompt, completion)])
    names = np.array(list(QUESTIONS))
    assert not found[0].any()
    assert names[found[1]].tolist() == questions
    assert names[same_answer[1]].tolist() == pairs


def recipe_of(tmp_path: Path, teacher: str | None, rows: list[dict[str, Any]], **source: Any) -> Recipe:
    """A recipe whose only source holds `rows`."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {"tokens": 64, "seq_len": 8, "batch_size": 2, "lr": 0.001}
    start = {"teacher": teacher} if teacher else {"architecture": ARCHITECTURE}
    recipe = start | {
        "name": "r",
        "data": {"rows": {"kind": "local", "files": [str(tmp_path / "rows.jsonl")], **source}},
        "stages": [{"name": "s", "objective": "sft", "data": "rows", **stage}],
    }
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    return load_recipe(tmp_path / "r.yaml")


ARCHITECTURE = {
    "tokenizer": "pocket",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 8,
    "max_position_embeddings": 64,
}
TEXTS = [
    f"{run(0, 14)} number {index}" if index == 2 else f"text {index} of {run(index, 9)}" for index in range(9)
]
QUIZ = SuiteRows({"quiz": [{"q": run(1, 13)}, {"q": run(50, 13)}]})


def test_the_command_writes_counts_and_an_exclusion_list(
    tmp_path: Path, teacher_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The list is complete although the source has one already.
    recipe_of(tmp_path, str(teacher_folder), [{"text": text} for text in TEXTS], exclude="no-such-list")
    monkeypatch.setattr(command, "suite_rows", lambda suite, data: QUIZ)
    arguments = ["decontamination", str(tmp_path / "r.yaml"), "any", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", arguments)
    command.main()
    assert (tmp_path / "out/overlap-exclude.txt").read_text() == f"{document_hash(TEXTS[2]):016x}\n"

    def table(name: str) -> list[list[str]]:
        with open(tmp_path / "out" / name) as file:
            return list(csv.reader(file))[1:]

    assert table("overlap.csv") == [["quiz", "2", "2", "1", "0.5000"]]
    assert table("overlap-training.csv") == [["rows", "9", "9", "1", "0.1111"]]
    assert table("overlap-pairs.csv") == [["rows", "quiz", "9", "1", "0", "0"]]
    # As trained, the list applies.
    listed = str(tmp_path / "out" / "overlap-exclude.txt")
    recipe_of(tmp_path, str(teacher_folder), [{"text": text} for text in TEXTS], exclude=listed)
    monkeypatch.setattr("sys.argv", [*arguments[:-1], str(tmp_path / "trained"), "--as-trained"])
    command.main()
    assert table("../trained/overlap.csv") == [["quiz", "2", "2", "0", "0.0000"]]
    assert table("../trained/overlap-training.csv") == [["rows", "8", "8", "0", "0.0000"]]


def test_a_recipe_that_trains_on_an_evaluated_split_is_refused(
    tmp_path: Path, teacher_folder: Path, tokenizer: Any
) -> None:
    evaluated = [{"question": f"Which of the {word} is the largest?", "answer": word} for word in WORDS[:20]]
    rows = [{"prompt": row["question"], "completion": f" {row['answer']}"} for row in evaluated]
    rows.append({"prompt": "Which is the smallest?", "completion": " none"})
    columns = {"prompt": "prompt", "completion": "completion"}
    recipe = recipe_of(tmp_path, str(teacher_folder), rows, **columns)
    suite = SuiteRows({"quiz": evaluated})
    with pytest.raises(
        DataError,
        match=r"20 of 21 documents of source 'rows'.*benchmark 'quiz'; set data\.rows\.exclude",
    ):
        check(recipe.data, tokenizer, suite)
    found = measure(recipe.data, tokenizer, suite, as_trained=False)
    assert found.sources["rows"].counts.tolist() == [[0], [20], [20]]
    write(found, tmp_path / "out")
    check(
        recipe_of(
            tmp_path, str(teacher_folder), rows, **columns, exclude=str(tmp_path / "out/overlap-exclude.txt")
        ).data,
        tokenizer,
        suite,
    )


def test_generated_rows_share_templates_but_not_questions(
    tmp_path: Path, teacher_folder: Path, tokenizer: Any
) -> None:
    prompt = f"{run(0, 20)} and what is {{}} plus one?"
    rows = [{"text": prompt.format(7)}]
    check(
        recipe_of(tmp_path, str(teacher_folder), rows).data,
        tokenizer,
        SuiteRows({}, {"sums": [{"prompt": prompt.format(8)}]}),
    )
    with pytest.raises(DataError, match="1 of 1 document "):
        check(
            recipe_of(tmp_path, str(teacher_folder), rows).data,
            tokenizer,
            SuiteRows({}, {"sums": [{"prompt": prompt.format(7)}]}),
        )


def test_a_recipe_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no checkpoint whose tokenizer"):
        command.checkpoint_of(recipe_of(tmp_path, None, [{"text": "x"}]))
