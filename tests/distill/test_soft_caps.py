"""Distillation of teachers with soft-capped scores and logits, and sliding windows (Gemma 2)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch.nn.functional import cross_entropy, kl_div
from transformers import Gemma2Config, Gemma2ForCausalLM

from evalsuite.distill import distill
from evalsuite.distill.objectives.forward import hidden_states, set_attention
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import read_jsonl
from evalsuite.models import build_student, load_checkpoint

SCORE_CAP, LOGIT_CAP = 3.0, 2.0
"""Low enough that a forward pass without them gives other logits."""


@pytest.fixture(scope="module")
def gemma(tokenizer: Any) -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        max_position_embeddings=256,
        initializer_range=0.3,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention"],
        attn_logit_softcapping=SCORE_CAP,
        final_logit_softcapping=LOGIT_CAP,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        attn_implementation="eager",
    )
    return Gemma2ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def gemma_folder(gemma: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    gemma.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def test_a_softmax_student_equals_gemma_2_and_the_caps_matter(gemma: Any) -> None:
    ids = torch.randint(0, gemma.config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    wanted = gemma(ids).logits
    student: Any = build_student(gemma, "softmax")
    torch.testing.assert_close(student(ids).logits, wanted, rtol=1e-5, atol=1e-5)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        config = Gemma2Config(**{**gemma.config.to_dict(), name: None})
        config._attn_implementation = "eager"
        uncapped = Gemma2ForCausalLM(config).eval()
        uncapped.load_state_dict(gemma.state_dict())
        assert (uncapped(ids).logits - wanted).abs().max() > 0.1, name


def test_alignment_and_distillation_train_a_hybrid(
    gemma_folder: Path, small_recipe: Any, stage: Any, tmp_path: Path
) -> None:
    stages = [
        stage("align", "attention_output", tokens=128),
        stage("block", "hidden_state", tokens=128, packing="documents"),
        stage("kd", "kd", tokens=128, loss={"ce": 1.0, "kl": 1.0}),
    ]
    student = {"mixers": ["gated_deltanet"], "softmax_layers": [0]}
    recipe = small_recipe(gemma_folder, student=student, stages=stages, precision="fp32")
    (folder,) = distill(recipe, tmp_path / "out", device="cpu", quiet=True)
    rows = list(read_jsonl(tmp_path / "out" / "metrics.jsonl"))
    assert [row["stage"] for row in rows] == ["align", "block", "kd"]
    assert all(row["loss"] > 0 and row["grad_norm"] > 0 for row in rows)
    assert load_checkpoint(str(folder)).model.config.base.final_logit_softcapping == LOGIT_CAP


@pytest.mark.parametrize("mixers", [["softmax", "softmax"], ["softmax", "gated_deltanet"]])
def test_losses_and_gradients_are_those_of_the_capped_logits(gemma: Any, mixers: list[str]) -> None:
    stage = TypeAdapter(Stage).validate_python(
        {
            "name": "kd",
            "objective": "kd",
            "data": "unused",
            "tokens": 40,
            "seq_len": 20,
            "batch_size": 2,
            "lr": 1.0,
            "loss": {"ce": 0.5, "kl": 1.0, "temperature": 2.0},
        }
    )
    ids = torch.randint(0, gemma.config.vocab_size, (2, 21), generator=torch.Generator().manual_seed(2))
    batch = MicroBatch(ids[:, :-1], ids[:, 1:])
    student: Any = build_student(gemma, mixers)
    losses = stage.start(gemma, [student], torch.device("cpu"))
    losses.zero()
    losses.backward(batch, batch.labels.numel())
    weights = {name: each for name, each in student.named_parameters() if each.grad is not None}
    found = {name: each.grad.clone() for name, each in weights.items()}

    logits, targets = student(batch.input_ids).logits.flatten(0, 1), gemma(batch.input_ids).logits
    assert logits.abs().max() < LOGIT_CAP
    log_s, log_t = (each / 2 for each in (logits, targets.detach().flatten(0, 1)))
    kl = 4 * kl_div(log_s.log_softmax(-1), log_t.log_softmax(-1), reduction="batchmean", log_target=True)
    ce = cross_entropy(logits, batch.labels.flatten())
    wanted = torch.autograd.grad(0.5 * ce + kl, list(weights.values()))
    torch.testing.assert_close(losses.reduce(lambda each: None)[0][0, 1:], torch.stack([ce, kl]).detach())
    assert (kl < 1e-6) == (mixers[1] == "softmax")
    torch.testing.assert_close(found, dict(zip(weights, wanted, strict=True)), rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_packed_documents_have_caps_and_windows_too(gemma: Any) -> None:
    ids = torch.randint(0, gemma.config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(3))
    places = torch.cat([torch.arange(12), torch.arange(20), torch.arange(32)]).view(2, 32)
    batch = MicroBatch(ids, ids, None, places, torch.tensor([0, 12, 32, 64], dtype=torch.int32))
    wanted = hidden_states(gemma, batch)
    student: Any = build_student(gemma, "softmax")
    torch.testing.assert_close(hidden_states(student, batch), wanted, rtol=1e-5, atol=1e-5)
    alone = gemma.model(ids[:1, 12:]).last_hidden_state
    torch.testing.assert_close(wanted[:1, 12:], alone, rtol=1e-5, atol=1e-5)


def test_capped_scores_choose_eager_attention_and_say_so(
    gemma: Any, caplog: pytest.LogCaptureFixture
) -> None:
    set_attention(gemma, "sdpa")
    assert gemma.config._attn_implementation == "eager"
    assert "caps its attention scores, which sdpa does not support" in caplog.text
