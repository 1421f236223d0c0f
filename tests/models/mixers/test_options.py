"""Options of mixers: widths, feature maps, decay granularity, gates switched off, and refusals."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import RecurrentMixer, make_mixer
from evalsuite.models.mixers.feature_maps import FEATURE_MAPS
from evalsuite.models.ops.recurrence import compute_recurrence
from tests.models.mixers.test_mixers import Attention, close, make, new_cache, run, tokens

GEOMETRIES: list[tuple[str, dict[str, Any]]] = [
    ("gla", {"preset": "native", "expand_k": 0.5, "teacher_qk_norm": False}),
    ("retnet", {"preset": "native", "expand_v": 2.0}),
    ("gated_deltanet", {"expand_v": 2.0, "expand_kv": False}),
    ("mlstm", {"preset": "native", "num_heads": 1, "expand_k": 0.5, "teacher_qk_norm": False}),
    ("metala", {"preset": "native", "expand_k": 0.5, "teacher_qk_norm": False}),
    ("hgrn2", {"preset": "native", "expand_kv": False}),
    ("rebased", {"preset": "native", "feature_proj": False, "expand_k": 2.0, "teacher_qk_norm": False}),
    (
        "mamba2",
        {
            "preset": "native",
            "num_heads": 4,
            "num_qk_heads": 1,
            "expand_k": 3.0,
            "expand_v": 2.0,
            "teacher_qk_norm": False,
        },
    ),
    ("kda", {"decay_group_size": 4}),
    ("kda", {"preset": "published", "teacher_qk_norm": False}),
    ("gla", {"decay_group_size": 2}),
    ("gated_deltanet", {"delta_rule": False}),
    ("mlstm", {"input_gate": False}),
    ("mlstm", {"normalizer": False}),
    *(("linear_attention", {"feature_map": name, "normalizer": False}) for name in FEATURE_MAPS),
    *(
        ("linear_attention", {"feature_map": name, "tie_feature_map_qk": True})
        for name, kind in FEATURE_MAPS.items()
        if not kind.signed
    ),
]
geometries = pytest.mark.parametrize(
    ("name", "options"), GEOMETRIES, ids=[f"{name}-{options}" for name, options in GEOMETRIES]
)


@geometries
def test_split_state_packing_padding_and_matrix(name: str, options: dict[str, Any]) -> None:
    """The invariants of all mixers hold with every option."""
    mixer, x = make(name, 8, **options), tokens(1, 30)
    unsplit, cache = run(mixer, x), new_cache()
    parts = [run(mixer, x[:, :9], cache=cache), run(mixer, x[:, 9:10], first=9, cache=cache)]
    parts.append(run(mixer, x[:, 10:], first=10, cache=cache))
    close(torch.cat(parts, 1), unsplit)
    for key, state in cache.layers[0].read().items():
        assert state.shape[1:] == mixer.state_shapes()[key]
    places = torch.cat([torch.arange(12), torch.arange(18)]).unsqueeze(0)
    packed = run(mixer, x, positions=places, cu_seqlens=torch.tensor([0, 12, 30]))
    close(packed[:, :12], run(mixer, x[:, :12]))
    close(packed[:, 12:], run(mixer, x[:, 12:]))
    real = torch.arange(30).unsqueeze(0) >= 4
    padded = run(mixer, x, positions=(torch.arange(30) - 4).clamp_min(0).unsqueeze(0), token_mask=real)
    close(padded[:, 4:], run(mixer, x[:, 4:]))
    rotary = (torch.ones(1, 30, mixer.head_dim).double(), torch.zeros(1, 30, mixer.head_dim).double())
    layer = mixer.prepare(x, rotary)
    o, _ = compute_recurrence(layer.inputs)
    weights, values = mixer.attention_matrix(x, rotary)
    close(torch.einsum("bhts,bshv->bthv", weights, values), mixer.apply_normalizer(o, layer))


def gates(mixer: RecurrentMixer, x: Tensor) -> Any:
    return mixer.prepare(x).inputs


def test_kda_with_one_decay_per_head_is_gated_deltanet() -> None:
    x = tokens(1, 20)
    grouped = make("kda", 8, decay_group_size=8, decay_rank=0)
    single = make("gated_deltanet", 8)
    weights = {name.replace("a_proj", "f_proj"): value for name, value in single.state_dict().items()}
    grouped.load_state_dict(weights)
    close(run(grouped, x), run(single, x))


@pytest.mark.parametrize(("name", "size"), [("kda", 4), ("kda", 2), ("gla", 4), ("gla", 8)])
def test_decay_groups_share_a_decay_and_start_alike(name: str, size: int) -> None:
    mixer = make(name, 8, decay_group_size=size)
    log_decay = gates(mixer, tokens(1, 5)).log_decay.unflatten(-1, (-1, size))
    assert torch.equal(log_decay, log_decay[..., :1].expand_as(log_decay))
    if size < 8:
        assert (log_decay[..., 0, 0] != log_decay[..., 1, 0]).all()
    fresh, channel = (
        make_mixer(name, Attention(8), {"decay_group_size": n}, layer=0, norm_eps=1e-6, window=None)
        for n in (size, 1)
    )
    fresh.reset_parameters()
    channel.reset_parameters()
    x = torch.randn(1, 3, 24)
    torch.testing.assert_close(gates(fresh, x).log_decay, gates(channel, x).log_decay)


def test_gla_between_one_decay_per_head_and_one_per_channel() -> None:
    """With one decay per head it is the recurrence of a scalar decay; with groups of one, GLA as it is."""
    x = tokens(1, 20)
    mixer = make("gla", 8, decay_group_size=8)
    inputs = gates(mixer, x)
    scalar, _ = compute_recurrence(replace(inputs, log_decay=inputs.log_decay[..., 0]))
    channel, _ = compute_recurrence(inputs)
    close(scalar, channel)
    fine, coarse = make("gla", 8), make("gla", 8, decay_group_size=4)
    weights = fine.state_dict()
    for name in ("gk_proj.1.weight", "gk_proj.1.bias"):
        shared = weights[name].unflatten(0, (-1, 4))[:, :1]
        weights[name] = shared.expand(-1, 4, *shared.shape[2:]).flatten(0, 1)
    fine.load_state_dict(weights)
    coarse.load_state_dict(
        weights | {name: weights[name][::4] for name in ("gk_proj.1.weight", "gk_proj.1.bias")}
    )
    close(run(fine, x), run(coarse, x))


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "linear_attention"])
def test_expansions_multiply_the_state(name: str) -> None:
    plain = make(name, 8, teacher_qk_norm=False, rotary=False).state_shapes()["recurrent"]
    wide = make(name, 8, teacher_qk_norm=False, rotary=False, expand_k=2.0, expand_v=3.0)
    ones = int(wide.uses_normalizer)
    heads, keys, values = wide.state_shapes()["recurrent"]
    assert (heads, keys, values - ones) == (plain[0], 2 * plain[1], 3 * (plain[2] - ones))
    ends = make(name, 8, teacher_qk_norm=False, rotary=False, expand_k=1.0, expand_v=1.0)
    assert ends.state_shapes()["recurrent"] == plain


def test_gated_deltanet_without_the_delta_rule_adds_gated_writes() -> None:
    mixer, x = make("gated_deltanet", 8, delta_rule=False), tokens(1, 9)
    delta = gates(make("gated_deltanet", 8), x)
    found = gates(mixer, x)
    assert found.beta is None
    close(found.k, delta.k * delta.beta.unsqueeze(-1))
    close(found.log_decay, delta.log_decay)


def test_mlstm_without_input_gate_or_normalizer() -> None:
    x = tokens(1, 9)
    layer = make("mlstm", 8)
    full = gates(layer, x)
    plain = make("mlstm", 8, input_gate=False)
    assert not hasattr(plain, "i_proj")
    plain.load_state_dict(
        {name: each for name, each in layer.state_dict().items() if not name.startswith("i_proj")}
    )
    input_gate = (15 * torch.tanh(layer.i_proj(x) / 15)).exp().unsqueeze(-1)
    assert (input_gate - 1).abs().max() > 0.1
    close(gates(plain, x).k * input_gate, full.k)
    bare = make("mlstm", 8, normalizer=False)
    bare.load_state_dict(layer.state_dict())
    inputs = gates(bare, x)
    values, total = (
        compute_recurrence(replace(full, v=v))[0] for v in (inputs.v, torch.ones_like(inputs.v[..., :1]))
    )
    close(bare.apply_normalizer(values, bare.prepare(x)), values)
    with_ones, _ = compute_recurrence(full)
    close(layer.apply_normalizer(with_ones, layer.prepare(x)), values / total.abs().clamp_min(1))


def test_mlstm_gates_start_coupled_or_as_in_the_published_code() -> None:
    """The published code sets the input gate's bias to log 2 and then −log 2, and the forget gate's never."""
    attention = Attention(8)
    for options, forget, write in (
        ({}, 0.88, (1 - 0.88) / 0.88),
        ({"min_decay": 0.5, "max_decay": 0.5, "input_gate_bias": -math.log(2)}, 0.5, 0.5),
    ):
        mixer = make_mixer("mlstm", attention, options, layer=0, norm_eps=1e-6, window=None)
        assert isinstance(mixer, RecurrentMixer)
        mixer.reset_parameters()
        x = torch.randn(1, 3, mixer.attention_shape.hidden_size)
        forget_bias, write_bias = mixer.f_proj(x)[0, 0, 0], mixer.i_proj(x)[0, 0, 0]
        assert forget_bias.sigmoid().item() == pytest.approx(forget, abs=2e-3)
        assert write_bias.exp().item() == pytest.approx(write, abs=2e-3)


@pytest.mark.parametrize("name", ["gla", "gated_deltanet", "kda", "mamba2", "hgrn2", "metala", "mlstm"])
def test_the_retention_range_is_an_option(name: str) -> None:
    options = {"min_decay": 0.5, "max_decay": 0.9, "short_conv": 0}
    mixer = make_mixer(name, Attention(8), options, layer=0, norm_eps=1e-6, window=None)
    assert isinstance(mixer, RecurrentMixer)
    mixer.reset_parameters()
    decay = gates(mixer, torch.zeros(1, 2, 24)).log_decay.exp()
    decay = decay.mean(-1) if decay.dim() == 4 else decay
    if mixer.has_keys:
        torch.testing.assert_close(decay, torch.tensor([0.5, 0.9]).expand_as(decay), rtol=0, atol=1e-4)
    else:
        assert (decay[..., 0] < decay[..., 1]).all()


def test_retnet_can_have_the_decays_of_its_public_variants() -> None:
    """1 − exp(linspace(ln 1/32, ln 1/512)), the other schedule of public re-implementations."""
    options = {"decay_init": "range", "min_decay": 1 - 1 / 32, "max_decay": 1 - 1 / 512}
    mixer = make_mixer("retnet", Attention(8), options, layer=0, norm_eps=1e-6, window=None)
    assert isinstance(mixer, RecurrentMixer)
    mixer.reset_parameters()
    wanted = 1 - torch.linspace(torch.tensor(1 / 32).log(), torch.tensor(1 / 512).log(), 2).exp()
    torch.testing.assert_close(mixer.log_decay.exp(), wanted)


@pytest.mark.parametrize("name", ["gated_deltanet", "kda", "mamba2"])
def test_native_decays_are_drawn_as_in_the_authors_code(name: str) -> None:
    torch.manual_seed(0)
    mixer = make_mixer(name, Attention(64), {"preset": "native"}, layer=0, norm_eps=1e-6, window=None)
    assert isinstance(mixer, RecurrentMixer)
    mixer.reset_parameters()
    rate = mixer.A_log.exp()
    assert (rate >= (1 if name == "kda" else 1e-4)).all()
    assert (rate <= 16).all()
    bias = mixer.f_proj[1].bias if name == "kda" else mixer.a_proj.bias
    steps = torch.nn.functional.softplus(bias)
    assert (steps > 0.000999).all()
    assert (steps < 0.1001).all()
    if name == "mamba2":
        assert torch.equal(mixer.D, torch.ones_like(mixer.D))


def test_published_kda_adds_its_gate_before_the_norm_and_forgets_at_once() -> None:
    mixer, x, mixed = make("kda", 8, preset="published"), tokens(1, 4), torch.randn(1, 4, 2, 8).double()
    added = mixed + (x @ mixer.g_proj.weight.T).unflatten(-1, (2, 8))
    normed = added * (added.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * mixer.o_norm.weight
    close(mixer.norm_and_gate(mixed, mixer.prepare(x)), normed.flatten(2))
    alphas = {}
    for preset in ("native", "published"):
        torch.manual_seed(0)
        fresh = make_mixer("kda", Attention(8), {"preset": preset}, layer=0, norm_eps=1e-6, window=None)
        fresh.reset_parameters()
        with torch.no_grad():
            for parameter in fresh.f_proj.parameters():
                parameter.mul_(parameter.dim() == 1)  # the decay of an input of zeros
        alphas[preset] = gates(fresh.double(), x).log_decay.exp().mean()
    assert alphas["native"] > 0.6
    assert alphas["published"] < 0.15


def test_a_preset_is_a_base_for_single_options() -> None:
    mixer = make("gla", 8, preset="native", output_gate="none")
    assert mixer.options.output_norm == "rms"
    assert not hasattr(mixer, "g_proj")
    x = tokens(1, 4)
    log_decay = gates(mixer, x).log_decay
    close(log_decay, logsigmoid(mixer.split_heads(mixer.gk_proj(x))) / 16)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gla", {"preset": "nativ"}, "layer 0, gla: unknown preset 'nativ'; did you mean 'native'"),
        ("gla", {"preset": 1}, "unknown preset 1"),
        ("softmax", {"preset": "native"}, "layer 0, softmax: unknown option 'preset'"),
        ("gla", {"expand_k": 0.3}, r"layer 0: gla: expand_k = 0.3 makes .* channels of 8"),
        ("gla", {"expand_k": 0.0}, "expand_k = 0.0: must be above 0"),
        ("gla", {"num_heads": 3}, "num_heads = 3: 16 do not divide into 3 equal parts"),
        ("gla", {"num_qk_heads": 3}, "num_qk_heads = 3: 2 do not divide"),
        ("gla", {"expand_k": 0.5}, "the teacher's QK-norm has 8 channels, .* 4; set teacher_qk_norm: false"),
        (
            "retnet",
            {"num_heads": 1},
            "the teacher's rotary embedding has 8 channels, .* 16; set rotary: false",
        ),
        (
            "metala",
            {"short_conv_input": True, "short_conv": 0},
            "short_conv_input = True needs a kernel size",
        ),
        ("kda", {"decay_group_size": 3}, "decay_group_size = 3: must divide the 8 channels"),
        ("kda", {"gate_is_added": True}, "needs an output gate without bias, .* gate_bias = True"),
        ("kda", {"has_zero_dt_bias": True}, "no effect without decay_init: native"),
        ("gla", {"min_decay": 0.9, "max_decay": 0.5}, "need 0 < min_decay <= max_decay < 1"),
        ("retnet", {"max_decay": 0.99}, "no effect with decay_init = 'native'; set decay_init: range"),
        ("deltanet", {"min_decay": 0.9}, "unknown option 'min_decay'"),
        ("hgrn2", {"learned_lower_bounds": True, "lower_bound": 0.1}, "lower_bound = 0.1: must be 0"),
        (
            "rebased",
            {"feature_proj": False},
            "needs heads of feature_dim = 16 channels, not 8; set expand_k: 2",
        ),
        ("linear_attention", {"feature_map": "elementwise_product"}, "set normalizer: false"),
        ("linear_attention", {"feature_map": "elus"}, "feature_map = 'elus'; known: elu, relu, exp"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_mixer(name, Attention(8), options, layer=0, norm_eps=1e-6, window=None)


def test_an_option_that_may_be_unset_takes_any_number() -> None:
    for value in (None, -2.5, 1):
        assert make("mlstm", 8, input_gate_bias=value).options.input_gate_bias == value
    for mistake in ("1", True):
        with pytest.raises(ConfigError, match=f"input_gate_bias = {mistake!r}: expected float"):
            make("mlstm", 8, input_gate_bias=mistake)
