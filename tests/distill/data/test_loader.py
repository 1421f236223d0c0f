"""Data sources and their errors, mixtures, held-out splits, and exact resumption of the data loader."""

import json
import re
import threading
from collections import Counter
from contextlib import nullcontext
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from evalsuite.distill.data import documents
from evalsuite.distill.data.examples import document_hash
from evalsuite.distill.data.loader import DataSources, prefetch, validate_data, validated
from evalsuite.distill.data.preparation import read_examples
from evalsuite.distill.recipe.data_sources import LocalSourceConfig
from evalsuite.foundation import ConfigError, DataError
from tests.distill.stage_data import stage_data

SENTENCE = "The house of Igor is in Dunmore and Nils likes to eat soup with a fox"
WORDS = SENTENCE.split()


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


def loader(recipe, tokenizer, state=None, **options):
    return stage_data(recipe, tokenizer, state=state, **options)


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
        [None if x is None else x.tolist() for x in (batch.input_ids, batch.labels, batch.loss_indices)]
        for step in steps
        for batch in step.micro_batches
    ]


@pytest.mark.parametrize("packing", ["concat", "documents"])
@pytest.mark.parametrize("source", ["local", "pocket"])
@pytest.mark.parametrize("mask", ["full", "completion"])
def test_the_loader_resumes_exactly_from_any_step(
    tokenizer, packing, source, mask, local_recipe, small_recipe, stage
):
    if source == "local":
        recipe = local_recipe({"shuffle_buffer_size": 128}, packing=packing, loss_mask=mask)
    else:
        chosen = stage("s", "kd", packing=packing, loss_mask=mask, tokens="10M")
        recipe = small_recipe("teacher", stages=[chosen])
    steps = list(islice(loader(recipe, tokenizer), 140))
    for cut in (1, 2, 63, 100):
        state = json.loads(json.dumps(steps[cut - 1].state))
        assert flatten(islice(loader(recipe, tokenizer, state), 25)) == flatten(steps[cut : cut + 25])


def test_every_document_is_read_once_per_epoch_in_a_new_order(tokenizer, local_recipe):
    recipe = local_recipe(packing="documents", seq_len=256, batch_size=1)
    data = loader(recipe, tokenizer)
    seen: list[list[str]] = [[], []]
    for step in data:
        epoch = step.state["sources"]["local"]["epoch"]
        if epoch == 2:
            break
        batch = step.micro_batches[0]
        boundaries = batch.cu_seqlens.tolist()
        for start, end in pairwise(boundaries):
            seen[epoch].append(tokenizer.decode(batch.input_ids[0, start:end]).replace("<|end|>", ""))
    wanted = Counter(texts(700))
    for epoch in (0, 1):
        read = Counter(text for text in seen[epoch] if text)
        # Documents of the last, emptiest sequence of an epoch are packed with those of the next epoch.
        assert (read - wanted).total() <= documents.GROUP_SIZE
        assert read.total() >= 650
    assert seen[0][:20] != seen[1][:20]


def test_mixture_shares_are_exact_to_one_sequence(folder, tokenizer, small_recipe, stage):
    sources = {"pocket": {"kind": "pocket"}, "local": {"kind": "local", "files": [str(folder / "*.parquet")]}}
    mixed = stage("s", "kd", data={"pocket": 85, "local": 15}, tokens="10M")
    recipe = small_recipe("teacher", data=sources, stages=[mixed])
    for number, step in enumerate(islice(loader(recipe, tokenizer), 100), 1):
        num_drawn = step.state["num_drawn"]
        assert abs(num_drawn.get("local", 0) - 0.15 * 2 * number) <= 1
    assert num_drawn == {"pocket": 170, "local": 30}


def test_ranks_split_the_same_global_batch(tokenizer, small_recipe, stage):
    recipe = small_recipe("teacher", stages=[stage("s", "kd", batch_size=4, tokens="10M")])
    whole = next(loader(recipe, tokenizer)).micro_batches[0].input_ids
    parts = [
        next(loader(recipe, tokenizer, rank=rank, world_size=2)).micro_batches[0].input_ids for rank in (0, 1)
    ]
    assert parts[0].tolist() == whole[0::2].tolist()
    assert parts[1].tolist() == whole[1::2].tolist()


