"""Attention within rows of packed sequences equals attention over the full packed sequence."""

import pytest
import torch

from evalsuite.models import build_student
from evalsuite.models.decoder import block
from evalsuite.models.decoder.packing import packed_mask
from evalsuite.models.mixers import AttentionSpan


def test_row_length_does_not_change_the_result(make_teacher):
    student = build_student(
        make_teacher(layers=3),
        ["softmax", "sliding_window", "gla"],
        options={"sliding_window": {"window": 3}},
    ).double()
    tokens = torch.randint(0, 64, (1, 24), generator=torch.Generator().manual_seed(0))
    bounds = torch.tensor([0, 5, 8, 16, 17, 24], dtype=torch.int32)
    found = []
    for row_length in (None, 8):
        student.zero_grad()
        hidden = student.model(input_ids=tokens, cu_seqlens=bounds, row_length=row_length).last_hidden_state
        hidden.square().sum().backward()
        gradients = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
        found.append((hidden, gradients))
    (long, long_gradients), (short, short_gradients) = found
    torch.testing.assert_close(short, long)
    assert long_gradients.keys() == short_gradients.keys()
    for name, gradient in long_gradients.items():
        torch.testing.assert_close(short_gradients[name], gradient)


def test_the_mask_by_rows_is_the_block_diagonal_of_the_full_mask():
    bounds = torch.tensor([0, 3, 4, 8, 12], dtype=torch.int32)
    embeddings = torch.zeros(1, 12, 2)
    for span in (AttentionSpan(), AttentionSpan(2)):
        whole = packed_mask(bounds, embeddings, span)[0, 0]
        rows = packed_mask(bounds, embeddings, span, 4)[:, 0]
        assert rows.shape == (3, 4, 4)
        assert torch.equal(torch.block_diag(*rows), whole)


@torch.no_grad()
def test_packed_sequences_stay_apart_in_eager_attention(make_teacher) -> None:
    student = build_student(make_teacher(), ["softmax", "sliding_window"]).double()
    student.set_attn_implementation("eager")
    row = torch.arange(14)[None]
    packed = student(row, cu_seqlens=torch.tensor([0, 5, 14])).logits
    torch.testing.assert_close(packed[:, 5:], student(row[:, 5:]).logits)


@torch.no_grad()
def test_whole_rows_need_no_mask(make_teacher, monkeypatch) -> None:
    # transformers makes one while a CUDA graph is captured.
    student = build_student(
        make_teacher(), ["softmax", "sliding_window"], options={"sliding_window": {"window": 8}}
    )
    row = torch.arange(8)[None]
    expected = student(row).logits

    def fail(**_: object) -> None:
        raise AssertionError("made a mask")

    for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
        monkeypatch.setattr(block, name, fail)
    assert torch.equal(student(row).logits, expected)
    for arguments in ({"input_ids": torch.arange(9)[None]}, {"input_ids": row, "attention_mask": row > 0}):
        with pytest.raises(AssertionError, match="made a mask"):
            student(**arguments)
