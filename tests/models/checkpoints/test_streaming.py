"""Weights that are drawn, read and converted one at a time equal those of whole models, bit for bit."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from evalsuite.foundation import CheckpointError
from evalsuite.models import build_student, describe_checkpoint, load_checkpoint
from evalsuite.models.checkpoints.location import POCKET
from evalsuite.models.checkpoints.streaming import NewStudentWeights, StoredWeights
from evalsuite.models.decoder import StudentForCausalLM
from evalsuite.models.decoder.deferred_init import DeferredInit, DrawnWeights
from evalsuite.models.mixers import MIXERS

LARGE = 64
"""So that most weights of the tiny models count as large."""
CONFIG = Qwen3Config(
    vocab_size=1200,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    pad_token_id=3,
    tie_word_embeddings=True,
)


@pytest.fixture(autouse=True)
def _most_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.models.decoder.deferred_init.LARGE", LARGE)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(CONFIG)
    model.generation_config.max_length = 77
    model.save_pretrained(tmp_path / "teacher", max_shard_size="20KB")
    load_checkpoint("pocket").tokenizer.save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


def assert_equal(weights: Any, whole: PreTrainedModel) -> None:
    """Rows are equal, in halves, and so are buffers; no parameter has memory."""
    expected = dict(whole.named_parameters())
    assert {name for name, _ in weights.model.named_parameters()} == expected.keys()
    for name, parameter in expected.items():
        half = len(parameter) // 2
        for start, stop in ((0, half), (half, len(parameter))):
            assert torch.equal(weights.rows(name, start, stop), parameter[start:stop]), name
    for (name, mine), (_, other) in zip(weights.model.named_buffers(), whole.named_buffers(), strict=True):
        assert torch.equal(mine, other), name
    assert all(parameter.is_meta for parameter in weights.model.parameters())
    head, embeddings = weights.model.get_output_embeddings(), weights.model.get_input_embeddings()
    assert (head.weight is embeddings.weight) == whole.config.tie_word_embeddings


def test_rows_of_a_checkpoint(teacher: Path) -> None:
    weights = StoredWeights(describe_checkpoint(str(teacher)))
    whole = load_checkpoint(str(teacher), dtype="float32").model
    assert_equal(weights, whole)
    assert weights.model.generation_config.max_length == 77
    assert weights.model.training == whole.training


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("init", ["qkvo", "random"])
def test_rows_of_a_new_student(teacher: Path, mixer: str, init: str) -> None:
    if not MIXERS[mixer].uses_init and init == "random":
        pytest.skip("its init is an option")
    settings: dict[str, Any] = {"options": {}, "init": init, "seed": 3}
    mixers = [mixer, "softmax", "gated_deltanet"]
    weights = NewStudentWeights(StoredWeights(describe_checkpoint(str(teacher))), mixers, **settings)
    whole = build_student(load_checkpoint(str(teacher), dtype="float32").model, mixers, **settings)
    assert_equal(weights, whole)
    assert weights.model.config.to_dict() == whole.config.to_dict()
    assert weights.model.generation_config.to_dict() == whole.generation_config.to_dict()


def test_rows_of_random_weights(teacher: Path) -> None:
    state = torch.get_rng_state()
    weights = DrawnWeights(lambda: Qwen3ForCausalLM(CONFIG), seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    assert_equal(weights, Qwen3ForCausalLM(CONFIG))


def test_a_large_weight_is_written_only_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one large weight exists at a time: that which is read, or drawn and thrown away."""
    written: list[int] = []
    original = DeferredInit.value
    monkeypatch.setattr(
        DeferredInit, "value", lambda self, tensor: written.append(tensor.numel()) or original(self, tensor)
    )
    drawn = DrawnWeights(lambda: Qwen3ForCausalLM(CONFIG), seed=0)
    assert not written
    assert drawn["model.layers.1.mlp.up_proj.weight"].std() == pytest.approx(0.02, rel=0.1)
    assert written == [48 * 32]


def test_memory_is_that_of_one_layer(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all weights that were drawn or read, only those of the last layer's mixer are still alive."""
    alive: list[weakref.ref[torch.Tensor]] = []
    peaks: list[int] = []

    def watched(function: Any) -> Any:
        def call(*arguments: Any) -> torch.Tensor:
            found: torch.Tensor = function(*arguments)
            alive.append(weakref.ref(found))
            peaks.append(sum(tensor.numel() for each in alive if (tensor := each()) is not None))
            return found

        return call

    monkeypatch.setattr(DeferredInit, "value", watched(DeferredInit.value))
    monkeypatch.setattr(StoredWeights, "rows", watched(StoredWeights.rows))
    stored = StoredWeights(describe_checkpoint(str(teacher)))
    mixers = ["gated_deltanet"] * CONFIG.num_hidden_layers
    weights = NewStudentWeights(stored, mixers, options={}, init="qkvo", seed=0)
    for name, parameter in weights.model.named_parameters():
        weights.rows(name, 0, len(parameter))
    gc.collect()
    layer = sum(p.numel() for p in weights.model.model.layers[0].self_attn.parameters())
    attention = sum(p.numel() for p in stored.model.model.layers[0].self_attn.parameters())
    embeddings = CONFIG.vocab_size * CONFIG.hidden_size
    assert 0 < max(peaks) <= embeddings + 2 * layer + attention
    assert max(peaks) < sum(p.numel() for p in weights.model.parameters())


def test_a_weight_that_is_read_is_written_first() -> None:
    def make() -> torch.nn.Module:
        layer = torch.nn.Linear(32, 32)
        layer.scale = torch.nn.Parameter(torch.stack([layer.weight.norm(), layer.weight.max()]))
        return layer

    drawn = DrawnWeights(make, seed=0)
    torch.manual_seed(0)
    expected = make()
    for name, parameter in expected.named_parameters():
        assert torch.equal(drawn[name], parameter)


def test_files_that_cannot_be_read_in_part_are_refused(teacher: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    renamed = tmp_path / "renamed"
    LlamaForCausalLM.from_pretrained(POCKET).save_pretrained(renamed)
    load_checkpoint("pocket").tokenizer.save_pretrained(renamed)
    tensors = load_file(renamed / "model.safetensors")
    save_file(
        {name.replace("mlp", "ffn"): tensor for name, tensor in tensors.items()},
        renamed / "model.safetensors",
    )
    with pytest.raises(
        CheckpointError, match=r"weight 'model.layers.0.mlp.gate_proj.weight' is missing .*sharding=none"
    ):
        StoredWeights(describe_checkpoint(str(renamed)))
    student = build_student(load_checkpoint(str(teacher)).model, "gla")
    assert isinstance(student, StudentForCausalLM)
    student.save_pretrained(tmp_path / "student")
    load_checkpoint("pocket").tokenizer.save_pretrained(tmp_path / "student")
    assert_equal(
        StoredWeights(describe_checkpoint(str(tmp_path / "student"))),
        load_checkpoint(str(tmp_path / "student"), dtype="float32").model,
    )