def validate(recipe, tokenizer) -> None:
    validate_data(DataSources(recipe.data, tokenizer, seed=recipe.seed), recipe.stages)


def test_filters_drop_rows(tokenizer, local_recipe):
    recipe = local_recipe({"where": {"score": 3}, "min_characters": 20})
    assert next(loader(recipe, tokenizer)).tokens == 128


@pytest.mark.parametrize(
    ("source", "stage_changes", "message"),
    [
        ({"text": "txt"}, {}, "no column 'txt'; did you mean 'text'"),
        ({"text": "score"}, {}, "column 'score' holds int, not text"),
        ({"messages": "text", "chat_template": "plain"}, {}, "is not a list of {role, content}"),
        ({"where": {"score": 9}}, {}, "no document is left after filtering"),
        ({"min_characters": 10**6}, {}, "no document is left after filtering"),
        ({"infinite": False, "where": {"text": texts(1)}}, {"seq_len": 512}, "data end before the budget"),
        ({"files": ["/nowhere/*.parquet"]}, {}, "no file matches '/nowhere/\\*.parquet'"),
    ],
)
def test_invalid_data_is_refused_before_training(tokenizer, source, stage_changes, message, local_recipe):
    with pytest.raises(DataError, match=message):
        validate(local_recipe(source, **stage_changes), tokenizer)


