"""Packing of documents into sequences, collation, loss masks, and repeated spans."""

import numpy as np
import pytest
import torch

from evalsuite.distill.data.examples import Example
from evalsuite.distill.data.loader import collate
from evalsuite.distill.data.packing import (
    Document,
    PackedSequence,
    pack_concat,
    pack_documents,
    repeat_spans,
    tokenize,
)
from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.models import build_student
from evalsuite.models.checkpoints.tokenizers import TextEncoder

END = 0


def document(*tokens: int, loss_mask: list[bool] | None = None) -> Document:
    mask = [True] * len(tokens) if loss_mask is None else loss_mask
    return Document(np.array(tokens, dtype=np.int32), np.array(mask, dtype=bool), np.zeros(len(tokens), bool))


def numbered(count: int) -> Document:
    """Tokens 0 to count − 1, every third of which is in the loss."""
    return document(*range(count), loss_mask=[number % 3 == 0 for number in range(count)])


def test_a_concatenated_stream_keeps_every_token_once():
    documents = [document(1, 2, 3, END), document(4, 5, END), document(6, 7, 8, 9, END)]
    sequences, leftover = pack_concat(documents, 4)
    assert [sequence.input_ids.tolist() for sequence in sequences] == [[1, 2, 3, END], [4, 5, END, 6]]
    assert [sequence.labels.tolist() for sequence in sequences] == [[2, 3, END, 4], [5, END, 6, 7]]
    assert [sequence.doc_lengths for sequence in sequences] == [(4,), (4,)]
    more, _ = pack_concat([*leftover, document(10, END)], 4)
    assert more[0].input_ids.tolist() == [7, 8, 9, END]
    assert more[0].labels.tolist() == [8, 9, END, 10]


def test_documents_are_split_only_if_longer_than_a_sequence():
    long = document(*range(1, 12))
    documents = [document(1, 2, END), long, document(3, 4, 5, END)]
    sequences, leftover = pack_documents(documents, 6, pad_id=99, last=True)
    assert leftover == []
    inputs = sorted(sequence.input_ids.tolist() for sequence in sequences)
    assert inputs == sorted([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 1, 2], [3, 4, 5, 99, 99, 99]])
    last = next(sequence for sequence in sequences if sequence.input_ids[0] == 3)
    assert last.loss_mask.tolist() == [True, True, True, False, False, False]
    assert last.doc_lengths == (3, 3)


def test_documents_of_the_emptiest_sequence_are_left_over():
    sequences, leftover = pack_documents([document(1, 2, 3, END), document(4, END)], 3, pad_id=99, last=False)
    assert [sequence.input_ids.tolist() for sequence in sequences] == [[1, 2, 3]]
    assert [piece.tokens.tolist() for piece in leftover] == [[4, END]]


def test_every_label_follows_its_input_within_a_document():
    generator = np.random.default_rng(0)
    documents = [
        document(*generator.integers(1, 1000, size).tolist(), END) for size in generator.integers(1, 40, 60)
    ]
    follows = {tuple(d.tokens[i : i + 2]) for d in documents for i in range(len(d.tokens) - 1)}
    sequences, _ = pack_documents(documents, 32, pad_id=END, last=True)
    pairs = [
        (sequence.input_ids[i], sequence.labels[i])
        for sequence in sequences
        for i in range(32)
        if sequence.loss_mask[i]
    ]
    assert set(pairs) == follows
    assert len(pairs) == sum(len(d.tokens) - 1 for d in documents)
    assert all(sum(sequence.doc_lengths) == 32 for sequence in sequences)


