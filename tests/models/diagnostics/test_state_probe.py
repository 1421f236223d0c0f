"""Probes are of the states of the model's own forward pass, for every mixer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evalsuite.foundation import ConfigError, DataError
from evalsuite.models import build_student
from evalsuite.models.decoder.taxonomy import taxonomy
from evalsuite.models.diagnostics.state_probe import SEGMENTS, Haystack, probe_states
from evalsuite.models.mixers import MIXERS, RecurrentMixer

RECURRENT = sorted(name for name, kind in MIXERS.items() if issubclass(kind, RecurrentMixer))


def haystack(doc_id: str, seed: int, *, filler: int = 30, answer: int = 4) -> Haystack:
    """Random tokens: `filler` on each side of a needle of six tokens, whose value are four of them."""
    generator = torch.Generator().manual_seed(seed)
    length = 2 * filler + 6 + 5 + answer
    tokens = tuple(torch.randint(0, 61, (length,), generator=generator).tolist())
    return Haystack(
        doc_id=doc_id,
        tokens=tokens,
        needle=(filler, filler + 6),
        value=(filler + 1, filler + 5),
        question=2 * filler + 6,
        answer=2 * filler + 11,
        answer_value=2 * filler + 12,
    )


def _cached_state(student: Any, tokens: tuple[int, ...], layer: int) -> Tensor:
    """The state after `tokens`, without further columns."""
    with torch.no_grad():
        cache = student(torch.tensor([tokens]), use_cache=True).past_key_values
    state = cache.layers[layer].read()["recurrent"][0]
    mixer = student.model.layers[layer].self_attn
    return state[..., : mixer.head_v_dim]


@pytest.mark.parametrize("name", RECURRENT)
def test_norms_are_those_of_the_cached_states(make_teacher: Any, name: str) -> None:
    student = build_student(make_teacher(), name).eval()
    long, short = haystack("long", 0), haystack("short", 1, filler=9, answer=3)
    probes = {probe.doc_id: probe for probe in probe_states(student, [short, long])}
    assert not any(layer.self_attn._forward_pre_hooks for layer in student.model.layers)
    for each in (long, short):
        probe = probes[each.doc_id]
        assert [layer.mixer for layer in probe.layers] == [name, name]
        assert sum(probe.segment_tokens) == each.answer
        for layer in probe.layers:
            heads = student.model.layers[layer.layer].self_attn.num_heads
            assert layer.norm.shape == layer.rank.shape == layer.write.shape == (len(SEGMENTS), heads)
            for segment, end in enumerate(each.bounds):
                state = _cached_state(student, each.tokens[:end], layer.layer)
                wanted = torch.linalg.matrix_norm(state).numpy()
                np.testing.assert_allclose(layer.norm[segment], wanted, rtol=1e-3, atol=1e-5)
            width = min(state.shape[-2:])
            assert ((layer.rank >= 0.999) & (layer.rank <= width + 1e-3)).all()
            assert np.isnan(layer.retained[0]).all()
            assert ((layer.retained[1:] >= 0) & (layer.retained[1:] < 1.001)).all()
            assert ((layer.readout >= 0) & (layer.readout <= 1)).all()
            assert (layer.log_decay <= layer.slowest_log_decay + 1e-6).all()
            assert (layer.slowest_log_decay <= 0).all()
            update = taxonomy(name, student.config.base).update
            assert (layer.beta is not None) == (update == "delta")


def test_readout_is_the_share_of_the_attention_matrix(make_teacher: Any) -> None:
    """Recurrent and softmax layers alike, the first of them read the embeddings."""
    each = haystack("one", 3)
    reads = range(each.answer_value - 1, len(each.tokens) - 1)
    for name in ("gla", "kda", "linear_attention", "softmax", "sliding_window"):
        student = build_student(make_teacher(), [name, "gated_deltanet"]).eval()
        (probe,) = probe_states(student, [each])
        recorded = _attention_inputs(student, each.tokens[:-1])
        with torch.no_grad():
            matrix, _ = student.model.layers[0].self_attn.attention_matrix(*recorded)
        rows = matrix[0, :, list(reads)].abs()
        share = rows[..., slice(*each.value)].sum(-1) / rows.sum(-1)
        np.testing.assert_allclose(probe.layers[0].readout, share.mean(1).numpy(), rtol=1e-3, atol=1e-6)
        if name == "softmax":
            assert probe.layers[0].norm is None
            assert probe.layers[0].retained is None


def _attention_inputs(student: Any, tokens: tuple[int, ...]) -> tuple[Tensor, Any]:
    found = []
    handle = student.model.layers[0].self_attn.register_forward_pre_hook(
        lambda _, __, kwargs: found.append((kwargs["hidden_states"], kwargs["position_embeddings"])),
        with_kwargs=True,
    )
    with torch.no_grad():
        student(torch.tensor([tokens]))
    handle.remove()
    return found[0]


def test_a_layer_with_a_window_is_probed_without_it(make_teacher: Any) -> None:
    """The first layer reads the embeddings, so that its state is that of the layer without window."""
    each = haystack("one", 6)
    found = []
    for window in (0, 8):
        options = {"gated_deltanet": {"window": window}}
        student = build_student(make_teacher(), "gated_deltanet", options=options).eval()
        (probe,) = probe_states(student, [each])
        found.append(probe.layers[0])
    for name in ("norm", "rank", "retained", "readout"):
        np.testing.assert_allclose(getattr(found[0], name), getattr(found[1], name), rtol=1e-5)


def test_the_answer_is_scored_as_by_the_model(make_teacher: Any) -> None:
    student = build_student(make_teacher(), "gla").eval()
    first = haystack("first", 5)
    with torch.no_grad():
        logits = student(torch.tensor([first.tokens])).logits[0, first.answer - 1 : -1]
    logprob = logits.log_softmax(-1)[range(4), list(first.tokens[first.answer :])].sum()
    same = logits.argmax(-1) == torch.tensor(first.tokens[first.answer :])
    # In a batch with a document whose answer lies elsewhere.
    probes = {p.doc_id: p for p in probe_states(student, [first, haystack("other", 1, filler=20)])}
    assert probes["first"].answer_logprob == pytest.approx(float(logprob), abs=1e-4)
    assert probes["first"].answer_right == int(same.sum())
    prompt = first.tokens[: first.answer]
    for _ in range(4):
        with torch.no_grad():
            prompt = (*prompt, int(student(torch.tensor([prompt])).logits[0, -1].argmax()))
    (greedy,) = probe_states(student, [replace(first, tokens=prompt)])
    assert greedy.answer_right == greedy.answer_tokens == 4


def test_a_needle_right_before_the_question_leaves_nothing_between(make_teacher: Any) -> None:
    student = build_student(make_teacher(), "gated_deltanet").eval()
    each = haystack("end", 2)
    each = replace(each, question=each.needle[1])
    (probe,) = probe_states(student, [each])
    assert probe.segment_tokens[2] == 0
    layer = probe.layers[0]
    assert np.isnan(layer.log_decay[2]).all()
    np.testing.assert_array_equal(layer.norm[2], layer.norm[1])


def test_retained_is_the_product_of_a_fixed_decay(make_teacher: Any) -> None:
    student = build_student(make_teacher(), "retnet").eval()
    each = haystack("one", 4)
    (probe,) = probe_states(student, [each])
    decay = student.model.layers[0].self_attn.log_decay
    for segment, end in ((1, each.needle[1]), (2, each.question), (3, each.answer)):
        wanted = (decay * (end - each.value[1])).exp().detach().numpy()
        np.testing.assert_allclose(probe.layers[0].retained[segment], wanted, rtol=1e-4)
    np.testing.assert_allclose(probe.layers[0].log_decay[1], decay.detach().numpy(), rtol=1e-5)


def test_bad_input_is_refused(make_teacher: Any) -> None:
    for model in (make_teacher(), build_student(make_teacher(), "softmax")):
        with pytest.raises(ConfigError, match="no recurrent layer"):
            list(probe_states(model, [haystack("one", 0)]))
    good = haystack("one", 0)
    with pytest.raises(DataError, match="document one: no needle before the question"):
        replace(good, value=(good.answer, good.answer + 1))
    with pytest.raises(DataError, match="document one: no question before the answer"):
        replace(good, question=good.answer)
    broken = build_student(make_teacher(), "gla").eval()
    torch.nn.init.constant_(broken.model.layers[1].self_attn.v_proj.weight, torch.nan)
    with pytest.raises(DataError, match="document one: the norm of layer 1 is not finite"):
        list(probe_states(broken, [good]))
