"""Damaged checkpoints end in a sentence that names the file and, where there is one, the field."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from evalsuite.cli import main
from evalsuite.foundation import CheckpointError
from evalsuite.models import build_student, load_checkpoint

Damage = Callable[[Path], None]
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A teacher and its student."""
    torch.manual_seed(0)
    teacher = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(61)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    found = {}
    for name, model in (("teacher", teacher), ("student", build_student(teacher, ["gla", "softmax"]))):
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
        tokenizer.save_pretrained(found[name])
    return found


def config(**changes: Any) -> Damage:
    """Set fields of config.json; a dotted name is one inside a group; None removes nothing, `...` does."""

    def damage(folder: Path) -> None:
        value = json.loads((folder / CONFIG).read_text())
        for name, setting in changes.items():
            *groups, last = name.split("__")
            place = value
            for group in groups:
                place = place[group]
            if setting is ...:
                del place[last]
            else:
                place[last] = setting
        (folder / CONFIG).write_text(json.dumps(value))

    return damage


def text(file: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: [(folder / file).write_bytes(data), None][1]


def header(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change the header of the weights; the data stays."""

    def damage(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        value = json.loads(data[8 : 8 + length])
        value = change(value) or value
        encoded = json.dumps(value).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + length :])

    return damage


def entry(**changes: Any) -> Damage:
    """Change fields of the first tensor's entry."""

    def change(value: dict[str, Any]) -> None:
        first = next(name for name in sorted(value) if name != "__metadata__")
        for name, setting in changes.items():
            if setting is ...:
                del value[first][name]
            else:
                value[first][name] = setting

    return header(change)


def replace_first(with_entry: Any) -> Damage:
    def change(value: dict[str, Any]) -> None:
        value[next(name for name in sorted(value) if name != "__metadata__")] = with_entry

    return header(change)


def rename_first(name: str) -> Damage:
    def change(value: dict[str, Any]) -> None:
        first = next(each for each in sorted(value) if each != "__metadata__")
        value[name] = value.pop(first)

    return header(change)


def overlap(value: dict[str, Any]) -> None:
    first, second = [name for name in sorted(value) if name != "__metadata__"][:2]
    value[second] = dict(value[first])


def directory(file: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).unlink()
        (folder / file).mkdir()

    return damage


def index(content: Any) -> Damage:
    """Add an index of shards."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda folder: [(folder / INDEX).write_bytes(data), None][1]


def truncate(file: str, size: int) -> Damage:
    return lambda folder: [(folder / file).write_bytes((folder / file).read_bytes()[:size]), None][1]


def without(*files: str) -> Damage:
    return lambda folder: [[(folder / file).unlink() for file in files], None][1]


DEEP = "[" * 100_000 + "]" * 100_000

DAMAGES: dict[str, tuple[str, Damage, str]] = {
    # name: of which model, what is done to it, what the message must name
    "config is not JSON": ("teacher", text(CONFIG, "{"), "config.json"),
    "config is not text": ("teacher", text(CONFIG, b"\xff\xfe\x00"), "config.json"),
    "config is a list": ("teacher", text(CONFIG, "[]"), "config.json"),
    "config is deep": ("teacher", text(CONFIG, '{"a": ' + DEEP + "}"), "config.json"),
    "config is empty": ("teacher", text(CONFIG, "{}"), "config.json"),
    "config is a folder": ("teacher", directory(CONFIG), "config.json"),
    "hidden_size is text": ("teacher", config(hidden_size="many"), "hidden_size"),
    "hidden_size is a list": ("teacher", config(hidden_size=[32]), "hidden_size"),
    "hidden_size is negative": ("teacher", config(hidden_size=-32), "hidden_size"),
    "hidden_size is zero": ("teacher", config(hidden_size=0), "hidden_size"),
    "hidden_size is NaN": ("teacher", config(hidden_size=float("nan")), "hidden_size"),
    "hidden_size is a fraction": ("teacher", config(hidden_size=32.5), "hidden_size"),
    "hidden_size is huge": ("teacher", config(hidden_size=10**30), "hidden_size"),
    "hidden_size is none": ("teacher", config(hidden_size=None), "hidden_size"),
    "heads are text": ("teacher", config(num_attention_heads="four"), "num_attention_heads"),
    "heads do not divide": ("teacher", config(num_attention_heads=5, head_dim=...), "num_attention_heads"),
    "heads are zero": ("teacher", config(num_attention_heads=0), "num_attention_heads"),
    "key heads do not divide": ("teacher", config(num_key_value_heads=3), "num_key_value_heads"),
    "head_dim is negative": ("teacher", config(head_dim=-8), "head_dim"),
    "layers are negative": ("teacher", config(num_hidden_layers=-1), "num_hidden_layers"),
    "layers are text": ("teacher", config(num_hidden_layers="two"), "num_hidden_layers"),
    "vocabulary is negative": ("teacher", config(vocab_size=-61), "vocab_size"),
    "vocabulary is infinite": ("teacher", config(vocab_size=float("inf")), "vocab_size"),
    "intermediate_size is a mapping": ("teacher", config(intermediate_size={}), "intermediate_size"),
    "positions are text": ("teacher", config(max_position_embeddings="all"), "max_position_embeddings"),
    "activation is unknown": ("teacher", config(hidden_act="sillu"), "hidden_act"),
    "activation is a number": ("teacher", config(hidden_act=3), "hidden_act"),
    "dtype is unknown": ("teacher", config(dtype="float31"), "dtype"),
    "dtype is no dtype": ("teacher", config(dtype="nn"), "dtype"),
    "dtype is a number": ("teacher", config(dtype=16), "dtype"),
    "norm epsilon is text": ("teacher", config(rms_norm_eps="small"), "rms_norm_eps"),
    "rope is text": ("teacher", config(rope_parameters="fast"), "config.json"),
    "rope type is unknown": (
        "teacher",
        config(rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0}),
        "config.json",
    ),
    "model_type is unknown": ("teacher", config(model_type="stranger"), "config.json"),
    "model_type is a number": ("teacher", config(model_type=7), "model_type"),
    "teacher is a list": ("student", config(teacher=[1]), "teacher"),
    "teacher's size is text": ("student", config(teacher__hidden_size="many"), "hidden_size"),
    "teacher's heads do not divide": ("student", config(teacher__num_key_value_heads=3), "num_key_value"),
    "teacher's activation is unknown": ("student", config(teacher__hidden_act="sillu"), "hidden_act"),
    "mixers are a number": ("student", config(mixers=3), "mixers"),
    "mixers are numbers": ("student", config(mixers=[1, 2]), "mixer"),
    "a mixer is unknown": ("student", config(mixers=["gela", "softmax"]), "gela"),
    "mixer options are a list": ("student", config(mixer_options=[1]), "mixer_options"),
    "mixer options are numbers": ("student", config(mixer_options={"gla": 3}), "mixer_options"),
    "an option is of the wrong type": ("student", config(mixer_options={"gla": {"conv_size": "x"}}), "gla"),
    "softmax heads are a list": ("student", config(softmax_heads=[1]), "softmax_heads"),
    "softmax heads are of no layer": ("student", config(softmax_heads={"a": [0]}), "softmax_heads"),
    "softmax heads are text": ("student", config(softmax_heads={"0": "all"}), "softmax_heads"),
    "softmax heads are too many": ("student", config(softmax_heads={"0": [99]}), "softmax_heads"),
    "schema is text": ("student", config(schema="two"), "schema"),
    "weights are truncated": ("teacher", truncate(WEIGHTS, 4000), WEIGHTS),
    "weights are four bytes": ("teacher", truncate(WEIGHTS, 4), WEIGHTS),
    "weights are a folder": ("teacher", directory(WEIGHTS), WEIGHTS),
    "weights are absent": ("teacher", without(WEIGHTS), WEIGHTS),
    "header is a list": ("teacher", header(lambda value: [1]), WEIGHTS),
    "header is deep": (
        "teacher",
        text(WEIGHTS, struct.pack("<Q", len(DEEP)) + DEEP.encode()),
        WEIGHTS,
    ),
    "entry is a number": ("teacher", replace_first(3), "lm_head.weight"),
    "dtype of a tensor is unknown": ("teacher", entry(dtype="F31"), "lm_head.weight"),
    "dtype of a tensor is a number": ("teacher", entry(dtype=3), "lm_head.weight"),
    "dtype of a tensor is absent": ("teacher", entry(dtype=...), "lm_head.weight"),
    "shape is negative": ("teacher", entry(shape=[-61, -32]), "lm_head.weight"),
    "shape is huge": ("teacher", entry(shape=[2**62, 2**62]), "lm_head.weight"),
    "shape is text": ("teacher", entry(shape="wide"), "lm_head.weight"),
    "shape is a fraction": ("teacher", entry(shape=[61.0, 32]), "lm_head.weight"),
    "shape does not fit the bytes": ("teacher", entry(shape=[60, 32]), "lm_head.weight"),
    "offsets are reversed": ("teacher", entry(data_offsets=[7808, 0]), "lm_head.weight"),
    "offsets are negative": ("teacher", entry(data_offsets=[-7808, 0]), "lm_head.weight"),
    "offsets are three": ("teacher", entry(data_offsets=[0, 1, 2]), "lm_head.weight"),
    "offsets are text": ("teacher", entry(data_offsets=["0", "7808"]), "lm_head.weight"),
    "offsets are absent": ("teacher", entry(data_offsets=...), "lm_head.weight"),
    "tensors overlap": ("teacher", header(overlap), WEIGHTS),
    "index is not text": ("teacher", index(b"\xff\xfe\x00"), INDEX),
    "index is a list": ("teacher", index([1]), INDEX),
    "index is deep": ("teacher", index(DEEP.encode()), INDEX),
    "index maps to numbers": ("teacher", index({"weight_map": {"a": 1}}), INDEX),
    "index maps to mixed types": ("teacher", index({"weight_map": {"a": 1, "b": "x"}}), INDEX),
    "index has no map": ("teacher", index({"weight_map": None}), INDEX),
    "index leaves the folder": ("teacher", index({"weight_map": {"a": "../x.safetensors"}}), INDEX),
    "index is a folder": ("teacher", lambda folder: (folder / INDEX).mkdir(), INDEX),
    "tokenizer is absent": ("teacher", without("tokenizer.json", "tokenizer_config.json"), "tokenizer"),
    "tokenizer is not JSON": ("teacher", text("tokenizer.json", "{"), "tokenizer"),
    "tokenizer is a number": ("teacher", text("tokenizer.json", "3"), "tokenizer"),
    "tokenizer is not text": ("teacher", text("tokenizer.json", b"\xff\xfe\x00"), "tokenizer"),
    "tokenizer config is a list": ("teacher", text("tokenizer_config.json", "[]"), "tokenizer_config"),
    "tokenizer config is deep": (
        "teacher",
        text("tokenizer_config.json", '{"a": ' + DEEP + "}"),
        "tokenizer",
    ),
    "lineage is deep": ("student", text("lineage.json", '{"a": ' + DEEP + "}"), "lineage.json"),
    "lineage is not text": ("student", text("lineage.json", b"\xff\xfe\x00"), "lineage.json"),
    "generation config is a list": ("teacher", text("generation_config.json", "[]"), "generation_config"),
    "generation config is text": ("teacher", text("generation_config.json", "eos"), "generation_config"),
}


@pytest.fixture
def damaged(sound: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        kind, damage, _ = DAMAGES[name]
        folder = Path(shutil.copytree(sound[kind], tmp_path / "damaged"))
        damage(folder)
        return folder

    return make


def test_there_are_many_kinds_of_damage() -> None:
    assert len(DAMAGES) >= 80


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_damage_is_refused_in_one_sentence(
    name: str, damaged: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = damaged(name)
    code = main(["show", "checkpoint", str(folder)])
    said = capsys.readouterr()
    assert code == CheckpointError.exit_code, said.err[-600:]
    assert "Traceback" not in said.err + said.out
    assert DAMAGES[name][2] in said.err
    assert str(folder) in said.err
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder)
    assert DAMAGES[name][2] in str(error.value)


def test_sound_checkpoints_are_described(sound: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for folder in sound.values():
        assert main(["show", "checkpoint", str(folder)]) == 0
        load_checkpoint(folder)
    assert "gla 0, softmax 1" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["a" * 5000, "nul\0byte", "/proc/self/mem", ""])
def test_paths_that_cannot_be_read_are_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "checkpoint", path]) == CheckpointError.exit_code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["\x1b[2J\x1b[31mowned", "a\rb", "a\u202eb", "\x9b2J"])
def test_terminal_escapes_are_escaped(
    name: str, sound: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(sound["student"], tmp_path / "student"))
    (folder / "lineage.json").write_text(json.dumps({name: name}))
    assert main(["show", "checkpoint", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "lineage" in out
    config(mixers=[name, "softmax"])(folder)
    rename_first(name)(other := Path(shutil.copytree(sound["teacher"], tmp_path / "teacher")))
    entry(dtype="F31")(other)
    for path in (folder, other):
        assert main(["show", "checkpoint", str(path)]) == CheckpointError.exit_code
    errors = capsys.readouterr().err
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(other)
    for printed in (out, errors, str(error.value)):
        assert all(character.isprintable() or character == "\n" for character in printed)


@pytest.mark.parametrize("keep", [0, 1, -1])
def test_a_student_without_some_of_its_weights_is_not_described(
    keep: int, sound: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A header is valid with any tensors, and none; `run` refuses them."""
    folder = Path(shutil.copytree(sound["student"], tmp_path / "student"))
    tensors = load_file(folder / WEIGHTS)
    save_file(dict(list(tensors.items())[:keep]), folder / WEIGHTS)
    assert main(["show", "checkpoint", str(folder)]) == CheckpointError.exit_code
    assert "weights are missing or of another shape, first '" in capsys.readouterr().err
