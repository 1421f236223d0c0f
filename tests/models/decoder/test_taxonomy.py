"""The taxonomy of a mixer is what its layers compute and what their cache holds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.models import MIXERS, build_student
from evalsuite.models.decoder.cache import StudentCache, cached_tensors
from evalsuite.models.decoder.taxonomy import state_bytes, taxonomies, taxonomy
from evalsuite.models.mixers import RecurrentMixer
from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs, recurrence_matrix
from tests.models.decoder.test_cost import cache_bytes

Make = Callable[..., PreTrainedModel]
RECURRENT = sorted(name for name in MIXERS if issubclass(MIXERS[name], RecurrentMixer))
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in RECURRENT),
    ("gated_deltanet", {"delta_rule": False}),
    ("metala", {"preset": "native"}),
    ("mlstm", {"input_gate": False, "normalizer": False}),
    ("gla", {"window": 4}),
]


@torch.no_grad()
def inputs_of(student: Any, x: Tensor) -> RecurrenceInputs:
    layer = student.model.layers[0].self_attn
    places = torch.arange(x.shape[1])[None]
    inputs: RecurrenceInputs = layer.prepare(x, student.model.rotary_emb(x, places)).inputs
    return inputs


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_update_and_decay_are_those_of_the_recurrence(
    make_teacher: Make, name: str, options: dict[str, Any]
) -> None:
    """Numerically, after all parameters are drawn: at first, gates of most mixers ignore their input."""
    teacher = make_teacher()
    student = build_student(teacher, name, options={name: options})
    torch.manual_seed(0)
    for parameter in student.parameters():
        parameter.data.normal_(0, 0.3)
    x = torch.randn(1, 6, 32)
    inputs, others = inputs_of(student, x), inputs_of(student, torch.randn(1, 6, 32))
    found = taxonomy(name, teacher.config, options)

    decays, of_others = inputs.decay_per_token, others.decay_per_token
    assert (found.decay == "none") == (decays is None)
    if decays is not None and of_others is not None:
        assert (decays.exp() < 1).all()
        assert (found.decay == "input-dependent") == (not torch.equal(decays, of_others))
        per_channel = decays.reshape(*decays.shape[:3], -1).std(-1, correction=0) > 0
        assert (found.granularity == "channel") == bool(per_channel.all())
    else:
        assert found.granularity is None

    # Under the delta rule alone, a key between removes a part of what an earlier token has written.
    between = torch.arange(6) == 3
    k = torch.where(between[:, None, None], others.k, inputs.k)
    erase = others.erase and others.erase.map(lambda x: x * between[:, None, None])
    if erase is not None and inputs.erase is not None:
        rest = inputs.erase.map(lambda x: x * ~between[:, None, None])
        erase = Erase(erase.read + rest.read, None if rest.along is None else erase.along + rest.along)
    changed = recurrence_matrix(replace(inputs, k=k, erase=erase))[..., 5, 0]
    adds = torch.allclose(recurrence_matrix(inputs)[..., 5, 0], changed, rtol=1e-5, atol=0)
    assert (found.update == "additive") == adds
    assert (found.update == "generalized delta") == (inputs.erase is not None)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *VARIANTS,
        ("softmax", {}),
        ("sliding_window", {"window": 4}),
        ("sliding_window", {"window": 4, "sinks": 2}),
    ],
)
@torch.no_grad()
def test_bytes_are_those_of_the_cache(make_teacher: Make, name: str, options: dict[str, Any]) -> None:
    teacher = make_teacher(layers=1).bfloat16()
    student = build_student(teacher, name, options={name: options})
    found = taxonomy(name, teacher.config, options)
    for length in (9, 12):
        cache = student(torch.ones(1, length, dtype=torch.long), use_cache=True).past_key_values
        assert isinstance(cache, StudentCache)
        assert cache_bytes(cache) == found.state_bytes + length * found.token_bytes


@pytest.mark.parametrize("family", ["qwen3", "smollm3", "olmo2", "gemma3_text"])
def test_shape_is_that_of_any_family(make_teacher: Make, family: str) -> None:
    """Also where the config lists a property of every layer."""
    config = make_teacher(family, layers=3).config
    assert taxonomy("kda", config).decay == "input-dependent"
    assert taxonomy("retnet", config).decay == "fixed"


def test_a_student_has_a_place_for_each_of_its_mixers(make_teacher: Make) -> None:
    """With its options: a window adds its keys and values to the state."""
    teacher = make_teacher()
    layers = teacher.config.num_hidden_layers
    mixers = ["gla" if layer else "softmax" for layer in range(layers)]
    student = build_student(teacher, mixers, options={"gla": {"window": 4}})
    found = taxonomies(student.config)
    assert found == {
        "gla": taxonomy("gla", teacher.config, {"window": 4}),
        "softmax": taxonomy("softmax", teacher.config),
    }
    assert found["gla"].state_bytes > taxonomy("gla", teacher.config).state_bytes


@torch.no_grad()
def test_bytes_of_a_student_are_those_of_its_cache(make_teacher: Make) -> None:
    """Of its own layers: softmax heads leave a part of a state, with keys and values that grow."""
    options = {"sliding_window": {"window": 4}}
    mixers, heads = ["kda", "kda", "sliding_window", "softmax"], {1: [0]}
    student = build_student(make_teacher(layers=4).bfloat16(), mixers, options=options, softmax_heads=heads)
    short, long = (
        sum(each.nbytes for each in cached_tensors(output.past_key_values) if each.is_floating_point())
        for output in (student(torch.ones(1, length, dtype=torch.long), use_cache=True) for length in (9, 12))
    )
    found, places = state_bytes(student.config), taxonomies(student.config)
    assert found == short - 9 * (long - short) / 3
    assert found < sum(places[name].state_bytes for name in mixers)
