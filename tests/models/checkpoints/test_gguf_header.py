"""GGUF files: read as gguf and transformers read them, once, and refused by name where they are damaged."""

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import _type_traits
from transformers import AutoTokenizer, modeling_gguf_pytorch_utils
from transformers.integrations.gguf import reader as transformers_reader

from evalsuite.foundation import CheckpointError
from evalsuite.models import describe_checkpoint, load_checkpoint
from evalsuite.models.checkpoints import gguf_header
from evalsuite.models.checkpoints.gguf_header import HeaderReader, header_parsed_once, in_chunks
from evalsuite.models.checkpoints.load import count_parameters, load_config, load_outline

TOKEN_LIST = "tokenizer.ggml.tokens"
TOKENS = ["<unk>", "", "naïve", "漢字", "a b"]


@pytest.fixture(params=[gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with values of every kind."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "gemma3", endianess=request.param)
    writer.add_context_length(64)
    writer.add_float32("a.float", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "é")
    writer.add_array("a.floats", [0.5, -1.25])
    writer.add_array("a.integers", [3, -4, 5])
    writer.add_array("a.bools", [True, False])
    writer.add_token_list(TOKENS)
    writer.add_tensor("token_embd.weight", np.zeros((5, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def contents(reader: gguf.GGUFReader) -> dict[str, Any]:
    values = {
        name: ([bytes(field.parts[index]) for index in field.data], field.types)
        for name, field in reader.fields.items()
    }
    tensors = {each.name: (tuple(each.shape), each.data_offset) for each in reader.tensors}
    return values | {"tensors": tensors}


def test_values_are_those_of_ggufs_reader(file: Path) -> None:
    assert contents(HeaderReader(file)) == contents(gguf.GGUFReader(file))
    assert HeaderReader(file).num_tokens == len(TOKENS)
    assert HeaderReader(file).stated("gemma3.context_length") == 64
    assert HeaderReader(file).stated("a.bool") is True
    assert HeaderReader(file).stated("tokenizer.ggml.bos_token_id") is None


def test_the_values_of_long_arrays_are_skipped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, arrays = contents(HeaderReader(file)), ["a.floats", "a.integers", "a.bools", TOKEN_LIST]
    monkeypatch.setattr(gguf_header, "LISTED", 1)
    reader = HeaderReader(file)
    assert reader.num_tokens == len(TOKENS)
    assert contents(reader) == whole | {name: ([], whole[name][1]) for name in arrays}


def test_transformers_has_the_config_that_it_parses_itself(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = modeling_gguf_pytorch_utils.load_gguf_checkpoint(str(file))["config"]
    monkeypatch.setattr(gguf_header, "LISTED", 1)
    with header_parsed_once(str(file)):
        assert modeling_gguf_pytorch_utils.load_gguf_checkpoint(str(file))["config"] == wanted
    assert wanted["vocab_size"] == len(TOKENS)


def test_the_packages_are_as_before(file: Path) -> None:
    packages = vars(gguf), vars(modeling_gguf_pytorch_utils), vars(transformers_reader)
    before = [dict(each) for each in packages]
    with header_parsed_once(str(file)) as header:
        assert gguf.GGUFReader(str(file)) is header
    assert [dict(each) for each in packages] == before


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of random blocks, on threads without an errstate
@pytest.mark.parametrize(
    "kind", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, *_type_traits]
)
def test_dequantized_values_are_those_of_gguf(
    kind: gguf.GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of three blocks, of which the last is not full, and which begin within rows."""
    block, size = GGML_QUANT_SIZES[kind]
    monkeypatch.setattr(gguf_header, "CHUNK", 3 * block)
    np.random.default_rng(0).integers(0, 256, 2 * 37 * 4 * size, dtype=np.uint8).tofile(tmp_path / "blocks")
    stored = np.memmap(tmp_path / "blocks", mode="r", shape=(2, 37, 4 * size))
    found, wanted = in_chunks(gguf.dequantize)(stored, kind), gguf.dequantize(stored, kind)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert found.tobytes() == wanted.tobytes()


def test_a_file_without_tokens_is_refused_by_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeaderReader, "num_tokens", 0)
    monkeypatch.setattr("evalsuite.models.checkpoints.load._load", lambda *_: None)
    with pytest.raises(CheckpointError, match=r"model\.gguf: it has no tokenizer"):
        describe_checkpoint(file, with_tokenizer=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of a model, whose tokenizer transformers derives."""
    path = tmp_path / "llama.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
        add(8)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "</s>", "a", "b", "c", "ab", "abc", "<|endoftext|>"])
    writer.add_token_types([3, 3, 1, 1, 1, 1, 1, 3])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_tensor("token_embd.weight", np.zeros((8, 8), dtype=np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((8, 8), dtype=np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def parts(tokenizer: Any) -> tuple[Any, ...]:
    return type(tokenizer), tokenizer.backend_tokenizer.to_str(), repr(tokenizer), tokenizer.init_kwargs


def test_a_process_parses_a_file_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once by gguf; by transformers once for everything and once for the tokenizer."""
    parsed: list[Any] = []

    def counted(parse: Any) -> Any:
        return lambda *arguments: parsed.append(parse) or parse(*arguments)

    monkeypatch.setattr(HeaderReader, "__init__", counted(HeaderReader.__init__))
    monkeypatch.setattr(transformers_reader, "_read_metadata", counted(transformers_reader._read_metadata))
    for _ in range(2):
        count_parameters(model)
        load_config(model)
        load_outline(model)
        describe_checkpoint(model, with_tokenizer=False)
        describe_checkpoint(model)
        load_checkpoint(model)
    assert sorted(each.__name__ for each in parsed) == ["__init__", "_read_metadata", "_read_metadata"]


def test_a_tokenizer_is_derived_once_and_each_caller_owns_its_own(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive, derived = AutoTokenizer.from_pretrained, []
    wanted = derive(model.parent, gguf_file=model.name)
    monkeypatch.setattr(
        AutoTokenizer,
        "from_pretrained",
        lambda *args, **named: derived.append(args) or derive(*args, **named),
    )
    first = load_outline(model)[1]
    assert parts(first)[:3] == parts(wanted)[:3]
    assert first("abcab</s>").input_ids == [6, 5, 1]
    before = parts(first)
    first.pad_token, first.padding_side = "b", "left"
    first(["a"], truncation=True, max_length=4, padding="max_length")
    second = load_outline(model)[1]
    assert parts(second) == before
    assert second.backend_tokenizer.padding is None
    assert len(derived) == 1


def test_a_tokenizer_is_derived_again_from_a_file_that_changed(model: Path) -> None:
    assert load_outline(model)[1].eos_token == "</s>"
    model.write_bytes(model.read_bytes().replace(b"</s>", b"<|s>"))
    at = model.stat()
    os.utime(model, ns=(at.st_atime_ns, at.st_mtime_ns + 1_000_000))
    assert load_outline(model)[1].eos_token == "<|s>"


@pytest.mark.parametrize(
    ("share", "reason"),
    [(0.02, ""), (0.1, ""), (0.5, ""), (0.9, "the tensors behind it are damaged or cut off")],
)
def test_a_truncated_file_is_refused_by_name(file: Path, share: float, reason: str) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=rf"model\.gguf: its header cannot be read: {reason}"):
        describe_checkpoint(file)
