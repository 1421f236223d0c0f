"""Sources, their errors, mixtures, and the promise that a stream resumes at the very next token."""

import json
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from evalsuite.distill.batches import StageData, check_data, read_ahead
from evalsuite.distill.readers import document_hash, open_reader
from evalsuite.distill.recipe import DataSource
from evalsuite.foundation import DataError

WORDS = [
    "The",
    "house",
    "of",
    "Igor",
    "is",
    "in",
    "Dunmore",
    "and",
    "Nils",
    "likes",
    "to",
    "eat",
    "soup",
    "with",
    "a",
    "fox",
]


def texts(count: int) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, generator.integers(3, 40))) for _ in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"text": text, "score": index % 4} for index, text in enumerate(texts(700))]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows[:300]), tmp_path / "a.parquet", row_group_size=70
    )
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[300:500]))
    compressed = pyarrow.CompressedOutputStream(str(tmp_path / "c.jsonl.zst"), "zstd")
    compressed.write("".join(json.dumps(row) + "\n" for row in rows[500:]).encode())
    compressed.close()
    return tmp_path


def stream(recipe, tokenizer, state=None, **options):
    return StageData(recipe, recipe.stages[0], tokenizer, state=state, **options)


@pytest.fixture
def local_recipe(folder: Path, small_recipe, stage):
    def make(source: dict | None = None, **changes):
        files = [str(folder / "*.parquet"), str(folder / "*.jsonl*")]
        data = {"local": {"kind": "local", "files": files, **(source or {})}}
        stages = [stage("s", "kd", data="local", **{"tokens": "10M", **changes})]
        return small_recipe("teacher", data=data, stages=stages)

    return make


def flatten(steps):
    return [
        (batch.inputs.tolist(), batch.labels.tolist(), None if batch.kept is None else batch.kept.tolist())
        for step in steps
        for batch in step.micro_batches
    ]


@pytest.mark.parametrize("packing", ["concat", "documents"])
@pytest.mark.parametrize("source", ["local", "pocket"])
@pytest.mark.parametrize("mask", ["full", "completion"])
def test_a_stream_resumes_exactly_from_any_step(
    tokenizer, packing, source, mask, local_recipe, small_recipe, stage
):
    if source == "local":
        recipe = local_recipe({"shuffle": 128}, packing=packing, mask=mask)
    else:
        recipe = small_recipe("teacher", stages=[stage("s", "kd", packing=packing, mask=mask, tokens="10M")])
    steps = list(islice(stream(recipe, tokenizer), 140))
    for cut in (1, 2, 63, 100):
        state = json.loads(json.dumps(steps[cut - 1].state))
        assert flatten(islice(stream(recipe, tokenizer, state), 25)) == flatten(steps[cut : cut + 25])


def test_every_document_is_read_once_per_epoch_and_in_another_order_in_the_next(tokenizer, local_recipe):
    recipe = local_recipe(packing="documents", length=256, batch=1)
    data = stream(recipe, tokenizer)
    seen: list[list[str]] = [[], []]
    for step in data:
        epoch = step.state["streams"]["local"]["epoch"]
        if epoch == 2:
            break
        row = step.micro_batches[0]
        borders = row.cu_seqlens.tolist()
        for start, end in pairwise(borders):
            seen[epoch].append(tokenizer.decode(row.inputs[0, start:end]).replace("<|end|>", ""))
    wanted = Counter(texts(700))
    for epoch in (0, 1):
        read = Counter(text for text in seen[epoch] if text)
        # What the last, emptiest row of an epoch holds is packed with the first rows of the next.
        assert (read - wanted).total() <= 20
        assert read.total() >= 650
    assert seen[0][:20] != seen[1][:20]


def test_workers_give_the_same_texts_as_none(tokenizer, small_recipe, stage):
    alone = small_recipe("teacher", stages=[stage("s", "sft", tokens="10M", mask="completion")])
    helped = small_recipe(
        "teacher",
        data={"pocket": {"kind": "pocket", "longest": 128, "workers": 2}},
        stages=[stage("s", "sft", tokens="10M", mask="completion")],
    )
    steps = list(islice(stream(helped, tokenizer), 40))
    assert flatten(steps) == flatten(islice(stream(alone, tokenizer), 40))


def test_a_mixture_keeps_its_shares_to_the_row(folder, tokenizer, small_recipe, stage):
    sources = {"pocket": {"kind": "pocket"}, "local": {"kind": "local", "files": [str(folder / "*.parquet")]}}
    mixed = stage("s", "kd", data={"pocket": 85, "local": 15}, tokens="10M")
    recipe = small_recipe("teacher", data=sources, stages=[mixed])
    for number, step in enumerate(islice(stream(recipe, tokenizer), 100), 1):
        taken = step.state["taken"]
        assert abs(taken.get("local", 0) - 0.15 * 2 * number) <= 1
    assert taken == {"pocket": 170, "local": 30}