@pytest.mark.parametrize(
    ("source", "failure", "expected"),
    [
        ({}, None, nullcontext()),
        ({}, ConfigError("no such mixer"), pytest.raises(ConfigError, match="no such mixer")),
        ({"text": "txt"}, None, pytest.raises(DataError, match="no column 'txt'")),
        ({"text": "txt"}, ConfigError("no such mixer"), pytest.raises(DataError, match="no column 'txt'")),
        ({"text": "txt"}, KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
    ],
)
def test_data_are_validated_while_models_are_built(tokenizer, local_recipe, source, failure, expected):
    recipe = local_recipe(source)
    sources = DataSources(recipe.data, tokenizer, seed=recipe.seed)
    with expected, validated(sources, recipe.stages):
        if failure is not None:
            raise failure


def test_a_mask_without_loss_tokens_is_refused(folder, tokenizer, local_recipe):
    rows = [{"conversation": [{"role": "user", "content": text}]} for text in texts(40)]
    (folder / "users.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"files": [str(folder / "users.jsonl")], "messages": "conversation", "chat_template": "plain"}
    with pytest.raises(DataError, match="no loss tokens with loss_mask 'completion'"):
        validate(local_recipe(source, loss_mask="completion"), tokenizer)


def test_unsupported_and_truncated_files_are_named(folder, tokenizer, local_recipe):
    (folder / "x.csv").write_text("a,b")
    with pytest.raises(DataError, match=r"x\.csv is not a .parquet, .jsonl or .jsonl.zst file"):
        validate(local_recipe({"files": [str(folder / "x.csv")]}), tokenizer)
    (folder / "torn.parquet").write_bytes((folder / "a.parquet").read_bytes()[:500])
    with pytest.raises(DataError, match=r"torn\.parquet: cannot be read"):
        validate(local_recipe({"files": [str(folder / "torn.parquet")]}), tokenizer)


def test_errors_in_the_prefetch_thread_are_raised_in_the_consumer():
    def broken():
        yield 1
        raise DataError("the file is gone")

    items = prefetch(broken())
    assert next(items) == 1
    with pytest.raises(DataError, match="the file is gone"):
        next(items)


@pytest.mark.parametrize(("collective", "advanced"), [(False, (3, 4)), (True, (4, 4))])
def test_a_consumer_that_stops_leaves_every_process_at_the_same_item(collective, advanced):
    """Processes that exchange tokens advance together: none may wait for one that has stopped."""
    started, produced = threading.Event(), []

    def items():
        for number in range(100):
            if number == 2:
                started.wait(10)
            produced.append(number)
            yield number

    consumer = prefetch(items(), depth=2, collective=collective)
    assert next(consumer) == 0
    threading.Timer(0.2, started.set).start()
    consumer.close()
    # One item was consumed, two are in the buffer, and one waits for a place in it.
    assert advanced[0] <= len(produced) <= advanced[1]


def test_the_held_out_subset_is_disjoint_and_independent_of_order(tokenizer, tmp_path):
    rows = [{"text": f"document {i} of the house"} for i in range(2000)]

    def read(part: str, rows: list[dict[str, str]]) -> set[str]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_source(tokenizer, files=[str(path)], subset=part)

    everything, train, held_out = (read(part, rows) for part in ("all", "train", "held_out"))
    assert train | held_out == everything
    assert not train & held_out
    assert 5 <= len(held_out) <= 40
    assert read("held_out", rows[::-1]) == held_out


def read_source(tokenizer, **fields) -> set[str]:
    examples = read_examples("words", LocalSourceConfig(kind="local", **fields), tokenizer)
    return {example.text for example in examples}


def test_larger_fractions_contain_smaller_ones_in_both_subsets(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {index}"}) + "\n" for index in range(3000)))
    third, half = (read_source(tokenizer, files=[str(path)], sample_fraction=share) for share in (0.3, 0.5))
    assert third < half
    assert 800 < len(third) < 1000
    assert 1400 < len(half) < 1600
    held_out = read_source(tokenizer, files=[str(path)], sample_fraction=0.5, subset="held_out")
    assert held_out < half
    assert held_out < read_source(tokenizer, files=[str(path)], subset="held_out")


def test_fractions_that_begin_where_others_end_are_disjoint_and_complete(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {index}"}) + "\n" for index in range(1000)))
    parts = [
        read_source(tokenizer, files=[str(path)], sample_start=start, sample_fraction=share)
        for start, share in ((0.0, 0.3), (0.3, 0.3), (0.6, 0.4))
    ]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 1000
    with pytest.raises(ValidationError, match="add up to more than 1"):
        read_source(tokenizer, files=[str(path)], sample_start=0.8, sample_fraction=0.3)


def test_excluded_documents_are_skipped(tokenizer, tmp_path):
    path, listed = tmp_path / "a.jsonl", tmp_path / "out.txt"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "two", "three")))
    listed.write_text(f"{document_hash('two'):016x}\n")
    assert read_source(tokenizer, files=[str(path)], exclude=str(listed)) == {"one", "three"}
    listed.with_name("words.txt").write_text("not a hash\n")
    with pytest.raises(DataError, match=r"words\.txt is not a list of document hashes"):
        read_source(tokenizer, files=[str(path)], exclude=str(listed.with_name("words.txt")))


def test_environment_variables_in_file_patterns_are_expanded(tokenizer, tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "here"}\n')
    monkeypatch.setenv("SOME_FOLDER", str(tmp_path))
    assert read_source(tokenizer, files=["$SOME_FOLDER/*.jsonl"]) == {"here"}
    monkeypatch.delenv("SOME_FOLDER")
    with pytest.raises(DataError, match=r"no file matches .*\(\$SOME_FOLDER is not set\)"):
        read_source(tokenizer, files=["$SOME_FOLDER/*.jsonl"])


def documents_of(steps, tokenizer) -> set[tuple[str, ...]]:
    """Documents that begin in these steps; each begins with "soup soup" and two more words."""
    rows = [row for step in steps for batch in step.micro_batches for row in batch.input_ids]
    return {words for row in rows for words in re.findall(r"soup soup (\w+) (\w+)", tokenizer.decode(row))}


@pytest.mark.parametrize("packing", ["concat", "documents"])
@pytest.mark.parametrize("change", [{}, {"seq_len": 32}, {"loss_mask": "completion"}])
def test_stages_continue_their_sources(tokenizer, small_recipe, stage, tmp_path, packing, change):
    """No document of an earlier stage is read again, even within a batch of documents."""
    rows = [f"soup soup {a} {b} {' '.join(WORDS)}" for a in WORDS for b in WORDS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    sizes = {"data": "local", "tokens": 128 * 6, "packing": packing}
    recipe = small_recipe(
        "teacher",
        data={
            "local": {"kind": "local", "files": [str(tmp_path / "rows.jsonl")], "shuffle_buffer_size": 100}
        },
        stages=[stage("first", "kd", **sizes), stage("second", "kd", **{**sizes, **change})],
    )
    first = list(islice(stage_data(recipe, tokenizer), 6))
    previous = first[-1].state["sources"]
    second = list(
        islice(
            stage_data(recipe, tokenizer, recipe.stages[1], previous=previous),
            6,
        )
    )
    read = [documents_of(steps, tokenizer) for steps in (first, second)]
    assert min(map(len, read)) > 10
    assert not read[0] & read[1]
    distinct = [steps[-1].state["sources"]["local"]["distinct"] for steps in (first, second)]
    assert distinct == [768, 768 + 6 * recipe.stages[1].tokens_per_step]
    for number in (1, 4):
        state = json.loads(json.dumps(second[number].state))
        rest = stage_data(
            recipe,
            tokenizer,
            recipe.stages[1],
            state=state,
            previous=previous,
        )
        assert flatten(islice(rest, 5 - number)) == flatten(second[number + 1 :])
    restarted = recipe.stages[1].model_copy(update={"restart_data": True})
    again = list(
        islice(
            stage_data(recipe, tokenizer, restarted, previous=previous),
            6,
        )
    )
    assert flatten(again) == flatten(islice(stage_data(recipe, tokenizer, restarted), 6))
    tokens = 6 * restarted.tokens_per_step
    assert again[-1].state["sources"]["local"]["distinct"] == max(768, tokens)


def test_repeated_epochs_add_no_distinct_tokens(tokenizer, local_recipe):
    recipe = local_recipe({"where": {"score": 2}})
    steps = list(islice(loader(recipe, tokenizer), 90))
    epochs = [step.state["sources"]["local"]["epoch"] for step in steps]
    distinct = [step.state["sources"]["local"]["distinct"] for step in steps]
    last = epochs.index(1) - 1
    assert epochs[-1] >= 1
    assert distinct[last] >= 128 * last
    assert distinct[-1] <= 128 * (last + 2)
    assert len(set(distinct[last + 2 :])) == 1


@pytest.mark.parametrize("spans", [None, 4])
def test_second_copies_of_chunks_are_not_distinct_tokens_of_a_stream(tokenizer, local_recipe, spans):
    """At any place of a stream, first copies are ahead of second ones by one chunk at most."""
    recipe = local_recipe({"repeat_chunk_tokens": 8, "repeat_span_tokens": spans, "shuffle_buffer_size": 64})
    steps = list(islice(loader(recipe, tokenizer), 400))
    states = [step.state["sources"]["local"] for step in steps]
    first_epoch = [state["epoch"] for state in states].index(1)
    ahead = [2 * state["distinct"] - 128 * number for number, state in enumerate(states[:first_epoch], 1)]
    assert first_epoch > 100
    assert min(ahead) >= 0
    assert 0 < max(ahead) <= 8
    assert states[-1]["distinct"] - states[first_epoch - 1]["distinct"] <= 128
    for cut in range(0, first_epoch, 40):
        resumed = loader(recipe, tokenizer, json.loads(json.dumps(steps[cut].state)))
        again = [step.state["sources"]["local"]["distinct"] for step in islice(resumed, 40)]
        assert again == [state["distinct"] for state in states[cut + 1 : cut + 41]]


def test_second_copies_of_chunks_are_not_distinct_tokens_of_packed_documents(tokenizer, local_recipe):
    """Documents of n tokens fill 2n − 1 inputs, n of which are first copies; padding counts as text does."""
    recipe = local_recipe({"repeat_chunk_tokens": 8, "infinite": False}, packing="documents", seq_len=512)
    expected = padding = 0
    for step in islice(loader(recipe, tokenizer), 20):
        (batch,) = step.micro_batches
        inputs = batch.input_ids.reshape(-1)
        for start, end in pairwise(batch.cu_seqlens.tolist()):
            is_padding = bool((inputs[start:end] == tokenizer.eos_token_id).all())
            padding += is_padding
            expected += end - start if is_padding else (end - start + 1) // 2
        assert step.state["sources"]["local"]["distinct"] == expected
    assert padding
