"""Properties of all recurrent mixers, independent of gates and feature map."""

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evalsuite.foundation import ConfigError
from evalsuite.models.decoder.cache import RecurrentLayerCache
from evalsuite.models.decoder.packing import packed_mask
from evalsuite.models.mixers import MIXERS, RecurrentMixer, make_mixer
from evalsuite.models.ops.recurrence import compute_recurrence
from evalsuite.models.ops.short_conv import short_convolutions

RECURRENT = sorted(name for name, kind in MIXERS.items() if issubclass(kind, RecurrentMixer))
PRESETS = [
    f"{name}:{preset}" for name in RECURRENT for preset in MIXERS[name].Options.presets if preset != "house"
]
house_mixers = pytest.mark.parametrize("name", RECURRENT)
WINDOWED = [f"{name}:window" for name in RECURRENT if getattr(MIXERS[name], "has_keys", False)]
every_mixer = pytest.mark.parametrize("name", RECURRENT + PRESETS + WINDOWED)
"""Names of mixers with their default options, "name:preset", and "name:window" for intra-layer hybrids."""
both_widths = pytest.mark.parametrize("head_dim", [64, 128])


class Attention(nn.Module):
    """The shape of a teacher's grouped-query attention: 2 query heads on one key head, with QK-norm."""

    def __init__(self, head_dim: int, hidden: int = 24) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden, 2 * head_dim, bias=True)
        self.k_proj = nn.Linear(hidden, head_dim, bias=True)
        self.v_proj = nn.Linear(hidden, head_dim, bias=True)
        self.o_proj = nn.Linear(2 * head_dim, hidden, bias=False)
        self.q_norm = self.k_norm = nn.Identity()


def make(name: str, head_dim: int = 64, **options: Any) -> RecurrentMixer:
    """A mixer with all parameters perturbed, so that all gates are active."""
    torch.manual_seed(1)
    name, _, preset = name.partition(":")
    if preset == "window":
        options = {**options, "window": 5, "window_sinks": 2}
    elif preset:
        options = {**options, "preset": preset}
    mixer = make_mixer(name, Attention(head_dim), options, layer=0, norm_eps=1e-6, window=None)
    assert isinstance(mixer, RecurrentMixer)
    mixer = mixer.double()
    mixer.reset_parameters()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return mixer.requires_grad_(False)


def tokens(rows: int, length: int) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(rows, length, 24, dtype=torch.float64)