def test_gpus_share_the_batches_of_one(tokenizer, small_recipe, stage):
    recipe = small_recipe("teacher", stages=[stage("s", "kd", batch=4, tokens="10M")])
    whole = next(stream(recipe, tokenizer)).micro_batches[0].inputs
    parts = [next(stream(recipe, tokenizer, rank=rank, world=2)).micro_batches[0].inputs for rank in (0, 1)]
    assert parts[0].tolist() == whole[0::2].tolist()
    assert parts[1].tolist() == whole[1::2].tolist()


def test_conditions_drop_rows(tokenizer, local_recipe):
    recipe = local_recipe({"where": {"score": 3}, "min_characters": 20})
    assert next(stream(recipe, tokenizer)).tokens == 128


@pytest.mark.parametrize(
    ("source", "stage_changes", "message"),
    [
        ({"text": "txt"}, {}, "no column 'txt'; did you mean 'text'"),
        ({"text": "score"}, {}, "column 'score' holds int, not text"),
        ({"messages": "text", "chat_template": "plain"}, {}, "no list of {role, content}"),
        ({"where": {"score": 9}}, {}, "no document is left after filtering"),
        ({"min_characters": 10**6}, {}, "no document is left after filtering"),
        ({"repeat": False, "where": {"text": texts(1)}}, {"length": 512}, "data end before the budget"),
        ({"files": ["/nowhere/*.parquet"]}, {}, "no file matches '/nowhere/\\*.parquet'"),
    ],
)
def test_bad_data_is_refused_before_anything_is_trained(
    tokenizer, source, stage_changes, message, local_recipe
):
    with pytest.raises(DataError, match=message):
        check_data(local_recipe(source, **stage_changes), tokenizer)


def test_a_mask_that_leaves_no_token_is_refused(folder, tokenizer, local_recipe):
    rows = [{"conversation": [{"role": "user", "content": text}]} for text in texts(40)]
    (folder / "users.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"files": [str(folder / "users.jsonl")], "messages": "conversation", "chat_template": "plain"}
    with pytest.raises(DataError, match="mask 'completion' no token"):
        check_data(local_recipe(source, mask="completion"), tokenizer)


def test_files_of_another_kind_or_torn_are_named(folder, tokenizer, local_recipe):
    (folder / "x.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"x\.csv is neither"):
        check_data(local_recipe({"files": [str(folder / "x.csv")]}), tokenizer)
    (folder / "torn.parquet").write_bytes((folder / "a.parquet").read_bytes()[:500])
    with pytest.raises(DataError, match=r"torn\.parquet: cannot be read"):
        check_data(local_recipe({"files": [str(folder / "torn.parquet")]}), tokenizer)


def test_an_error_of_the_reading_thread_reaches_the_trainer():
    def broken():
        yield 1
        raise DataError("the file is gone")

    items = read_ahead(broken())
    assert next(items) == 1
    with pytest.raises(DataError, match="the file is gone"):
        next(items)


def test_a_source_names_what_it_lacks():
    with pytest.raises(ValueError, match="'prompt' and 'completion' go together"):
        DataSource(kind="pocket", prompt="a")
    with pytest.raises(ValueError, match="needs 'dataset'"):
        DataSource(kind="hub")


def test_the_held_out_part_is_disjoint_from_the_rest_and_neither_depends_on_order(tmp_path):
    rows = [{"text": f"document {i} of the house"} for i in range(2000)]

    def read(part: str, rows: list[dict[str, str]]) -> set[str]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = DataSource(kind="local", files=[str(path)], part=part)
        found, following = open_reader(source, "rows").window({})
        assert following is None
        return {example.text for example in found}

    everything, train, held_out = (read(part, rows) for part in ("all", "train", "held_out"))
    assert train | held_out == everything
    assert not train & held_out
    assert 5 <= len(held_out) <= 40
    assert read("held_out", rows[::-1]) == held_out


def read_source(**fields):
    examples, _ = open_reader(DataSource(kind="local", **fields), "words").window({})
    return {example.text for example in examples}


def test_a_share_grows_by_documents_and_splits_both_parts_alike(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {index}"}) + "\n" for index in range(3000)))
    third, half = (read_source(files=[str(path)], share=share) for share in (0.3, 0.5))
    assert third < half
    assert 800 < len(third) < 1000
    assert 1400 < len(half) < 1600
    held_out = read_source(files=[str(path)], share=0.5, part="held_out")
    assert held_out < half
    assert held_out < read_source(files=[str(path)], part="held_out")


def test_listed_documents_are_left_out(tmp_path):
    path, listed = tmp_path / "a.jsonl", tmp_path / "out.txt"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "two", "three")))
    listed.write_text(f"{document_hash('two'):016x}\n")
    assert read_source(files=[str(path)], exclude=str(listed)) == {"one", "three"}
    listed.with_name("words.txt").write_text("not a hash\n")
    with pytest.raises(DataError, match=r"words\.txt: no list of documents"):
        read_source(files=[str(path)], exclude=str(listed.with_name("words.txt")))


def test_files_may_lie_where_the_environment_says(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "here"}\n')
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    assert read_source(files=["$SOME_FOLDER/*.jsonl"]) == {"here"}
    monkeypatch.delenv("SOME_FOLDER")
    with pytest.raises(DataError, match=r"no file matches .*\(\$SOME_FOLDER is not set\)"):
        read_source(files=["$SOME_FOLDER/*.jsonl"])
