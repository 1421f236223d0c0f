"""What training makes of texts: whole, with one BOS, border tokens and an end, or refused by row."""

import json
import pickle
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from evalsuite.distill.data.chunks import Chunk
from evalsuite.distill.data.examples import Example
from evalsuite.distill.data.mixture import documents_without_loss
from evalsuite.distill.data.packing import Document, tokenize
from evalsuite.distill.data.preparation import Preparation, read_examples
from evalsuite.distill.data.responses import _Generation
from evalsuite.distill.recipe.data_sources import DataSourceConfig
from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.checkpoints.tokenizers import TextEncoder
from evalsuite.protocols.tokenization import Encoder
from tests.distill.stage_data import stage_data

BOS, EOS, PAD = "<s>", "</s>", "<|pad|>"
SPECIAL = (BOS, EOS, PAD, "<|im_start|>", "<|im_end|>")
CHAT = [{"role": "user", "content": "What pet has Ivan?"}, {"role": "assistant", "content": "an owl"}]
WRITES_BOS = (
    "{{- bos_token -}}{%- for m in messages -%}"
    "{{- '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant:' -}}{%- endif -%}"
)


def make(
    *, bos: bool = True, special: tuple[str, ...] = SPECIAL, eos: bool = False
) -> PreTrainedTokenizerFast:
    """One token per word with its space and per byte; some texts begin with a BOS, or end with an EOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = [*special, *alphabet, "\u0120owl", "\u0120Ivan", "Answer", "owl"]
    inner = Tokenizer(
        models.BPE({symbol: number for number, symbol in enumerate(symbols)}, [], ignore_merges=True)
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[A-Za-z]+|[^A-Za-z]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(each, special=True) for each in special])
    if bos or eos:
        inner.post_processor = TemplateProcessing(
            single=f"{BOS if bos else ''} $A {EOS if eos else ''}".strip(),
            special_tokens=[(BOS, special.index(BOS)), (EOS, special.index(EOS))],
        )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BOS, eos_token=EOS, pad_token=PAD)


def source(**settings: Any) -> DataSourceConfig:
    return DataSourceConfig.model_validate({"kind": "local", "files": ["unused.jsonl"], **settings})


def prepare(tokenizer: Any, row: dict[str, Any], *, mask_prompt: bool = False, **settings: Any) -> Document:
    """The document of one row, as a worker process makes it."""
    preparation = pickle.loads(pickle.dumps(Preparation({"x": source(**settings)}, tokenizer)))
    (example,) = preparation.parse("x", Chunk([json.dumps(row).encode()], {"row": 0}, "row", "unused.jsonl"))
    (document,) = preparation.tokenize("x", [example], mask_prompt)
    assert isinstance(document, Document)
    return document


def tokens(tokenizer: Any, document: Document) -> list[str]:
    return [str(tokenizer.decode(token)) for token in document.tokens]


def in_loss(tokenizer: Any, document: Document) -> list[str]:
    return [str(tokenizer.decode(token)) for token in document.tokens[document.loss_mask]]


@pytest.mark.parametrize("mask_prompt", [False, True])
def test_texts_are_neither_cut_nor_padded_by_what_a_tokenizer_stores(mask_prompt: bool) -> None:
    plain, stored = make(), make()
    text = {"text": "Answer the owl of Ivan " * 5}
    before = prepare(plain, text, mask_prompt=mask_prompt)
    stored(["a b"], truncation=True, max_length=8, padding="max_length")
    assert stored.backend_tokenizer.truncation is not None
    after = prepare(stored, text, mask_prompt=mask_prompt)
    assert after.tokens.tolist() == before.tokens.tolist()
    assert after.loss_mask.tolist() == before.loss_mask.tolist()
    assert PAD not in tokens(stored, after)


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("writes_bos", [False, True])
def test_chats_have_the_tokens_that_evaluation_sends(adds_bos: bool, writes_bos: bool) -> None:
    tokenizer = make(bos=adds_bos)
    template = WRITES_BOS if writes_bos else WRITES_BOS.replace("{{- bos_token -}}", "")
    document = prepare(tokenizer, {"messages": CHAT}, messages="messages", chat_template=template)
    rendered = tokenizer.apply_chat_template(CHAT, chat_template=template, tokenize=False)
    assert tokens(tokenizer, document).count(BOS) == (adds_bos or writes_bos)
    assert tuple(document.tokens) == Encoder(tokenizer).encode([rendered])[rendered]
    if writes_bos:
        called = tokenizer.apply_chat_template(CHAT, chat_template=template, tokenize=True)["input_ids"]
        assert document.tokens.tolist() == called


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"text": f"{BOS}Answer owl"}, {}),
        ({"prompt": f"{BOS}Answer", "completion": " owl"}, {"prompt": "prompt", "completion": "completion"}),
    ],
)
def test_columns_of_rendered_chats_have_one_bos(row: dict[str, str], columns: dict[str, str]) -> None:
    tokenizer = make()
    assert tokens(tokenizer, prepare(tokenizer, row, **columns)) == [BOS, "Answer", " owl", EOS]


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        ("Ivan:", " owl", [" owl", EOS]),
        # The token of the space begins in the prompt.
        ("Ivan: ", "owl", [" owl", EOS]),
        ("Ivan: ", "owl?", [" owl", "?", EOS]),
        ("Ivan:", "", [EOS]),
        ("Ivan:", f" owl{EOS}", [" owl", EOS]),
    ],
)
@pytest.mark.parametrize("eos", [False, True])
def test_border_tokens_and_the_end_of_a_completion_are_in_the_loss(
    prompt: str, completion: str, expected: list[str], eos: bool
) -> None:
    tokenizer = make(eos=eos)
    row = {"prompt": prompt, "completion": completion}
    document = prepare(tokenizer, row, mask_prompt=True, prompt="prompt", completion="completion")
    found = in_loss(tokenizer, document)
    assert found == (expected if not eos or completion[-4:] != EOS else [*expected, EOS])
    assert document.has_loss


def test_the_end_of_a_prompt_is_not_in_the_loss() -> None:
    tokenizer = make(eos=True)
    segments = (("Ivan:", False), (" owl", True), (" Ivan", False))
    (document,) = tokenize([Example(segments)], TextEncoder(tokenizer), 1, mask_prompt=True)
    assert in_loss(tokenizer, document) == [" owl"]
    (document,) = tokenize([Example(segments[:1])], TextEncoder(tokenizer), 1, mask_prompt=True)
    assert not document.has_loss


@pytest.mark.parametrize(
    ("template", "special", "end"),
    [
        ("chatml", SPECIAL, ["<|im_end|>", "\n"]),
        # Here <|im_end|> is text of several tokens.
        ("chatml", SPECIAL[:3], ["\n", EOS]),
        ("zephyr", SPECIAL[:3], [EOS, "\n"]),
        ("plain", SPECIAL[:3], ["owl", EOS]),
        ("{%- for m in messages -%}{{- m.content -}}{%- endfor -%}", SPECIAL, ["owl", EOS]),
    ],
)
def test_every_conversation_ends_with_an_end_token(
    template: str, special: tuple[str, ...], end: list[str]
) -> None:
    tokenizer = make(special=special)
    chats = {"messages": "messages", "chat_template": template}
    document = prepare(tokenizer, {"messages": CHAT}, mask_prompt=True, **chats)
    assert [token.strip(" ") for token in tokens(tokenizer, document)[-2:]] == end
    assert document.loss_mask[-2:].all()


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        ({"messages": []}, {"messages": "messages"}, "a conversation without messages"),
        ({"messages": None}, {"messages": "messages"}, "is not a list of"),
        ({"messages": [{"role": "user", "content": None}]}, {"messages": "messages"}, "is not a list of"),
        ({"messages": [{"role": "x", "content": "y"}]}, {"messages": "messages"}, "template refuses"),
        ({"text": 5}, {}, "column 'text' holds int, not text"),
        ({"text": "half \ud800 of a character"}, {}, "column 'text' holds text that is not Unicode"),
        ({"txt": "a"}, {}, "there is no column 'text'; did you mean 'txt'"),
        ({"text": "a", "score": "b"}, {"where": {"score": 3}}, "column 'score' holds str, but 'where'"),
        (["text"], {}, "a row is list, not an object"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, row: Any, settings: dict[str, Any], message: str
) -> None:
    good = {"text": "good", "score": 5, "messages": CHAT}
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in (good, good, row)))
    strict = (
        "{%- for m in messages -%}{%- if m.role == 'x' -%}{{- m.content + 1 -}}{%- endif -%}{%- endfor -%}"
    )
    template = strict + WRITES_BOS
    settings = {
        "files": [str(file)],
        **({"chat_template": template} if "messages" in settings else {}),
        **settings,
    }
    with pytest.raises(DataError, match=rf"data source 'x': .*rows\.jsonl, row 3: .*{message}"):
        list(read_examples("x", source(**settings), make()))


def test_rows_of_tables_and_datasets_are_counted_from_their_start(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"messages": CHAT}] * 700
    rows[650] = {"messages": []}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet", row_group_size=300)
    table = source(files=[str(tmp_path / "t.parquet")], messages="messages", chat_template="chatml")
    hub = {"kind": "hub", "dataset": str(tmp_path), "messages": "messages", "chat_template": "chatml"}
    for each in (table, DataSourceConfig.model_validate(hub)):
        with pytest.raises(DataError, match="row 651: column 'messages' holds a conversation without"):
            list(read_examples("x", each, make()))


def test_documents_without_a_token_in_the_loss_are_counted_and_said(
    tmp_path: Path, small_recipe: Any, stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    question = [{"role": "user", "content": "What pet has Ivan?"}]
    rows = [{"messages": CHAT if number % 4 else question} for number in range(600)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chats = {"files": [str(tmp_path / "rows.jsonl")], "messages": "messages", "chat_template": "plain"}
    train = stage("s", "kd", data="x", loss_mask="completion", packing="documents", tokens="10M")
    recipe = small_recipe(
        "teacher", data={"x": {"kind": "local", "infinite": False, **chats}}, stages=[train]
    )
    loader = stage_data(recipe, make())
    states = [json.loads(json.dumps(next(loader).state)) for _ in range(4)]
    assert "data source 'x': 8 of the first 32 documents" in caplog.text
    assert caplog.text.count("have no token in the loss") == 1
    first, resumed = (
        states[1],
        stage_data(recipe, make(), state=states[1]),
    )
    assert documents_without_loss(first["sources"])["x"]["documents"] == 32
    assert next(resumed).state == states[2]
    found = []
    with suppress(DataError):  # The data end before the budget.
        found.extend(documents_without_loss(step.state["sources"]) for step in resumed)
    assert found[-1] == {"x": {"documents": 600, "without_loss": 150}}
    assert documents_without_loss({"y": {}}) == {}


def test_prompts_of_responses_have_one_bos(
    tmp_path: Path, small_recipe: Any, stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make()
    tokenizer(["a b"], truncation=True, max_length=8, padding="max_length")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    chats = {"kind": "local", "files": [str(tmp_path / "rows.jsonl")], "infinite": False}
    data = {
        "chats": {**chats, "messages": "messages", "chat_template": WRITES_BOS},
        "replies": {"kind": "responses", "prompt_source": "chats", "num_prompts": 1, "max_new_tokens": 4},
    }
    recipe = small_recipe("teacher", data=data, stages=[stage("s", "kd", data="replies")])
    monkeypatch.setattr("evalsuite.models.inference.torch.engine.TorchEngine", lambda checkpoint: None)
    replies = _Generation(tmp_path, "replies", recipe.data, SimpleNamespace(tokenizer=tokenizer))
    (request,) = replies._requests
    rendered = tokenizer.apply_chat_template(
        CHAT[:1], chat_template=WRITES_BOS, add_generation_prompt=True, tokenize=True
    )
    assert list(request.prompt) == rendered["input_ids"]
    # As the rows that are trained on begin.
    row = {"prompt": replies._prompts[0], "completion": "an owl"}
    document = prepare(tokenizer, row, prompt="prompt", completion="completion")
    assert document.tokens[: len(request.prompt)].tolist() == list(request.prompt)


def test_a_source_that_is_not_read_needs_no_chat_template() -> None:
    tokenizer = make()
    sources = {"text": source(), "chats": source(messages="messages")}
    preparation = pickle.loads(pickle.dumps(Preparation(sources, tokenizer)))
    chunk = Chunk([b'{"text": "owl", "messages": []}'], {"row": 0}, "row", "unused.jsonl")
    assert preparation.parse("text", chunk) == [Example((("owl", True),))]
    with pytest.raises(ConfigError, match="data source 'chats': the tokenizer has no chat template"):
        preparation.parse("chats", chunk)
