"""The student as its teacher with other mixers, and as a Hugging Face model."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from evalsuite.foundation import CheckpointError, ConfigError, EvalsuiteError
from evalsuite.models import MIXERS, StudentConfig, StudentForCausalLM, build_student
from evalsuite.models.mixers import RecurrentMixer

Make = Callable[..., PreTrainedModel]
both_widths = pytest.mark.parametrize("head_dim", [64, 128])
HYBRID = ["gla", "softmax", "gated_deltanet"]
TEACHERS = [
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"head_dim": 16, "attention_bias": True}),
    ("mistral", {"sliding_window": 6}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 16}),
]
PRESETS = [
    f"{name}:{preset}"
    for name, kind in sorted(MIXERS.items())
    for preset in getattr(kind.Options, "presets", {})
    if preset != "house"
]


def ids(rows: int = 2, length: int = 12) -> Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(4))


def close(found: Tensor, wanted: Tensor) -> None:
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5), (found - wanted).abs().max()


@pytest.mark.parametrize(("family", "changes"), TEACHERS)
@torch.no_grad()
def test_softmax_student_equals_its_teacher(make_teacher: Make, family: str, changes: dict[str, Any]) -> None:
    teacher = make_teacher(family, **changes)
    student = build_student(teacher, "softmax")
    padded = torch.ones(2, 12, dtype=torch.long)
    padded[0, :5] = 0
    assert torch.equal(student(ids()).logits, teacher(ids()).logits)
    assert torch.equal(
        student(ids(), attention_mask=padded).logits[1], teacher(ids(), attention_mask=padded).logits[1]
    )
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(student.generate(ids(), **settings), teacher.generate(ids(), **settings))


@torch.no_grad()
def test_a_bfloat16_student_has_float32_rotary_frequencies(make_teacher: Make, tmp_path: Path) -> None:
    make_teacher().save_pretrained(tmp_path)
    teacher = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    student = build_student(teacher, "softmax").eval()
    assert student.model.rotary_emb.inv_freq.dtype == torch.float32
    assert {parameter.dtype for parameter in student.parameters()} == {torch.bfloat16}
    assert torch.equal(student(ids(2, 50)).logits, teacher.eval()(ids(2, 50)).logits)


@torch.no_grad()
def test_a_bfloat16_student_of_all_mixers_round_trips(make_teacher: Make, tmp_path: Path) -> None:
    student = build_student(make_teacher(layers=len(MIXERS)).bfloat16(), list(MIXERS))
    student.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids(2, 50)).logits, student(ids(2, 50)).logits)
    decay = loaded.model.layers[list(MIXERS).index("retnet")].self_attn.log_decay
    assert torch.allclose(decay.double().exp(), 1 - 2.0 ** (-5 - torch.arange(4, dtype=torch.float64)))


@pytest.mark.parametrize(("family", "changes"), TEACHERS)
@torch.no_grad()
def test_softmax_layers_and_projections_are_copied(
    make_teacher: Make, family: str, changes: dict[str, Any]
) -> None:
    teacher = make_teacher(family, layers=3, **changes)
    student = build_student(teacher, HYBRID)
    mine, original = student.state_dict(), teacher.state_dict()
    for name, weight in original.items():
        if ".self_attn." not in name or ".layers.1." in name:
            assert torch.equal(mine[name], weight), name
    attention, mixer = teacher.model.layers[0].self_attn, student.model.layers[0].self_attn
    x = torch.randn(1, 3, 32)
    keys = attention.k_proj(x).unflatten(-1, (2, -1)).repeat_interleave(2, 2)
    close(mixer.split_heads(mixer.k_proj(x)), keys)
    close(mixer.q_proj(x), attention.q_proj(x))
    assert torch.equal(mixer.o_proj.weight, attention.o_proj.weight)


@pytest.mark.parametrize(("family", "changes"), TEACHERS)
def test_a_student_that_shares_weights_equals_one_that_copies(
    make_teacher: Make, family: str, changes: dict[str, Any]
) -> None:
    teacher = make_teacher(family, layers=3, **changes)
    copied, sharing = (build_student(teacher, HYBRID, share=share) for share in (False, True))
    theirs = {weight.data_ptr() for weight in teacher.parameters()}
    trained = dict(copied.named_parameters())
    assert [name for name, _ in sharing.named_parameters()] == list(trained)
    for name, weight in sharing.named_parameters():
        assert torch.equal(weight, trained[name]), name
        assert weight.requires_grad
        assert trained[name].data_ptr() not in theirs
        assert (weight.data_ptr() in theirs) == (".self_attn." not in name), name


@pytest.mark.parametrize(("init", "copied"), [("qkv", "qkv"), ("vo", "vo"), ("random", "")])
def test_init_selects_the_copied_projections(make_teacher: Make, init: str, copied: str) -> None:
    teacher = make_teacher(num_key_value_heads=4)
    state = torch.random.get_rng_state()
    student = build_student(teacher, "gla", init=init, seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)
    mixer, attention = student.model.layers[0].self_attn, teacher.model.layers[0].self_attn
    for letter in "qkvo":
        same = torch.equal(
            getattr(mixer, f"{letter}_proj").weight, getattr(attention, f"{letter}_proj").weight
        )
        assert same == (letter in copied), letter
    again = build_student(teacher, "gla", init=init, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(student.parameters(), again.parameters(), strict=True))
    other = build_student(teacher, "gla", init=init, seed=6)
    assert any(not torch.equal(a, b) for a, b in zip(student.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", [*sorted(MIXERS), *PRESETS])
def test_all_weights_of_a_new_student_are_drawn_or_copied(make_teacher: Make, name: str) -> None:
    mixer, _, preset = name.partition(":")
    teacher = make_teacher(tie_word_embeddings=True)
    # Memory that nobody writes holds NaN.
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan()
        random = {} if mixer in ("softmax", "sliding_window") else {"init": "random"}
        options = {mixer: {"preset": preset}} if preset else {}
        student = build_student(teacher, mixer, options=options, **random)
    finally:
        torch.use_deterministic_algorithms(False)
    for key, value in student.state_dict().items():
        assert value.isfinite().all(), key
    assert student.lm_head.weight is student.model.embed_tokens.weight


@pytest.mark.parametrize("init", ["qkv", "vo", "random"])
def test_init_of_a_student_without_other_mixers_is_refused(make_teacher: Make, init: str) -> None:
    """`init` concerns mixers that replace attention; softmax layers have an option of their own."""
    with pytest.raises(ConfigError, match=rf"init = '{init}' .*softmax: {{init: {init}}}"):
        build_student(make_teacher(), "softmax", init=init)


@pytest.mark.parametrize(("init", "copied"), [("teacher", "qkvo"), ("qkv", "qkv"), ("random", "")])
@pytest.mark.parametrize("name", ["softmax", "sliding_window"])
def test_softmax_layers_can_start_from_random_projections(
    make_teacher: Make, name: str, init: str, copied: str
) -> None:
    """The control of arXiv 2504.14366v1, Table 2: a Transformer distilled into a Transformer."""
    teacher = make_teacher("qwen3", head_dim=16)
    student = build_student(teacher, name, options={name: {"init": init}}, seed=3)
    for mine, original in zip(student.model.layers, teacher.model.layers, strict=True):
        for letter in "qkvo":
            weight = getattr(mine.self_attn, f"{letter}_proj").weight
            same = torch.equal(weight, getattr(original.self_attn, f"{letter}_proj").weight)
            assert same == (letter in copied), letter
            assert torch.isfinite(weight).all()
        assert torch.equal(mine.self_attn.q_norm.weight, original.self_attn.q_norm.weight) == ("q" in copied)
        assert torch.equal(mine.mlp.up_proj.weight, original.mlp.up_proj.weight)


@pytest.mark.parametrize("family", ["gemma3_text", "llama"])
def test_saving_leaves_the_teachers_settings_as_they_are(
    make_teacher: Make, tmp_path: Path, family: str
) -> None:
    teacher = make_teacher(family)
    layers = teacher.config.num_hidden_layers
    before = copy.deepcopy(teacher.config.to_dict())
    given = copy.deepcopy(before)
    student = build_student(teacher, ["kda"] * layers)
    for _ in range(2):
        student.save_pretrained(tmp_path)
    config = StudentConfig(given, ["kda"] * layers)
    config.base.rope_parameters["rope_type"] = "of another"
    assert given == before
    assert student.config.base.rope_parameters == before["rope_parameters"]
    assert StudentConfig.from_pretrained(tmp_path).teacher["rope_parameters"] == before["rope_parameters"]


@pytest.mark.parametrize("name", [*sorted(MIXERS), *PRESETS])
@both_widths
@torch.no_grad()
def test_save_and_load_round_trips(make_teacher: Make, tmp_path: Path, name: str, head_dim: int) -> None:
    teacher = make_teacher("qwen3", layers=1, head_dim=head_dim, tie_word_embeddings=True)
    name, _, preset = name.partition(":")
    options = {"sliding_window": {"window": 4}} if "sliding" in name else {}
    student = build_student(teacher, name, options=options | ({name: {"preset": preset}} if preset else {}))
    for parameter in student.parameters():
        parameter += 0.05 * torch.randn_like(parameter)
    student.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, StudentForCausalLM)
    assert torch.equal(loaded(ids()).logits, student(ids()).logits)
    assert [p.name for p in tmp_path.glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize("name", [*sorted(MIXERS), *PRESETS, "hybrid"])
@both_widths
@torch.no_grad()
def test_cached_generation_equals_uncached(make_teacher: Make, name: str, head_dim: int) -> None:
    teacher = make_teacher(layers=3, head_dim=head_dim)
    name, _, preset = name.partition(":")
    mixers = ["gla", "sliding_window", "softmax"] if name == "hybrid" else name
    options = {"sliding_window": {"window": 4}} if "sliding_window" in mixers else {}
    options |= {name: {"preset": preset}} if preset else {}
    student = build_student(teacher, mixers, options=options).double()
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :4] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    cached = student.generate(ids(), output_logits=True, return_dict_in_generate=True, **settings)
    plain = student.generate(
        ids(), use_cache=False, output_logits=True, return_dict_in_generate=True, **settings
    )
    assert torch.equal(cached.sequences, plain.sequences)
    close(torch.stack(cached.logits), torch.stack(plain.logits))


@torch.no_grad()
def test_beam_search_reorders_states(make_teacher: Make) -> None:
    student = build_student(make_teacher(layers=3), HYBRID).double()
    settings = {"max_new_tokens": 6, "do_sample": False, "num_beams": 3, "pad_token_id": 0}
    assert torch.equal(
        student.generate(ids(), **settings), student.generate(ids(), use_cache=False, **settings)
    )


@torch.no_grad()
def test_packed_and_padded_rows_equal_single_rows_in_a_hybrid(make_teacher: Make) -> None:
    student = build_student(
        make_teacher(layers=3),
        ["gla", "sliding_window", "softmax"],
        options={"sliding_window": {"window": 3}},
    ).double()
    row = ids(1, 14)
    packed = student(row, cu_seqlens=torch.tensor([0, 5, 14])).logits
    close(packed[:, :5], student(row[:, :5]).logits)
    close(packed[:, 5:], student(row[:, 5:]).logits)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[1, 9:] = 0
    both = row.repeat(2, 1)
    close(student(both, attention_mask=mask).logits[1:, :9], student(row[:, :9]).logits)


def test_gradient_checkpointing_gives_the_same_gradients(make_teacher: Make) -> None:
    student = build_student(make_teacher(layers=3), HYBRID).train()
    student(ids(), labels=ids()).loss.backward()
    wanted = {name: parameter.grad.clone() for name, parameter in student.named_parameters()}
    student.zero_grad()
    student.gradient_checkpointing_enable()
    student(ids(), labels=ids()).loss.backward()
    assert wanted
    for name, parameter in student.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name], atol=1e-7), name


def test_hidden_states_have_one_entry_per_layer_and_the_final_norm(make_teacher: Make) -> None:
    teacher = make_teacher(layers=3)
    found = build_student(teacher, "softmax")(ids(), output_hidden_states=True).hidden_states
    wanted = teacher(ids(), output_hidden_states=True).hidden_states
    assert len(found) == len(wanted) == 4
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixers": ["gla", "gla", "gla"]}, "3 mixers for 2 layers"),
        ({"mixers": ["gla", "glaa"]}, "layer 1: unknown mixer 'glaa'; did you mean 'gla'"),
        ({"mixer_options": {"kda": {}}}, "options for mixer 'kda', which no layer uses"),
        ({"mixer_options": {"gla": {"gate": 1}}}, "gla: unknown option 'gate'"),
        ({"schema": 99}, "schema 99 is newer"),
        ({"schema": 1}, "schema 1 is not supported: since schema 2 mixer parameters have other names"),
        ({"schema": "1"}, "schema 1 is not supported"),
        (
            {"teacher": {"model_type": "gpt2"}},
            "teacher architecture 'gpt2' is not supported; supported: llama",
        ),
    ],
)
def test_bad_configs_are_refused(make_teacher: Make, change: dict[str, Any], message: str) -> None:
    config = {"teacher": make_teacher().config.to_dict(), "mixers": ["gla", "gla"], **change}
    with pytest.raises(EvalsuiteError, match=message):
        StudentConfig(**config)


def test_a_checkpoint_of_a_newer_schema_is_refused(make_teacher: Make, tmp_path: Path) -> None:
    build_student(make_teacher(), "gla").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "schema": config["schema"] + 1}))
    with pytest.raises(CheckpointError, match=r"schema 3 is newer than .* supports \(2\); update evalsuite"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@torch.no_grad()
def test_hgrn2_layers_of_a_student_share_their_lower_bounds(make_teacher: Make, tmp_path: Path) -> None:
    """Also in a hybrid, after loading, and in a copy, which must not refer to the original's layers."""
    mixers = ["hgrn2", "softmax", "hgrn2", "hgrn2"]
    student = build_student(make_teacher(layers=4), mixers, options={"hgrn2": {"preset": "native"}})
    linear = [student.model.layers[n].self_attn for n in (0, 2, 3)]
    assert all(mixer.bound_layers == tuple(linear) for mixer in linear)
    before = student(ids()).logits
    linear[2].lower_bounds += 3.0
    changed = student(ids()).logits
    assert (changed - before).abs().max() > 1e-3
    student.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids()).logits, changed)
    copied = copy.deepcopy(student)
    linear[2].lower_bounds -= 3.0
    assert torch.equal(copied(ids()).logits, changed)


