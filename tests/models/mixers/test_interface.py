"""What outsiders read of a mixer, and mixers of other packages."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from evalsuite.foundation import ConfigError, registry
from evalsuite.foundation.registry import API_VERSION
from evalsuite.models import MIXERS, StudentConfig, build_student
from evalsuite.models.checkpoints.fingerprint import plugin_versions
from evalsuite.models.decoder.cache import StudentCache
from evalsuite.models.mixers import AttentionSpan, CacheSpec, Mixer, RecurrentMixer, StateKind
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.ops.recurrence import RecurrenceInputs
from evalsuite.reports.analysis.lineage import TITLES_OF_OLD_LINEAGES
from tests.models.decoder.test_cost import cache_bytes

Make = Callable[..., PreTrainedModel]


@dataclass(frozen=True, kw_only=True)
class ForgetfulOptions(MixerOptions):
    half_life: float = 4.0


class Forgetful(RecurrentMixer):
    """A mixer of another package: one fixed decay."""

    display_name = "Forgetful"
    Options: ClassVar[type[MixerOptions]] = ForgetfulOptions
    options: ForgetfulOptions

    def compute_gates(self, x: torch.Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        rate = torch.full((self.num_heads,), -0.7 / self.options.half_life, device=x.device)
        return replace(inputs, log_decay=rate)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Offer an object as the mixer `forgetful` of another package; None: that package is not installed."""

    def offer(item: Any) -> None:
        module = ModuleType("mixer_plugin")
        module.item, module.EVALSUITE_API = item, API_VERSION  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mixer_plugin", module)
        points = [EntryPoint("forgetful", "mixer_plugin:item", MIXERS.group or "")] if item else []
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
        monkeypatch.setattr(MIXERS, "_plugins", None)
        monkeypatch.setattr(MIXERS, "_loaded", {})

    return offer


def test_each_mixer_is_registered_once_and_complete() -> None:
    for name in MIXERS:
        kind = MIXERS[name]
        assert kind.name == name
        assert kind.__doc__
        assert isinstance(kind.state_kind, StateKind)
    assert len({kind.display_name for kind in MIXERS.values()}) == len(MIXERS)


def test_reports_name_mixers_of_old_lineages_as_we_do() -> None:
    titles = TITLES_OF_OLD_LINEAGES
    assert {name: MIXERS[name].display_name for name in titles} == titles


@pytest.mark.parametrize("name", sorted(MIXERS))
@torch.no_grad()
def test_cache_spec_is_what_the_cache_holds(make_teacher: Make, name: str) -> None:
    options = {"sliding_window": {"window": 4}} if name == "sliding_window" else {}
    student = build_student(make_teacher(), name, options=options)
    for length in (2, 9):
        cache = student(torch.ones(1, length, dtype=torch.long), use_cache=True).past_key_values
        assert isinstance(cache, StudentCache)
        specs = [layer.self_attn.cache_spec() for layer in student.model.layers]
        assert cache_bytes(cache) == sum(spec.bytes(length, torch.float32) for spec in specs)


@pytest.mark.parametrize("name", sorted(MIXERS))
@torch.no_grad()
def test_flops_follow_from_shapes(make_teacher: Make, name: str) -> None:
    """Projections cost two per weight; softmax grows with the length, a window until it is full."""
    mixer = build_student(make_teacher(), name).model.layers[0].self_attn
    projections = 2 * sum(m.weight.numel() for m in mixer.modules() if isinstance(m, nn.Linear))
    # 4 heads of 8 channels: scores and weighted values, 2 · 2 · 32 for each token that is attended to.
    mixing = {n: mixer.flops(n) - projections for n in (1, 99, 1001)}
    if name == "softmax":
        assert mixing == {1: 128, 99: 128 * 50, 1001: 128 * 501}
    elif name == "sliding_window":
        full = 256 * 257 / 2 + (1001 - 256) * 256
        assert mixing == {1: 128, 99: 128 * 50, 1001: pytest.approx(128 * full / 1001)}
    else:
        heads, keys, values = mixer.state_shapes()["recurrent"]
        assert mixing[1] == mixing[99] == mixing[1001] >= 4 * heads * keys * values
        products = mixer.uses_delta_rule + mixer.removes_along_own_key
        assert mixing[1] - 4 * heads * keys * values >= 2 * heads * keys * values * products


@pytest.mark.parametrize("name", sorted(n for n in MIXERS if issubclass(MIXERS[n], RecurrentMixer)))
def test_the_delta_rule_is_declared(make_teacher: Make, name: str) -> None:
    mixer = build_student(make_teacher(), name).model.layers[0].self_attn
    angles = torch.zeros(1, 3, 8)
    inputs = mixer.prepare(torch.randn(1, 3, 32), (angles.cos(), angles.sin())).inputs
    assert (inputs.rule != "additive") == mixer.uses_delta_rule
    assert bool(inputs.erase and inputs.erase.along is not None) == mixer.removes_along_own_key


def test_span_counts_what_it_shows() -> None:
    places = torch.arange(7)
    for span in (AttentionSpan(), AttentionSpan(1), AttentionSpan(3), AttentionSpan(9)):
        seen = span.visible(places[:, None], places)
        assert seen.sum() / 7 == pytest.approx(span.mean_length(7))
    assert CacheSpec(kv_width=3, span=AttentionSpan(4)).bytes(9, torch.bfloat16) == 3 * 3 * 2


@torch.no_grad()
def test_a_mixer_of_another_package_is_used_saved_and_loaded(
    make_teacher: Make, tmp_path: Path, offer: Callable[[Any], None]
) -> None:
    offer(Forgetful)
    student = build_student(
        make_teacher(), ["forgetful", "softmax"], options={"forgetful": {"half_life": 8.0}}
    )
    assert student.config.mixer_packages == {"forgetful": "mixer_plugin:item"}
    assert plugin_versions(student.config)["mixers"] == "mixer_plugin:item"
    student.save_pretrained(tmp_path)
    ids = torch.arange(12)[None]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids).logits, student(ids).logits)
    assert loaded.config.mixer_packages == student.config.mixer_packages


def test_a_student_without_its_plugin_is_refused_by_name(
    make_teacher: Make, tmp_path: Path, offer: Callable[[Any], None]
) -> None:
    offer(Forgetful)
    build_student(make_teacher(), "forgetful").save_pretrained(tmp_path)
    offer(None)
    message = "layer 0: mixer 'forgetful' is defined by mixer_plugin:item, which is not installed"
    with pytest.raises(ConfigError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_students_of_our_mixers_name_no_packages(make_teacher: Make) -> None:
    config = StudentConfig(make_teacher().config.to_dict(), ["gla", "softmax"])
    assert "mixer_packages" not in config.to_dict()
    assert plugin_versions(config) == {}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (nn.Linear, "it must be a class derived from evalsuite.models.mixers.Mixer"),
        (type("Nameless", (RecurrentMixer,), {}), "Nameless.display_name must be a string"),
        (type("Bare", (Mixer,), {"display_name": "bare"}), "Bare.Options must be a dataclass"),
    ],
)
def test_an_object_that_is_no_mixer_is_refused(offer: Callable[[Any], None], item: Any, message: str) -> None:
    offer(item)
    with pytest.raises(ConfigError, match=f"'forgetful' of mixer_plugin:item is no mixer: {message}"):
        MIXERS.get_or_raise("forgetful")
