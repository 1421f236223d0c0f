"""Loading, identifying and refusing checkpoints."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from evalsuite.foundation import CheckpointError
from evalsuite.models import build_student, describe_checkpoint, load_checkpoint, weights_id
from evalsuite.models.checkpoints.describe import describe
from evalsuite.models.checkpoints.fingerprint import fingerprint

Make = Callable[..., PreTrainedModel]


def save(model: PreTrainedModel, folder: Path, *, tokens: int = 61) -> Path:
    """Save a checkpoint folder with a tokenizer of `tokens` words."""
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(tokens)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(make_teacher: Make, tmp_path: Path) -> Path:
    return save(make_teacher(), tmp_path / "teacher")


def test_a_folder_loads_with_its_label(folder: Path, make_teacher: Make) -> None:
    checkpoint = load_checkpoint(folder, dtype="bfloat16", label="mine")
    assert (checkpoint.label, checkpoint.model.dtype) == ("mine", torch.bfloat16)
    assert not checkpoint.model.training
    assert load_checkpoint(folder).model.dtype == torch.float32
    info = describe_checkpoint(folder)
    assert info.weights_id == checkpoint.weights_id == weights_id(folder)
    assert info.parameters == sum(p.numel() for p in make_teacher().parameters())
    assert info.label == "teacher"


def test_a_student_loads_with_its_lineage(make_teacher: Make, tmp_path: Path) -> None:
    student = build_student(make_teacher(), ["gla", "softmax"])
    folder = save(student, tmp_path / "student")
    (folder / "lineage.json").write_text(json.dumps({"teacher": "0123456789abcdef"}))
    checkpoint = load_checkpoint(folder)
    row = torch.arange(5).unsqueeze(0)
    assert torch.equal(checkpoint.model(row).logits, student(row).logits)
    assert checkpoint.lineage == {"teacher": "0123456789abcdef"}
    text = describe(folder)
    assert "gla 0, softmax 1" in text
    assert "student of a llama teacher, 2 layers" in text
    # One softmax layer: 2 (k, v) · 2 heads · 8 channels · 2 bytes. One state: 4 heads · 8 · 8 · 4 bytes,
    # and a convolution of 96 channels · 3 past tokens · 2 bytes.
    assert "64 B per token, 1.6 KiB of states" in text


def test_weights_id_depends_on_weights_config_and_tokenizer_only(folder: Path, make_teacher: Make) -> None:
    first = weights_id(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "transformers_version": "1", "dtype": "bfloat16"})
    )
    assert weights_id(folder) == first
    save(make_teacher(), folder)
    assert weights_id(folder) == first
    make_teacher().save_pretrained(folder, max_shard_size="10KB")
    (folder / "model.safetensors").unlink()
    assert weights_id(folder) == first
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 5.0}))
    assert weights_id(folder) != first
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("w60", "w9x"))
    assert weights_id(folder) != first
    save(other := make_teacher(), folder)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    assert weights_id(folder) == first
    other.model.norm.weight.data[0] += 1e-3
    other.save_pretrained(folder)
    assert weights_id(folder) != first


def test_fingerprints_depend_on_every_part() -> None:
    base = ("a" * 16, "bfloat16", "torch", {"torch": "2.13"})
    names = {fingerprint(*base), fingerprint("b" * 16, *base[1:]), fingerprint(base[0], "float32", *base[2:])}
    names |= {fingerprint(*base[:2], "vllm", base[3]), fingerprint(*base[:3], {"torch": "2.14"})}
    assert len(names) == 5


def test_missing_and_damaged_files_are_reported(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder or file"):
        load_checkpoint(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_checkpoint(tmp_path / "empty")
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match=f"truncated, {len(data) - 100} of {len(data)} bytes"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="truncated"):
        describe_checkpoint(folder)
    weights.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        load_checkpoint(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        load_checkpoint(folder)
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"only pickle weights \(pytorch_model\.bin\)"):
        load_checkpoint(folder)


def test_a_missing_shard_and_missing_weights_are_reported(folder: Path, make_teacher: Make) -> None:
    (folder / "model.safetensors").unlink()
    make_teacher().save_pretrained(folder, max_shard_size="10KB")
    shard = sorted(folder.glob("model-*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name}: listed in"):
        load_checkpoint(folder)
    for file in [*folder.glob("model-*.safetensors"), folder / "model.safetensors.index.json"]:
        file.unlink()
    make_teacher(layers=1).save_pretrained(folder / "other")
    (folder / "other" / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="weights are missing or of another shape"):
        load_checkpoint(folder)


def test_mismatched_tokenizer_dtype_and_schema_are_refused(make_teacher: Make, tmp_path: Path) -> None:
    folder = save(make_teacher(), tmp_path / "teacher", tokens=70)
    with pytest.raises(
        CheckpointError, match="the tokenizer has token id 69, but the model has only 61 embeddings"
    ):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="dtype 'float31' is not a torch dtype"):
        load_checkpoint(folder, dtype="float31")
    student = save(build_student(make_teacher(), "gla"), tmp_path / "student")
    config = json.loads((student / "config.json").read_text())
    (student / "config.json").write_text(json.dumps({**config, "schema": 99}))
    with pytest.raises(CheckpointError, match="schema 99 is newer than this evalsuite supports"):
        load_checkpoint(student)
    (student / "config.json").write_text(json.dumps({**config, "schema": 1}))
    with pytest.raises(CheckpointError, match=r"schema 1 is not supported.*make the student again with"):
        load_checkpoint(student)


def test_remote_code_is_off_by_default(folder: Path, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    (folder / "remote.py").write_text(f"open({str(proof)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "stranger",
        "auto_map": {"AutoConfig": "remote.C", "AutoModelForCausalLM": "remote.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="--trust-remote-code"):
        load_checkpoint(folder)
    assert not proof.exists()


def test_an_unknown_hub_id_is_refused_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="no such folder, and not available from the Hugging Face hub"):
        load_checkpoint("nobody/nothing")


def test_a_revision_of_a_hub_model_is_loaded_and_recorded(
    make_teacher: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []

    def download(source: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        requested.append((source, revision))
        commit = {"v1.0": "1a2b", None: "3c4d"}[revision]
        return str(tmp_path / "models--some--model" / "snapshots" / commit)

    for commit, size in (("1a2b", 61), ("3c4d", 62)):
        save(make_teacher(vocab_size=size), tmp_path / "models--some--model" / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    pinned, latest = load_checkpoint("some/model@v1.0"), describe_checkpoint("some/model")
    assert requested == [("some/model", "v1.0"), ("some/model", None)]
    assert (pinned.revision, latest.revision) == ("1a2b", "3c4d")
    assert latest.folder == tmp_path / "models--some--model" / "snapshots" / "3c4d"
    assert (pinned.path, pinned.label) == ("some/model@v1.0", "model@v1.0")
    assert pinned.model.config.vocab_size == 61
    assert pinned.weights_id != latest.weights_id
    assert load_checkpoint(str(tmp_path / "models--some--model" / "snapshots" / "1a2b")).revision == "1a2b"
    with pytest.raises(CheckpointError, match="some/model@: no such folder or file"):
        load_checkpoint("some/model@")


def test_only_a_students_loss_curve_is_downloaded(
    make_teacher: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = save(build_student(make_teacher(), "gla"), tmp_path / "hub")
    (hub / "training.jsonl").write_text('{"stage": "kd", "tokens": 64, "loss": 2.5}\n')
    cache = tmp_path / "cache"

    def download(source: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert revision is None
        found = {file for pattern in allow_patterns for file in hub.glob(pattern)}
        cache.mkdir(exist_ok=True)
        for file in found:
            (cache / file.name).write_bytes(file.read_bytes())
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert describe_checkpoint("some/model").training is None
    assert not (cache / "training.jsonl").exists()
    (hub / "lineage.json").write_text('{"schema": 1}')
    info = describe_checkpoint("some/model")
    assert info.training == cache / "training.jsonl"
    assert info.weights_id == weights_id(hub)
