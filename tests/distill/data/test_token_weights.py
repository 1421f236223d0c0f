"""Weights of tokens by class, and losses that use them, against explicit weighted means."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from evalsuite.distill.data.loader import collate
from evalsuite.distill.data.packing import Document, PackedSequence, pack_documents
from evalsuite.distill.data.token_weights import sequence_weights, step_weights
from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.recipe.config import TokenWeights
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.models import build_student
from evalsuite.models.decoder.head import LanguageModelHead
from tests.distill.stage_data import stage_data

WEIGHTS = TokenWeights(copied=4, repeated=2)


def sequence(text: list[int], doc_lengths: tuple[int, ...] = (), loss: list[bool] | None = None):
    ids = np.array(text, dtype=np.int32)
    mask = np.ones(len(ids) - 1, dtype=bool) if loss is None else np.array(loss)
    return PackedSequence(ids[:-1], ids[1:], mask, doc_lengths or (len(ids) - 1,))


def test_weights_are_those_of_the_class_of_the_label():
    #           1 2 3 4 comes back; its last token completes four that stand earlier
    found = sequence_weights(sequence([1, 2, 3, 4, 9, 1, 2, 3, 4, 8]), WEIGHTS)
    assert found.tolist() == [1, 1, 1, 1, 2, 2, 2, 4, 1]


def test_documents_of_one_row_do_not_see_each_other():
    documents = [Document(np.array([1, 2, 3, 4, 5]), np.ones(5, bool), np.zeros(5, bool)) for _ in range(2)]
    (packed,), _ = pack_documents(documents, 8, 0, last=True)
    assert packed.doc_lengths == (4, 4)
    assert sequence_weights(packed, WEIGHTS).tolist() == [1] * 8
    (padded,), _ = pack_documents(documents[:1], 8, 0, last=True)
    assert padded.loss_mask.tolist() == [True] * 4 + [False] * 4
    assert step_weights([padded], WEIGHTS)[0][:4].tolist() == [1] * 4


def test_weights_of_a_step_average_one_over_its_loss_tokens():
    rows = [
        sequence([1, 2, 3, 4, 9, 1, 2, 3, 4], loss=[False, True] * 4),
        sequence([5, 5, 5, 5, 5, 6, 7, 8, 9]),
    ]
    raw, found = [sequence_weights(row, WEIGHTS) for row in rows], step_weights(rows, WEIGHTS)
    masks = [row.loss_mask for row in rows]
    assert np.concatenate(found)[np.concatenate(masks)].mean() == pytest.approx(1, rel=1e-6)
    ratio = np.concatenate(found) / np.concatenate(raw)
    assert ratio == pytest.approx(np.full(16, ratio[0]))


def test_a_step_without_loss_tokens_keeps_finite_weights():
    (found,) = step_weights([sequence([1, 1, 1], loss=[False, False])], WEIGHTS)
    assert found.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"copied": 1}, "both 1"),
        ({"copied": 0}, "copied"),
        ({"copied": 1000}, "copied"),
        ({"rare": 3}, "rare"),
    ],
)
def test_wrong_weights_are_refused(stage, value, message):
    with pytest.raises(ConfigError, match=message):
        parse(stage("kd", "kd", token_weights=value), Stage, "recipe")


def weighted_batches(small_recipe, stage, tokenizer, objective, **changes):
    recipe = small_recipe(
        "unused", stages=[stage("s", objective, batch_size=4, token_weights=WEIGHTS.model_dump(), **changes)]
    )
    return recipe.stages[0], next(stage_data(recipe, tokenizer))


def test_processes_and_micro_batches_share_the_weights_of_the_step(small_recipe, stage, tokenizer):
    chosen, whole = weighted_batches(small_recipe, stage, tokenizer, "kd")
    recipe = small_recipe("unused", stages=[chosen.model_copy(update={"micro_batch_size": 1})])
    rows = whole.micro_batches[0].loss_weights
    assert rows.mean().item() == pytest.approx(1, rel=1e-6)
    assert rows.unique().numel() == 3
    for rank in range(2):
        step = next(
            stage_data(
                recipe,
                tokenizer,
                rank=rank,
                world_size=2,
            )
        )
        found = torch.cat([batch.loss_weights for batch in step.micro_batches])
        torch.testing.assert_close(found, rows[rank::2], rtol=0, atol=0)


@pytest.mark.parametrize("changes", [{}, {"packing": "documents"}])
@pytest.mark.parametrize("loss", [{"kl": 1.0}, {"ce": 0.5, "kl": 1.0}, {"kl": 1.0, "top_k": 5}])
def test_output_losses_are_weighted_means(teacher, tokenizer, small_recipe, stage, loss, changes):
    chosen, step = weighted_batches(small_recipe, stage, tokenizer, "kd", loss=loss, **changes)
    state = StudentTrainState("s", build_student(teacher, "gated_deltanet").requires_grad_(True))
    state.begin_stage(chosen)
    batch = step.micro_batches[0]
    with torch.no_grad():
        rows = [batch.select(hidden_states(model, batch)) for model in (state.model, teacher)]
        log_s, log_t = (
            LanguageModelHead.of(model).logits(row).log_softmax(-1)
            for model, row in zip((state.model, teacher), rows, strict=True)
        )
        if "top_k" in loss:
            top = log_t.topk(loss["top_k"]).indices
            log_s, log_t = (each.gather(-1, top).log_softmax(-1) for each in (log_s, log_t))
            ce = torch.zeros(len(log_s))
        else:
            ce = -log_s.gather(-1, batch.select(batch.labels)[:, None])[:, 0]
        each = loss.get("ce", 0) * ce + (log_t.exp() * (log_t - log_s)).sum(-1)
        weights = batch.select(batch.loss_weights)
        expected = (weights * each).sum() / weights.sum()
        plain = each.mean()
    found = TrainStep(teacher, [state], chosen, ProcessGroup("cpu"))(step, 0)["loss"][0]
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    assert abs(found.item() - plain.item()) > 1e-4


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("attention_output", {}),
        ("attention_output", {"alignment_loss": {"squared": False}}),
        ("attention_output", {"alignment_loss": {"normalize_by_teacher": True}}),
        ("hidden_state", {}),
        ("matrix_mixing", {"alignment_loss": {"matrix_norm": "mse"}}),
    ],
)
def test_layer_losses_follow_the_weights(teacher, tokenizer, small_recipe, stage, objective, options):
    """Losses are linear in the weights, but for a common divisor, and weights of 1 change nothing."""
    if objective == "matrix_mixing":
        teacher.set_attn_implementation("eager")
    chosen, step = weighted_batches(small_recipe, stage, tokenizer, objective, **options)
    batch = step.micro_batches[0]

    def losses(weights: torch.Tensor) -> torch.Tensor:
        state = StudentTrainState("s", build_student(teacher, "gla").requires_grad_(True))
        state.begin_stage(chosen)
        changed = type(batch)(batch.input_ids, batch.labels, loss_weights=weights)
        one = GlobalBatch([changed], batch.labels.numel(), batch.labels.numel(), {})
        return TrainStep(teacher, [state], chosen, ProcessGroup("cpu"))(one, 0)["loss"][0]

    first, second = torch.zeros_like(batch.loss_weights), torch.zeros_like(batch.loss_weights)
    first[:, :20], second[:, 20:] = 1, 1
    both = losses(batch.loss_weights)
    assert torch.isfinite(both)
    assert both.item() != pytest.approx(losses(torch.ones_like(first)).item(), rel=1e-4)
    if not options.get("alignment_loss", {}).get("normalize_by_teacher"):
        halves = losses(3 * first) + losses(second)
        assert losses(3 * first + second).item() == pytest.approx(halves.item(), rel=1e-3)
    assert losses(torch.ones_like(first)).item() == pytest.approx(
        losses(None).item(),
        rel=1e-6,  # type: ignore[arg-type]
    )


def test_collated_weights_travel_with_the_batch():
    row = sequence([1, 2, 3, 4, 1])
    batch = collate([replace(row, weights=step_weights([row], WEIGHTS)[0])], packed=True)
    copy = batch.clone()
    assert copy.loss_weights.data_ptr() != batch.loss_weights.data_ptr()
    copy.loss_weights.zero_()
    copy.copy_(batch)
    assert copy.loss_weights.tolist() == batch.loss_weights.tolist()
    assert batch.to(torch.device("cpu")).loss_weights is not None