def test_projections_of_another_width_are_not_copied(make_teacher: Make) -> None:
    options = {"gla": {"preset": "native", "expand_k": 0.5}}
    with pytest.raises(
        ConfigError,
        match=r"layer 0: the teacher's q_proj.weight is \(32, 32\), that of gla \(16, 32\); choose an init",
    ):
        build_student(make_teacher(), "gla", options=options)
    teacher = make_teacher()
    mixer = build_student(teacher, "gla", options=options, init="vo").model.layers[0].self_attn
    assert torch.equal(mixer.o_proj.weight, teacher.model.layers[0].self_attn.o_proj.weight)


def test_misuse_is_refused(make_teacher: Make) -> None:
    teacher = make_teacher()
    with pytest.raises(ConfigError, match="unknown init 'kv'; did you mean 'qkv'"):
        build_student(teacher, "gla", init="kv")
    student = build_student(teacher, "gla")
    with pytest.raises(ConfigError, match="cannot be used with a cache"):
        student(ids(1), cu_seqlens=torch.tensor([0, 12]), use_cache=True)
    cache = student(ids(), use_cache=True).past_key_values
    with pytest.raises(ConfigError, match="cannot be cropped"):
        cache.crop(-1)
    assert all(isinstance(layer.self_attn, RecurrentMixer) for layer in student.model.layers)
