"""Softmax heads inside recurrent layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from evalsuite.distill.trainable import places
from evalsuite.foundation import ConfigError
from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.checkpoints.describe import describe
from evalsuite.models.checkpoints.streaming import NewStudentWeights
from evalsuite.models.decoder.cost import ModelCost
from evalsuite.models.decoder.precision import round_states
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.mixers import MIXERS, RecurrentMixer, SoftmaxMixer
from evalsuite.models.vllm_plugin.validation import validate_student
from tests.models.engine_reference import assert_engine_responds_as, pocket_tokenizer
from tests.models.fuzzing import shake

Make = Callable[..., PreTrainedModel]
RECURRENT = sorted(name for name, kind in MIXERS.items() if issubclass(kind, RecurrentMixer))
HEADS = {0: [1], 1: [0, 1, 3]}
"""Of four heads on two key and value heads: one that leaves groups of different sizes, three that are so."""


def ids(rows: int = 2, length: int = 14) -> Tensor:
    torch.manual_seed(3)
    return torch.randint(1, 61, (rows, length))


def student(make_teacher: Make, name: str = "kda", family: str = "llama", **changes: Any) -> Any:
    made = build_student(make_teacher(family, **changes), name, softmax_heads=HEADS)
    shake(made, 5)
    return made.eval()


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3", "olmo3"])
@torch.no_grad()
def test_softmax_heads_are_the_teachers(make_teacher: Make, family: str) -> None:
    """With all columns of the recurrent part's output zero, the layer gives what the teacher's heads add."""
    if family == "olmo3":
        with pytest.raises(ConfigError, match="the teacher's QK-norm spans all heads"):
            student(make_teacher, family=family)
        return
    teacher, attention = make_teacher(family), "eager" if family == "gemma2" else "sdpa"
    teacher.set_attn_implementation(attention)
    made = build_student(teacher, "kda", softmax_heads=HEADS)
    wanted = StudentForCausalLM.of_teacher(make_teacher(family))
    for layer, heads in HEADS.items():
        mixer, theirs = (each.model.layers[layer].self_attn for each in (made, wanted))
        mixer.recurrent.o_proj.weight.zero_()
        columns = theirs.o_proj.weight.unflatten(1, (4, -1))
        for head in {0, 1, 2, 3} - set(heads):
            columns[:, head] = 0
    close(made(ids()).logits, wanted(ids()).logits)


@pytest.mark.parametrize("name", RECURRENT)
@torch.no_grad()
def test_every_way_of_reading_gives_the_same_logits(make_teacher: Make, tmp_path: Path, name: str) -> None:
    """Packed, padded, in parts and saved; the counted cache and parameters are those that there are."""
    model = student(make_teacher, name)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert loaded.config.softmax_heads == HEADS
    assert torch.equal(loaded(ids()).logits, model(ids()).logits)
    cost = ModelCost(model.config)
    assert cost.num_params == sum(parameter.numel() for parameter in model.parameters())

    cache = model(ids(1), use_cache=True).past_key_values
    counted = cost.cache(torch.float32)
    assert counted is not None
    stored = [x for each in cache.layers for x in (each.keys, each.values, *each.read().values())]
    assert sum(x.nbytes for x in stored) == counted.at(14)
    assert counted.per_token == 2 * 4 * 8 * (1 + 2), "one key and value head in layer 0, two in layer 1"

    model = model.double()
    row = ids(1)
    packed = model(row, cu_seqlens=torch.tensor([0, 5, 14])).logits
    close(packed[:, :5], model(row[:, :5]).logits)
    close(packed[:, 5:], model(row[:, 5:]).logits)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[0, :6] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    settings |= {"output_logits": True, "return_dict_in_generate": True, "num_beams": 2}
    cached, plain = (model.generate(ids(), use_cache=use, **settings) for use in (True, False))
    assert torch.equal(cached.sequences, plain.sequences)
    cache, parts = None, []
    for part in row.split((6, 1, 7), 1):
        output = model(part, past_key_values=cache, use_cache=True)
        cache, parts = output.past_key_values, [*parts, output.logits]
    close(torch.cat(parts, 1), model(row).logits)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"expand_v": 2.0}, {"num_heads": 1}])
def test_the_matrix_has_the_teachers_heads_in_order(make_teacher: Make, options: dict[str, Any]) -> None:
    teacher = make_teacher()
    own = {"kda": {"output_gate": "none", **options}}
    mixer = build_student(teacher, "kda", options=own, softmax_heads=HEADS).model.layers[1].self_attn
    x, positions = torch.randn(1, 9, 32), torch.arange(9)[None]
    angles = teacher.model.rotary_emb(x, positions)
    weights, values = mixer.attention_matrix(x, angles)
    assert weights.shape == (1, 4, 9, 9)
    own_weights, own_values = mixer.recurrent.attention_matrix(x, angles)
    theirs = StudentForCausalLM.of_teacher(teacher).model.layers[1].self_attn
    wanted, wanted_values = theirs.attention_matrix(x, angles)
    for head in range(4):
        source = own_weights[:, 0] if head == 2 else wanted[:, head]
        close(weights[:, head], source)
        value = own_values[:, :, 0] if head == 2 else wanted_values[:, :, head]
        close(values[:, :, head, : value.shape[-1]], value)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@torch.no_grad()
def test_the_engine_and_rounded_states(make_teacher: Make, tmp_path: Path, family: str) -> None:
    tokenizer = pocket_tokenizer()
    model = student(make_teacher, family=family, vocab_size=len(tokenizer))
    assert_engine_responds_as(model, tokenizer, 9)
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path)
    assert "kda (softmax heads 1) 0, kda (softmax heads 0, 1, 3) 1\n" in describe(tmp_path)
    before = model(ids(), use_cache=True).past_key_values
    round_states(model, "int8")
    after = model(ids(), use_cache=True).past_key_values
    assert not torch.equal(*(each.layers[0].read()["recurrent"] for each in (before, after)))
    assert torch.equal(before.layers[0].keys, after.layers[0].keys)


@torch.no_grad()
def test_weights_of_a_sharded_start_and_parameter_sets(make_teacher: Make) -> None:
    teacher = make_teacher("qwen2")

    class Stored:
        model = teacher

        def rows(self, name: str, start: int, stop: int | None) -> Tensor:
            return teacher.get_parameter(name)[start:stop].float()

    settings: dict[str, Any] = {"options": {}, "init": "qkvo", "seed": 3, "softmax_heads": HEADS}
    made = build_student(teacher, ["gla", "kda"], **settings)
    streamed = NewStudentWeights(Stored(), ["gla", "kda"], **settings)  # type: ignore[arg-type]
    found = places(made)
    for name, parameter in made.named_parameters():
        if name != "lm_head.weight":
            assert torch.equal(streamed.rows(name, 0, len(parameter)), parameter), name
        assert found[name].is_softmax == (".softmax." in name), name
        assert found[name].is_mixer == (".recurrent." in name), name


def test_all_parameters_get_gradients(make_teacher: Make) -> None:
    model = student(make_teacher, "gated_deltanet").train()
    model(ids(), labels=ids()).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "heads", "options", "message"),
    [
        ("kda", {0: [4]}, {}, r"layer 0, kda: softmax_heads = \[4\]: must be some of heads 0 to 3"),
        ("kda", {0: [-1]}, {}, r"softmax_heads = \[-1\]: must be some"),
        ("kda", {0: [1, 1]}, {}, r"softmax_heads = \[1, 1\]: must be some of heads 0 to 3, each once"),
        ("kda", {1: []}, {}, "softmax_heads: layer 1 has none; leave it out"),
        ("kda", {2: [0]}, {}, "softmax_heads: there are layers 0 to 1, not 2"),
        ("kda", {0: [0, 1, 2, 3]}, {}, "these are all heads; make the layer softmax"),
        ("softmax", {0: [0]}, {}, "layer 0, softmax: .* only layers with a recurrent mixer"),
        ("sliding_window", {0: [0]}, {}, "layer 0, sliding_window: .* only layers with a recurrent mixer"),
        ("kda", {0: [0]}, {"window": 4}, "layer 0: softmax heads in a layer of kda with window = 4"),
        ("kda", {0: [0]}, {"expand_kv": False}, "leave 1, 2 heads .* expand_kv = False needs as many"),
        ("hgrn2", {0: [0]}, {"learned_lower_bounds": True}, "learned_lower_bounds = True"),
    ],
)
def test_what_cannot_be_is_refused(
    make_teacher: Make, name: str, heads: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_student(make_teacher(), name, options={name: options}, softmax_heads=heads)


def test_vllm_and_two_kinds_of_positions_are_refused(make_teacher: Make) -> None:
    with pytest.raises(ConfigError, match=r"softmax_heads = \[1\] in a layer of kda cannot be served"):
        validate_student(student(make_teacher).config, 1)
    options = {"kda": {"rotary": True}, "softmax": {"rotary": False, "logit_scale_base": 8.0}}
    with pytest.raises(ConfigError, match=r"rotary = True .* logit_scale_base = 8.0"):
        build_student(make_teacher(), "kda", options=options, softmax_heads=HEADS)
    # Teachers' groups that lose as many heads each remain groups.
    kept = build_student(
        make_teacher(), "kda", options={"kda": {"expand_kv": False}}, softmax_heads={0: [0, 2]}
    )
    assert kept.model.layers[0].self_attn.recurrent.num_kv_heads == 2


@pytest.mark.parametrize("both", [False, True])
@torch.no_grad()
def test_layers_that_store_keys_in_place_stand_next_to_layers_that_do_not(
    make_teacher: Make, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    """As on a GPU: one kernel stores keys, where it applies; here its reference does. Groups of the second
    layer differ in size."""
    runner = ModelRunner(student(make_teacher).double())
    stores = property(lambda mixer: both or mixer.attention_shape.kv_group_sizes is None)
    monkeypatch.setattr(SoftmaxMixer, "stores_keys", stores)
    monkeypatch.setattr(SoftmaxMixer, "reads_parents", True)
    first, second = (layer.self_attn.softmax for layer in runner.decoder.layers)
    assert (first.stores_keys, second.stores_keys) == (True, both)
    runner.storing = first
    row = ids(1)[0].tolist()
    _, parent = runner.prefill([row[:5], row[:9]], keep=True)
    assert parent is not None
    hidden, _ = runner.prefill([row[9:], row[5:7]], parent=parent, parent_rows=[1, 0])
    whole, _ = runner.prefill([row])
    close(hidden[0], whole[0, 9:])
    close(hidden[1, :2], whole[0, 5:7])
