"""Rules that training and evaluation share: whole texts, one BOS, continuations with their first space."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from evalsuite.evaluation.checkpoints import tokenizer_id
from evalsuite.foundation import ConfigError
from evalsuite.models import describe_checkpoint, load_checkpoint, weights_id
from evalsuite.models.checkpoints.tokenizers import (
    ContinuationDecoder,
    TextEncoder,
    backend_of,
    with_stated_tokens,
)
from evalsuite.models.inference.requests import SamplingParams
from evalsuite.models.inference.stopping import StopChecker

ROOT = Path(__file__).parents[3]


def words(*, bos: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer of 61 words, which adds a BOS if `bos`."""
    names = {f"w{number}": number for number in range(58)} | {"<s>": 58, "</s>": 59, "<|pad|>": 60}
    inner = Tokenizer(models.WordLevel(names, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 58)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="w0", bos_token="<s>", eos_token="</s>", pad_token="<|pad|>"
    )


def save_after_training(tokenizer: Any, folder: Path) -> None:
    """Save a tokenizer as training scripts do: with truncation and padding of the last batch."""
    tokenizer(["w1 w2"], truncation=True, max_length=4, padding="max_length")
    tokenizer.save_pretrained(folder)


TEXT = " ".join(f"w{number}" for number in range(1, 31))


@pytest.fixture
def folder(make_teacher: Any, tmp_path: Path) -> Path:
    make_teacher().save_pretrained(tmp_path / "teacher")
    words().save_pretrained(tmp_path / "teacher")
    # Loaded and saved once, since transformers notes that a tokenizer came from a folder.
    AutoTokenizer.from_pretrained(tmp_path / "teacher").save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


def test_truncation_and_padding_of_a_file_never_apply(folder: Path) -> None:
    before = describe_checkpoint(folder)
    for _ in range(2):  # A second time, they also stand in tokenizer_config.json.
        save_after_training(AutoTokenizer.from_pretrained(folder), folder)
    assert AutoTokenizer.from_pretrained(folder).backend_tokenizer.truncation is not None
    after = describe_checkpoint(folder)
    for loaded in (after.tokenizer, load_checkpoint(folder).tokenizer):
        for copy in (loaded, pickle.loads(pickle.dumps(loaded))):
            backend = copy.backend_tokenizer
            assert (backend.truncation, backend.padding) == (None, None)
            assert backend.encode(TEXT).ids == list(range(1, 31))
    assert after.weights_id == before.weights_id
    assert tokenizer_id(after.tokenizer) == tokenizer_id(before.tokenizer)
    after.tokenizer.save_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).backend_tokenizer.truncation is None
    assert weights_id(folder) == before.weights_id


def test_checkpoints_with_equal_files_can_share_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "student")
    shared = describe_checkpoint(folder, shares_tokenizer=True).tokenizer
    # A call may leave its state.
    shared(["w1 w2"], truncation=True, max_length=4)
    found = load_checkpoint(other, shares_tokenizer=True).tokenizer
    assert found is shared
    assert found.backend_tokenizer.truncation is None
    for owned in (load_checkpoint(other).tokenizer, describe_checkpoint(folder).tokenizer):
        assert owned is not shared
        owned.add_tokens(["w100"])
    assert describe_checkpoint(folder, shares_tokenizer=True).tokenizer.get_vocab() == words().get_vocab()
    file = other / "tokenizer_config.json"
    file.write_text(file.read_text().replace("</s>", "w3"))
    assert load_checkpoint(other, shares_tokenizer=True).tokenizer.eos_token == "w3"
    assert shared.eos_token == "</s>"


def test_the_identity_of_a_shared_tokenizer_is_computed_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.evaluation import checkpoints
    from evalsuite.models.checkpoints import load

    monkeypatch.setattr(load, "_SHARED", {})
    computed: list[str] = []
    monkeypatch.setattr(
        checkpoints, "tokenizer_id", lambda each: computed.append(tokenizer_id(each)) or computed[-1]
    )
    other = shutil.copytree(folder, tmp_path / "student")
    found = [checkpoints.describe_checkpoints([str(each)], None)[0].tokenizer for each in (folder, other)]
    assert len(computed) == 1
    assert found == 2 * computed


CLASSES = ("PreTrainedTokenizerFast", "LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer")


@pytest.mark.parametrize("kind", CLASSES)
def test_copies_of_a_tokenizer_have_its_tokens_and_identity(kind: str, tmp_path: Path) -> None:
    tokenizer = sentencepiece() if kind in ("LlamaTokenizer", "GemmaTokenizer") else byte_level()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "first")
    config = tmp_path / "first" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("TokenizersBackend", kind))
    shutil.copytree(tmp_path / "first", tmp_path / "copy" / "renamed")
    before = AutoTokenizer.from_pretrained(tmp_path / "first")
    last = AutoTokenizer.from_pretrained(tmp_path / "copy" / "renamed")
    for number in range(3):
        last(["x"], truncation=True, max_length=2 + number)
        last.save_pretrained(tmp_path / f"again-{number}")
        last = AutoTokenizer.from_pretrained(tmp_path / f"again-{number}")
    assert tokenizer_id(last) == tokenizer_id(before)
    texts = ["x return x", " a  a.", "", "é"]
    found = [[each.ids for each in TextEncoder(copy).encode(texts)] for copy in (before, last)]
    assert found[0] == found[1] == before(texts)["input_ids"]