def rotary(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, D] at the given positions [B, T]."""
    rates = 100.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.cat([positions[..., None] * rates] * 2, -1)
    return angles.cos(), angles.sin()


def run(mixer: RecurrentMixer, x: Tensor, first: int = 0, cache: Any = None, **more: Any) -> Tensor:
    positions = more.pop("positions", None)
    if positions is None:
        positions = torch.arange(first, first + x.shape[1]).expand(x.shape[0], -1)
    if "cu_seqlens" in more and mixer.span is not None:
        more["attention_mask"] = packed_mask(more["cu_seqlens"], x, mixer.span)
    out, weights = mixer(
        x, position_embeddings=rotary(positions, mixer.head_dim), past_key_values=cache, **more
    )
    assert weights is None
    return out


def new_cache() -> Any:
    return SimpleNamespace(layers=[RecurrentLayerCache()])


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-9) -> None:
    assert found.shape == wanted.shape
    found, wanted = found.double(), wanted.double()
    assert torch.isfinite(found).all()
    assert (found - wanted).norm() <= tolerance * wanted.norm().clamp_min(1e-12)


@every_mixer
@both_widths
def test_chunked_equals_stepped_and_split_equals_unsplit(name: str, head_dim: int) -> None:
    mixer = make(name, head_dim)
    x = tokens(2, 70)
    unsplit, cache = run(mixer, x, cache=(unsplit_cache := new_cache())), new_cache()
    parts = [run(mixer, x[:, :9], cache=cache)]
    parts += [run(mixer, x[:, t : t + 1], first=t, cache=cache) for t in range(9, 14)]
    parts.append(run(mixer, x[:, 14:], first=14, cache=cache))
    close(torch.cat(parts, 1), unsplit)
    for key, state in unsplit_cache.layers[0].read().items():
        close(cache.layers[0].read()[key], state)
        assert state.shape[1:] == mixer.state_shapes()[key]


@every_mixer
@both_widths
def test_packed_equals_alone(name: str, head_dim: int) -> None:
    mixer = make(name, head_dim)
    x = tokens(1, 70)
    bounds = [0, 2, 2, 67, 70]
    places = torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(bounds)])
    packed = run(mixer, x, positions=places.unsqueeze(0), cu_seqlens=torch.tensor(bounds))
    for first, last in ((0, 2), (2, 67), (67, 70)):
        close(packed[:, first:last], run(mixer, x[:, first:last]))


@pytest.mark.parametrize("name", RECURRENT + PRESETS)
def test_packed_sequences_continue_from_their_states(name: str) -> None:
    """Three sequences processed in two packed calls (one starts in the second) equal each sequence alone."""
    mixer = make(name, 64)
    x = tokens(3, 70)
    lengths, rest = (2, 40, 0), (5, 1, 9)
    cache = new_cache()
    for first, counts in (((0, 0, 0), lengths), (lengths, rest)):
        rows = [x[n, a : a + b] for n, (a, b) in enumerate(zip(first, counts, strict=True))]
        places = torch.cat([torch.arange(a, a + b) for a, b in zip(first, counts, strict=True)])
        bounds = torch.tensor([0, *itertools.accumulate(counts)])
        found = run(
            mixer,
            torch.cat(rows).unsqueeze(0),
            positions=places.unsqueeze(0),
            cu_seqlens=bounds,
            cache=cache,
        )
    for n, (a, b) in enumerate(zip(lengths, rest, strict=True)):
        alone = new_cache()
        wanted = run(mixer, x[n : n + 1, : a + b], cache=alone)[:, a:]
        close(found[:, bounds[n] : bounds[n + 1]], wanted)
        for key, state in alone.layers[0].read().items():
            close(cache.layers[0].read()[key][n : n + 1], state)


@every_mixer
@both_widths
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_equals_alone(name: str, head_dim: int, side: str) -> None:
    """Compares outputs of real tokens, the state after them, and a continuation from that state."""
    mixer = make(name, head_dim)
    x = tokens(2, 12)
    real = torch.ones(2, 8, dtype=torch.bool)
    pads = slice(0, 3) if side == "left" else slice(5, 8)
    real[1, pads] = False
    places = (real.long().cumsum(1) - 1).clamp_min(0)
    batch = new_cache()
    found = run(mixer, x[:, :8], cache=batch, positions=places, token_mask=real)
    alone = new_cache()
    wanted = run(mixer, x[1:, :8][:, real[1]], cache=alone)
    close(found[1:, real[1]], wanted)
    for key, state in alone.layers[0].read().items():
        close(batch.layers[0].read()[key][1:], state)
    more_real = torch.ones(2, 4, dtype=torch.bool)
    more_real[1, :1] = side != "left"
    more_places = torch.stack([torch.arange(8, 12), more_real[1].long().cumsum(0) + 4])
    found = run(mixer, x[:, 8:], cache=batch, positions=more_places, token_mask=more_real)
    wanted = run(mixer, x[1:, 8:][:, more_real[1]], first=5, cache=alone)
    close(found[1:, more_real[1]], wanted)


@pytest.mark.parametrize("name", RECURRENT + PRESETS)
@both_widths
def test_attention_matrix_times_values_equals_output(name: str, head_dim: int) -> None:
    mixer = make(name, head_dim)
    x = tokens(2, 20)
    places = rotary(torch.arange(20).expand(2, -1), head_dim)
    real = torch.ones(2, 20, dtype=torch.bool)
    real[1, 15:] = False
    layer = mixer.prepare(x, places, token_mask=real)
    o, _ = compute_recurrence(layer.inputs)
    weights, values = mixer.attention_matrix(x, places, real)
    assert torch.equal(weights, weights.tril())
    assert not weights[1, :, :15, 15:].any()
    mixed = torch.einsum("bhts,bshv->bthv", weights, values)
    close(mixed[0], mixer.apply_normalizer(o, layer)[0])
    close(mixed[1, :15], mixer.apply_normalizer(o, layer)[1, :15])


@pytest.mark.parametrize("name", WINDOWED)
def test_matrix_of_an_intra_layer_hybrid(name: str) -> None:
    """It holds both branches; half of it is attention over 5 tokens and 2 sinks."""
    mixer = make(name, output_gate="none")
    x = tokens(2, 20)
    places = rotary(torch.arange(20).expand(2, -1), 64)
    real = torch.ones(2, 20, dtype=torch.bool)
    real[1, 15:] = False
    weights, values = mixer.attention_matrix(x, places, real)
    layer = mixer.prepare(x, places, token_mask=real)
    mixed = mixer.project_output(torch.einsum("bhts,bshv->bthv", weights, values), layer)
    found = run(mixer, x, token_mask=real)
    close(found[0], mixed[0])
    close(found[1, :15], mixed[1, :15])
    alone = make(name.partition(":")[0], output_gate="none")
    near = 2 * weights - alone.attention_matrix(x, places, real)[0]
    close(near[0].sum(-1), torch.ones(2, 20))
    assert (near[0, :, 12].abs() > 1e-6).nonzero()[:, 1].unique().tolist() == [0, 1, 8, 9, 10, 11, 12]


def test_a_window_that_cannot_be_is_refused() -> None:
    for name, options, message in (
        ("hgrn2", {"window": 4}, "hgrn2 has no keys that a window could attend to; set window: 0"),
        ("gla", {"window_sinks": 4}, "window_sinks = 4: needs a window"),
        ("gla", {"window": 4, "expand_k": 0.5}, "set window: 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(name, **options)


@every_mixer
@both_widths
def test_causal(name: str, head_dim: int) -> None:
    mixer = make(name, head_dim)
    x = tokens(1, 70)
    changed = x.clone()
    changed[:, 66:] += 1.0
    before, after = run(mixer, x), run(mixer, changed)
    close(after[:, :66], before[:, :66], 1e-12)
    assert (after[:, 66:] - before[:, 66:]).abs().max() > 1e-6


@every_mixer
def test_gradients_against_finite_differences(name: str) -> None:
    mixer = make(name, 4, **({"feature_dim": 3} if name.startswith("rebased") else {})).requires_grad_(True)
    x = tokens(1, 5).requires_grad_()
    parameters = list(mixer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: run(mixer, x), (x, *parameters), fast_mode=True)


@pytest.mark.parametrize(
    "options",
    [
        {"expand_kv": False},
        {"rotary": True, "short_conv": 0},
        {"output_gate": "sigmoid", "gate_rank": 3},
        {"output_gate": "none", "output_norm": "rms"},
        {"activation": "none", "qk_norm": "none", "scale": "head_dim"},
        {"negative_eigenvalues": True},
    ],
    ids=str,
)
def test_split_equals_unsplit_with_options(options: dict[str, Any]) -> None:
    mixer = make("gated_deltanet", 8, **options)
    x = tokens(1, 10)
    unsplit, cache = run(mixer, x), new_cache()
    close(
        torch.cat([run(mixer, x[:, :6], cache=cache), run(mixer, x[:, 6:], first=6, cache=cache)], 1), unsplit
    )
    assert (unsplit - run(make("gated_deltanet", 8), x)).norm() > 1e-3 * unsplit.norm()


@house_mixers
def test_convolution_and_gate_start_as_identity(name: str) -> None:
    """A sigmoid gate cannot be the identity and starts nearly open."""
    mixer = make_mixer(name, Attention(8), {}, layer=0, norm_eps=1e-6, window=None)
    assert isinstance(mixer, RecurrentMixer)
    mixer.reset_parameters()
    convolutions = (mixer.q_conv1d, mixer.k_conv1d, mixer.v_conv1d)
    parts = [torch.randn(1, 5, width) for width in mixer.qkv_dims]
    weights = [convolution.weight for convolution in convolutions]
    outputs, _ = short_convolutions(parts, weights, sum(each.silu for each in convolutions))
    num_activated = sum(each.channels for each in convolutions if each.silu)
    x, y = torch.cat(parts, -1), torch.cat(list(outputs), -1)
    assert torch.equal(y[..., num_activated:], x[..., num_activated:])
    assert torch.equal(y[..., :num_activated], nn.functional.silu(x[..., :num_activated]))
    gate = nn.functional.silu(mixer.g_proj(torch.randn(3, 24)))
    assert torch.allclose(gate, torch.ones_like(gate), atol=1e-6)


def test_initial_decay_is_between_088_and_0999() -> None:
    for name in ("gla", "gated_deltanet", "kda", "mamba2", "mlstm"):
        mixer = make_mixer(name, Attention(8), {}, layer=0, norm_eps=1e-6, window=None)
        assert isinstance(mixer, RecurrentMixer)
        mixer.reset_parameters()
        x = torch.randn(1, 3, 24)
        inputs = mixer.prepare(x).inputs
        assert inputs.log_decay is not None
        decay = inputs.log_decay.exp()
        decay = decay.amin(-1) if decay.dim() == 4 else decay
        assert torch.allclose(decay, torch.tensor([0.88, 0.999]).expand_as(decay), atol=1e-3), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shortconv": 4}, "layer 0, gla: unknown option 'shortconv' = 4; did you mean 'short_conv'"),
        ({"output_gate": "gelu"}, "output_gate = 'gelu'; known: silu, sigmoid, none"),
        ({"short_conv": True}, "short_conv = True: expected int"),
        ({"short_conv": -1}, "short_conv = -1: must be 0 or more"),
        ({"decay_rank": -1}, "decay_rank = -1: must be 0 or more"),
        ({"decay_group_size": 0}, "decay_group_size = 0: must be 1 or more"),
        ({"decay_temperature": 0.0}, r"decay_temperature = 0\.0: must be above 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_mixer("gla", Attention(8), options, layer=0, norm_eps=1e-6, window=None)


def test_least_values_are_those_of_each_mixer() -> None:
    """A decay rank of −1 is the head width in KDA; GLA has no such value."""
    make_mixer("kda", Attention(8), {"decay_rank": -1}, layer=0, norm_eps=1e-6, window=None)
    with pytest.raises(ConfigError, match="decay_rank = -2: must be -1 or more"):
        make_mixer("kda", Attention(8), {"decay_rank": -2}, layer=0, norm_eps=1e-6, window=None)


def test_other_bad_input_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"layer 3, gated_deltanett: unknown mixer.*did you mean 'gated_deltanet'"
    ):
        make_mixer("gated_deltanett", Attention(8), {}, layer=3, norm_eps=1e-6, window=None)
    odd = Attention(8)
    odd.q_proj = nn.Linear(24, 12)
    with pytest.raises(ConfigError, match="layer 0: 12 query and 8 key channels do not divide"):
        make_mixer("gla", odd, {}, layer=0, norm_eps=1e-6, window=None)
    with pytest.raises(
        ConfigError,
        match="layer 0: Linear has no head_dim; supported are attention modules",
    ):
        make_mixer("gla", nn.Linear(2, 2), {}, layer=0, norm_eps=1e-6, window=None)
    mixer, cache = make("gla", 8), new_cache()
    cache.layers[0].write({"recurrent": torch.zeros(1, 2, 8, 9), "convolution": torch.zeros(1, 48, 3)})
    with pytest.raises(ConfigError, match=r"layer 0: gla received a recurrent state of shape \(1, 2, 8, 9\)"):
        run(mixer, tokens(1, 4), cache=cache)


def test_rebased_does_not_divide_by_rounding_errors() -> None:
    """In bfloat16, the output of a first token with orthogonal query and key is close to that in float32."""
    exact = make("rebased", 64).float()
    coarse = copy.deepcopy(exact).bfloat16()
    x = torch.randn(64, 3, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    wanted, found = run(exact, x.float()), run(coarse, x).float()
    assert (found - wanted).norm(dim=-1).amax() < 0.2 * wanted.norm(dim=-1).mean()
