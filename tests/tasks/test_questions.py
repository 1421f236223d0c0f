"""One's own questions, read from files of rows."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.foundation import ConfigError, DataError, EvalsuiteError, file_hash
from evalsuite.tasks import questions
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents
from evalsuite.tasks.sources.freeze import freeze
from evalsuite.tasks.suite import load_suite, resolve

CHOICE = {"question": "Which is a mammal?", "choices": ["frog", "whale", "trout"], "answer": "whale"}
ANSWER = {"question": "Who wrote Faust?", "answer": "Goethe"}


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(name: str) -> list[dict[str, Any]]:
    return [document.row for document in documents(load_benchmark(name))]


def refusal(name: str) -> str:
    with pytest.raises(EvalsuiteError) as caught:
        rows(name)
    return str(caught.value)


def test_questions_with_choices_have_both_protocols(tmp_path: Path) -> None:
    name = write(tmp_path / "animals.jsonl", CHOICE)
    benchmark = load_benchmark(name)
    assert (benchmark.name, benchmark.protocols) == ("animals", ("loglikelihood", "generation"))
    (row,) = rows(name)
    assert row["prompt"] == "Question: Which is a mammal?\nAnswer:"
    assert (row["choices"], row["gold"]) == ([" frog", " whale", " trout"], 1)


def test_questions_with_answers_have_both_protocols(tmp_path: Path) -> None:
    name = write(tmp_path / "q.jsonl", ANSWER, ANSWER | {"answer": ["Goethe", "J. W. Goethe"]})
    assert load_benchmark(name).protocols == ("loglikelihood", "generation")
    one, two = rows(name)
    assert (one["continuation"], one["answers"]) == (" Goethe", ["Goethe"])
    assert two["answers"] == ["Goethe", "J. W. Goethe"]


@pytest.mark.parametrize("answer", [1, 1.0, "1", "B", "b", "whale", ["whale"]])
def test_the_right_choice_is_given_by_index_letter_or_text(answer: Any, tmp_path: Path) -> None:
    assert rows(write(tmp_path / "q.jsonl", CHOICE | {"answer": answer}))[0]["gold"] == 1


def test_a_prompt_is_sent_as_it_is_and_a_context_precedes_a_question(tmp_path: Path) -> None:
    (row,) = rows(write(tmp_path / "a.jsonl", {"prompt": "1 + 1 = ", "target": "2"}))
    assert (row["prompt"], row["continuation"]) == ("1 + 1 = ", "2")
    (row,) = rows(write(tmp_path / "b.jsonl", ANSWER | {"passage": "Faust is by Goethe."}))
    assert row["prompt"] == "Faust is by Goethe.\n\nQuestion: Who wrote Faust?\nAnswer:"


def test_columns_of_a_hub_dataset_are_understood(tmp_path: Path) -> None:
    arc = {"text": ["frog", "whale"], "label": ["1", "2"]}
    assert rows(write(tmp_path / "a.jsonl", {"question": "?", "choices": arc, "answer": "2"}))[0]["gold"] == 1
    squad = {"question": "?", "context": "It is so.", "answers": {"text": ["so"], "answer_start": [6]}}
    assert rows(write(tmp_path / "b.jsonl", squad))[0]["answers"] == ["so"]


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".parquet", ".csv", ".tsv"])
def test_every_kind_of_file_gives_the_same_documents(kind: str, tmp_path: Path) -> None:
    path, reference = tmp_path / f"q{kind}", write(tmp_path / "reference.jsonl", CHOICE, CHOICE)
    if kind == ".jsonl.gz":
        path.write_bytes(gzip.compress(Path(reference).read_bytes()))
    elif kind == ".parquet":
        pq.write_table(pa.Table.from_pylist([CHOICE, CHOICE]), path)
    elif kind == ".jsonl":
        path.write_bytes(Path(reference).read_bytes())
    else:
        comma = "," if kind == ".csv" else "\t"
        cells = [
            ("question", "A", "B", "C", "answer"),
            *[("Which is a mammal?", "frog", "whale", "trout", "B")] * 2,
        ]
        path.write_text("".join(comma.join(line) + "\r\n" for line in cells))
    found = [document.doc_id for document in documents(load_benchmark(path))]
    assert found == [document.doc_id for document in documents(load_benchmark(reference))]
    assert len(set(found)) == 2


def test_cells_of_csv_hold_lists_lines_and_formulas(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text(
        'question,options,answer\n"What is\n1, or 2?","[""=1+1"", ""-2"", ""+3"", ""@x""]",=1+1\n'
        "Which?,yes|no,yes\n"
    )
    one, two = rows(str(path))
    assert one["prompt"] == "Question: What is\n1, or 2?\nAnswer:"
    assert (one["choices"], one["gold"]) == ([" =1+1", " -2", " +3", " @x"], 0)
    assert two["choices"] == [" yes", " no"]


def test_columns_of_other_names_are_named_on_the_command_line_or_in_yaml(tmp_path: Path) -> None:
    row = {"frage": "Wer?", "loesung": "Goethe", "optionen": ["Goethe", "Kafka"]}
    name = write(tmp_path / "q.jsonl", row)
    ((entry, benchmark),) = resolve(
        load_suite(f"{name}:question=frage:answer=loesung:choices=optionen:limit=5")
    )
    assert entry.limit == 5
    (document,) = documents(benchmark)
    assert document.row["choices"] == [" Goethe", " Kafka"]
    yaml = tmp_path / "mine.yaml"
    yaml.write_text(
        "name: mine\ntitle: Mine\nsource:\n  file: q.jsonl\n"
        "  columns: {question: frage, answer: loesung, choices: optionen}\n"
    )
    assert rows(str(yaml)) == [document.row]
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: s\ntitle: S\n"
        "benchmarks: [mine.yaml, 'q.jsonl:question=frage:answer=loesung:choices=optionen']\n"
    )
    assert [each.name for _, each in resolve(load_suite(suite), near=tmp_path)] == ["mine", "q"]


def test_a_yaml_file_uses_rows_as_they_are_and_pins_its_file(tmp_path: Path) -> None:
    row = {"sol": ["a", "b"], "n": 1, "x": None, "subject": "s", "question": "?"}
    write(tmp_path / "q.jsonl", row)
    text = (
        "name: mine\ntitle: Mine\ncategory: knowledge\nlicense: CC0-1.0\ncitation: none\n"
        "source: {file: q.jsonl, subject_column: subject}\n"
        "loglikelihood: {task: evalsuite/choices.yaml, metric: acc}\n"
    )
    yaml = tmp_path / "mine.yaml"
    yaml.write_text(text)
    benchmark = load_benchmark(yaml)
    assert [(each.row, each.subject) for each in documents(benchmark)] == [(row, "s")]
    assert benchmark.model_dump()["source"]["sha256"] == file_hash(tmp_path / "q.jsonl")
    assert str(tmp_path) not in benchmark.model_dump_json()
    yaml.write_text(text.replace("file: q.jsonl", "file: q.jsonl, sha256: abc"))
    with pytest.raises(DataError, match=r"mine\.yaml: 'source\.sha256' = abc: the hash of .*q\.jsonl is"):
        load_benchmark(yaml)


def test_a_hub_benchmark_is_stated_as_before() -> None:
    source = load_benchmark("arc_easy").model_dump()["source"]
    assert {"file", "columns", "sha256"}.isdisjoint(source)


def test_a_changed_file_is_other_data(tmp_path: Path) -> None:
    name = write(tmp_path / "q.jsonl", ANSWER)
    before = load_benchmark(name)
    write(tmp_path / "q.jsonl", ANSWER, ANSWER)
    assert before.source is not None
    with pytest.raises(DataError, match=r"q\.jsonl: the file was changed"):
        documents(before)
    assert load_benchmark(name) != before


def test_a_file_named_like_a_benchmark_is_not_that_benchmark(tmp_path: Path) -> None:
    name = write(tmp_path / "arc_easy.jsonl", ANSWER)
    assert load_benchmark(name).name == "arc_easy-questions"
    (tmp_path / "b").mkdir()
    other = write(tmp_path / "b" / "arc_easy.jsonl", ANSWER)
    with pytest.raises(ConfigError, match="two benchmarks are named 'arc_easy-questions'"):
        resolve(load_suite(f"{name},{other}"))


def test_prepare_reads_the_rows_and_leaves_the_file(tmp_path: Path) -> None:
    name = write(tmp_path / "q.jsonl", ANSWER, ANSWER)
    (file,) = freeze(name, tmp_path / "frozen").files
    assert (file.path, file.rows) == (Path(name), 2)
    write(tmp_path / "q.jsonl", ANSWER, {"question": "?"})
    with pytest.raises(DataError, match=r"q\.jsonl, line 2: no answer"):
        freeze(name, tmp_path / "frozen")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**CHOICE, "answer": None}, "no answer in 'answer'"),
        ({**CHOICE, "answer": ""}, "no answer in 'answer'"),
        ({"question": "?", "choices": ["a", "b"]}, "no answer in 'answer'"),
        ({**CHOICE, "answer": ["frog", "whale"]}, "two answers in 'answer' ('frog', 'whale'); one is right"),
        (
            {**CHOICE, "answer": "horse"},
            "the answer 'horse' is no choice: give its index from 0 to 2, its letter",
        ),
        ({**CHOICE, "answer": 3}, "the answer '3' is no choice"),
        ({**CHOICE, "answer": -1}, "the answer '-1' is no choice"),
        ({**CHOICE, "answer": True}, "True is no text"),
        (
            {"question": "?", "choices": ["2", "3", "4"], "answer": 2},
            "the answer '2' means '2' by text or '4' by index; give the letter",
        ),
        (
            {"question": "?", "choices": ["B", "A"], "answer": "A"},
            "the answer 'A' means 'A' by text or 'B' by letter; give the index",
        ),
        ({**CHOICE, "choices": ["whale"]}, "1 choices; a question with choices has at least 2"),
        ({**CHOICE, "choices": ["a", "a"]}, "the choice 'a' is given twice"),
        ({**CHOICE, "choices": ["a", ""]}, "choice 2 is empty"),
        ({**CHOICE, "choices": None}, "no list of choices in 'choices'"),
        (
            {"qestion": "?", "choices": ["a", "b"], "answer": 0},
            "no question in 'question'; did you mean 'qestion'?",
        ),
        ({**CHOICE, "question": {"text": "?"}}, "is no text"),
        ({**CHOICE, "question": "\ud800"}, "one half of a surrogate pair"),
    ],
)
def test_a_row_that_is_no_question_is_named(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    found = refusal(write(tmp_path / "q.jsonl", CHOICE, CHOICE, row))
    assert found.startswith(f"{tmp_path}/q.jsonl, line 3: ")
    assert message in found
    assert "\n" not in found


def test_many_wrong_rows_are_counted(tmp_path: Path) -> None:
    found = refusal(write(tmp_path / "q.jsonl", ANSWER, *[{"question": "?", "answer": ""}] * 9))
    assert len(found.splitlines()) == questions.SHOWN + 1
    assert found.endswith("… and 6 more rows")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"question": "caf\xe9", "answer": "x"}\n',
            "line 1: not UTF-8 (byte 0xe9 at 18); `iconv -f LATIN1",
        ),
        (
            '{"question": "?", "answer": "x"}\n'.encode("utf-16-le"),
            "looks like UTF-16 without a byte-order mark",
        ),
        (b"\xff\xfea", "not UTF-16, as its byte-order mark says"),
        (b"", "has no rows"),
        (b"\n \n", "has no rows"),
        (
            b'[{"question": "?", "answer": "x"}]\n',
            "line 1: not a JSON object (an array; write one object per",
        ),
        (b'{"question": "?"', "line 1: not a JSON object"),
        (b'"text"\n', "line 1: not a JSON object (found str)"),
        (
            b'{"question": "?", "answer": "x", "answer": "y"}\n',
            "line 1: not a JSON object ('answer' is given twice)",
        ),
        (
            b'{"qestion": "?", "answer": "x"}\n',
            "has no column of the question (question, prompt, input); it has qestion, answer; did you mean "
            "'qestion'?; name it: FILE:question=qestion",
        ),
        (b'{"question": "?", "lsung": "x"}\n', "has no column of the answer (answer, target"),
        (
            b'{"question": "?", "answer": "x", "target": "y"}\n',
            "'answer' and 'target' could both be the answer; name one: FILE:answer=answer",
        ),
        (
            b'{"question": "?", "A": "x", "B": "y", "D": "z", "answer": "A"}\n',
            "has the choices A, B, D, of which",
        ),
    ],
)
def test_a_file_that_is_no_file_of_questions_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(content)
    found = refusal(str(path))
    assert found.startswith(str(path))
    assert message in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question,answer\na,b,c\n", "line 2: has 3 cells, the header has 2"),
        ("question,answer,answer\na,b,c\n", "two columns are named 'answer'"),
        ('question,answer\na,"b\n', "not CSV (unexpected end of data)"),
        ("question,answer\n\n", "has no rows"),
        ("question,answer\n\nWho?,\n", "line 3: no answer in 'answer'"),
    ],
)
def test_a_damaged_csv_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text(content)
    assert message in refusal(str(path))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_byte_order_mark_tells_the_encoding(encoding: str, kind: str, tmp_path: Path) -> None:
    text = (
        'question,answer\nWer?,"Schöne\nGrüße"\n' if kind == "csv" else json.dumps(ANSWER, ensure_ascii=False)
    )
    path = tmp_path / f"q.{kind}"
    path.write_bytes(text.encode(encoding))
    assert rows(str(path))[0]["answers"] == ["Schöne\nGrüße" if kind == "csv" else "Goethe"]


def test_a_file_that_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q.jsonl"
    line = json.dumps(ANSWER).encode() + b"\n"
    path.write_bytes(line * 100)
    with open(path, "ab") as file:
        file.truncate(10 * 2**30)  # A hole: it takes no space.
    found = refusal(str(path))
    assert re.search(
        r"has 10\.0 GiB, and at most 1 GiB are read, about [\d,]+ rows of it; `shuf -n \d+`", found
    )
    monkeypatch.setattr(questions, "MAX_ROWS", 50)
    path.write_bytes(line * 51)
    assert "has more than 50 rows; `shuf -n 50` draws a sample" in refusal(str(path))
    packed = tmp_path / "q.jsonl.gz"
    packed.write_bytes(gzip.compress(line * 50))
    monkeypatch.setattr(questions, "MAX_BYTES", 1000)
    assert "has more than" in refusal(str(packed))
    packed.write_bytes(packed.read_bytes()[:-12])
    monkeypatch.setattr(questions, "MAX_BYTES", 2**20)
    assert "cut off" in refusal(str(packed))


def test_a_damaged_or_large_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q.parquet"
    pq.write_table(pa.Table.from_pylist([ANSWER] * 9), path)
    monkeypatch.setattr(questions, "MAX_ROWS", 8)
    assert "has 9 rows" in refusal(str(path))
    path.write_bytes(b"PAR1 nonsense")
    assert "cannot be read as parquet" in refusal(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.jsonl", "none.jsonl: no such file"),
        (
            "q.jsonl:anwser=x",
            "unknown option 'anwser=x'; give Nshot, loglikelihood or generation, limit=N, or ",
        ),
        ("q.jsonl:answer=solutoin", "has no column 'solutoin' (answer); did you mean 'solution'?"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "q.jsonl", {"question": "?", "solution": "x"})
    with pytest.raises(EvalsuiteError, match=re.escape(message)):
        resolve(load_suite(name))