def test_other_settings_of_a_tokenizer_are_identity(folder: Path) -> None:
    before = weights_id(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"pad_token"', '"padding_side": "left",\n  "pad_token"'))
    assert weights_id(folder) != before


def test_the_state_of_a_later_call_does_not_apply() -> None:
    tokenizer = words()
    encoder = TextEncoder(tokenizer)
    tokenizer(["w1 w2"], truncation=True, max_length=4, padding="max_length")
    assert TextEncoder(tokenizer).encode([TEXT])[0].ids == list(range(1, 31))
    tokenizer(["w1 w2"], truncation=True, max_length=4, padding="max_length")
    assert encoder.encode([TEXT])[0].ids == list(range(1, 31))
    assert pickle.loads(pickle.dumps(encoder)).encode([TEXT])[0].ids == list(range(1, 31))


def test_copies_of_a_tokenizer_that_splits_special_tokens_split_them() -> None:
    tokenizer = byte_level()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        eos_token="<s>",
        split_special_tokens=True,
        extra_special_tokens=["ab"],
    )
    expected = tokenizer("xab")["input_ids"]
    assert len(expected) == 3
    for copy in (TextEncoder(tokenizer), pickle.loads(pickle.dumps(TextEncoder(tokenizer)))):
        assert copy.encode(["xab"])[0].ids == expected
    assert backend_of(pickle.loads(pickle.dumps(tokenizer))).encode("xab").ids == expected
    before = tokenizer_id(tokenizer)
    tokenizer.split_special_tokens = False
    assert tokenizer_id(tokenizer) != before


def test_only_this_module_uses_the_backend_of_a_tokenizer() -> None:
    using = {
        file.relative_to(ROOT).as_posix()
        for room in ("models", "distill", "evalsuite", "tasks", "reports")
        for file in (ROOT / room).rglob("*.py")
        if "backend_tokenizer" in file.read_text()
    }
    assert using == {"models/checkpoints/tokenizers.py"}


@pytest.mark.parametrize("bos", [False, True])
def test_a_text_that_begins_with_bos_gets_no_other(bos: bool) -> None:
    encodings = TextEncoder(words(bos=bos)).encode(["w1 w2", "<s> w1", "w3 <s>"])
    start = [58] if bos else []
    assert [each.ids for each in encodings] == [[*start, 1, 2], [58, 1], [*start, 3, 58]]


def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer whose decoder drops the first space of a text, as Llama 2's does."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁▁", "▁return", "▁x", "x", "a", "▁a", "."]
    inner = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["▁▁▁", "▁return", "▁x"], "    return x"),
        (["▁return"], " return"),
        (["x", "▁x"], "x x"),
        (["</s>", "▁x"], " x"),
        (["<0xE4>", "<0xBD>", "<0xA0>", "."], "你."),
        ([], ""),
    ],
)
def test_a_continuation_keeps_its_first_space(pieces: list[str], text: str) -> None:
    tokenizer = sentencepiece()
    tokens = tokenizer.convert_tokens_to_ids(pieces)
    assert ContinuationDecoder(tokenizer).decode(tokens) == text
    checker = StopChecker(tokenizer, SamplingParams(len(tokens) + 1), len(tokens) + 1, frozenset({2}))
    response = checker.append([*(token for token in tokens if token != 2), 2])
    assert response is not None
    assert response.text == text


def test_a_stop_string_may_begin_with_the_first_space() -> None:
    tokenizer = sentencepiece()
    tokens = tokenizer.convert_tokens_to_ids(["▁return", "▁x", "x"])
    checker = StopChecker(tokenizer, SamplingParams(9, stop=(" return x",)), 9, frozenset())
    assert checker.append(tokens[:1]) is None
    response = checker.append(tokens[1:])
    assert response is not None
    assert (response.text, response.finish_reason) == ("", "stop")


def byte_level() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={symbol: n for n, symbol in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=alphabet[0])


def test_byte_level_continuations_are_their_bytes() -> None:
    tokenizer = byte_level()
    decoder = ContinuationDecoder(tokenizer)
    for text in (" owl", "  two", "owl", "\n\nx", "é", "", " ."):
        tokens = tokenizer.encode(text)
        for part in (tokens, tokens[:1], tokens[1:], tokens[-1:]):
            assert decoder.decode(part) == tokenizer.decode(part)


def test_vocabularies_without_the_anchor_decode_as_they_are() -> None:
    assert ContinuationDecoder(words()).decode([3, 4]) == "w3 w4"


@pytest.mark.parametrize("added", [True, False, None])
def test_special_tokens_are_those_that_the_file_states(added: bool | None) -> None:
    """As transformers 5.17 reads GGUF files: the EOS is another token, and no BOS is added."""
    tokenizer = words()
    tokenizer.eos_token = "<s>"
    fields = {"bos_token_id": 58, "eos_token_id": 59, "add_bos_token": added}
    read = with_stated_tokens(tokenizer, lambda name: fields[name.removeprefix("tokenizer.ggml.")])
    assert read is tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (58, 59)
    begins = [58] if added else []
    assert tokenizer("w1 w2").input_ids == [*begins, 1, 2]
    assert TextEncoder(tokenizer).encode(["w1"])[0].ids == [*begins, 1]


def test_a_tokenizer_that_adds_its_bos_stays_as_it_is() -> None:
    tokenizer = words(bos=True)
    before = tokenizer_id(tokenizer)
    fields = {"bos_token_id": 58, "eos_token_id": 59, "add_bos_token": True}
    with_stated_tokens(tokenizer, lambda name: fields[name.removeprefix("tokenizer.ggml.")])
    assert tokenizer_id(tokenizer) == before
    tokenizer.bos_token = None
    with pytest.raises(ConfigError, match="begin with a token that it does not name"):
        with_stated_tokens(tokenizer, lambda name: {"add_bos_token": True}.get(name.rpartition(".")[2]))