@pytest.mark.parametrize("mixer", ["gated_deltanet", "softmax", "gla"])
def test_packed_documents_do_not_attend_to_each_other(teacher, mixer):
    """Changing the first of two packed documents must not change the hidden states of the second."""
    student = build_student(teacher, [mixer, "softmax", mixer]).eval()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, 900, (4, 12), generator=generator).numpy().astype(np.int32)
    sequences = [
        PackedSequence(tokens[0], tokens[1], np.ones(12, dtype=bool), (5, 7)),
        PackedSequence(tokens[2], tokens[3], np.ones(12, dtype=bool), (12,)),
    ]
    changed = PackedSequence(
        np.concatenate([tokens[3][:5], tokens[0][5:]]), tokens[1], sequences[0].loss_mask, (5, 7)
    )
    alone = PackedSequence(tokens[0][5:], tokens[1][5:], np.ones(7, dtype=bool), (7,))
    with torch.no_grad():
        for model in (student, teacher):
            hidden = hidden_states(model, collate(sequences, packed=True))
            other = hidden_states(model, collate([changed, sequences[1]], packed=True))
            single = hidden_states(model, collate([alone], packed=True))
            torch.testing.assert_close(hidden[0, 5:], other[0, 5:])
            torch.testing.assert_close(hidden[0, 5:], single[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(hidden[1], other[1])
            assert not torch.allclose(hidden[0, :5], other[0, :5])


def test_collate_returns_boundaries_positions_and_loss_indices():
    mask = np.array([True, False, True, True])
    sequence = PackedSequence(np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32), mask, (3, 1))
    full = PackedSequence(sequence.input_ids, sequence.labels, np.ones(4, dtype=bool), (4,))
    batch = collate([sequence, full], packed=True)
    assert batch.position_ids.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 8]
    assert batch.loss_indices.tolist() == [0, 2, 3, 4, 5, 6, 7]
    dense = collate([full], packed=False)
    assert dense.position_ids is None
    assert dense.cu_seqlens is None
    assert dense.loss_indices is None


def test_a_completion_mask_covers_the_completion_and_its_end_token(tokenizer):
    example = Example((("Question: What pet has Ivan?\nAnswer:", False), (" owl\n", True)))
    (marked,) = tokenize([example], TextEncoder(tokenizer), tokenizer.eos_token_id, mask_prompt=True)
    assert tokenizer.decode(marked.tokens[marked.loss_mask]) == " owl\n<|end|>"
    (whole,) = tokenize([example], TextEncoder(tokenizer), tokenizer.eos_token_id, mask_prompt=False)
    assert whole.loss_mask.all()
    assert whole.tokens.tolist() == marked.tokens.tolist()


def test_chunks_are_repeated_at_varying_lags():
    tokens = np.arange(1000, dtype=np.int32)
    found = repeat_spans(numbered(1000), 64)
    assert len(found.tokens) == 2000
    assert np.array_equal(found.loss_mask, found.tokens % 3 == 0)
    first, second = np.argsort(found.tokens, kind="stable").reshape(-1, 2).T
    lags = second - first
    assert lags.max() <= 64
    assert len(set(lags.tolist())) > 8
    assert np.array_equal(tokens, found.tokens[np.sort(first)])
    assert np.array_equal(np.flatnonzero(found.second_copy), np.sort(second))
    assert len(repeat_spans(numbered(0), 64).tokens) == len(repeat_spans(numbered(0), 64).second_copy) == 0


def test_the_second_copy_consists_of_shuffled_spans():
    plain = repeat_spans(numbered(1000), 200)
    found = repeat_spans(numbered(1000), 200, 16)
    assert np.array_equal(found.loss_mask, found.tokens % 3 == 0)
    assert np.array_equal(np.sort(found.tokens), np.sort(plain.tokens))
    again = found.tokens[np.sort(np.argsort(found.tokens, kind="stable").reshape(-1, 2)[:, 1])]
    boundaries = np.flatnonzero(np.diff(again) != 1)
    # 1,000 tokens in spans of 4 to 16, few of which keep their position.
    assert 60 <= len(boundaries) <= 250
    assert (np.diff(boundaries) <= 16 * 2).mean() > 0.9


@pytest.mark.parametrize("spans", [None, 4])
@pytest.mark.parametrize("packing", ["concat", "documents"])
def test_sequences_count_inputs_of_second_copies(packing, spans):
    """Documents that share no token: what an input repeats of all inputs so far is a second copy."""
    first, second = numbered(300), numbered(25)
    second = Document(second.tokens + 300, second.loss_mask, second.second_copy)
    repeated = [repeat_spans(each, 16, spans) for each in (first, second)]
    if packing == "concat":
        sequences, (leftover,) = pack_concat(repeated, 64)
        more, _ = pack_concat([leftover, document(*range(400, 500))], 64)
        sequences += more
    else:
        sequences, _ = pack_documents(repeated, 64, pad_id=1000, last=True)
    inputs = np.concatenate([sequence.input_ids for sequence in sequences])
    inputs = inputs[inputs != 1000]
    assert len(inputs) > 600
    assert sum(sequence.num_second_copy for sequence in sequences) == len(inputs) - len(np.unique(inputs))
