import numpy as np
import pytest
import torch

from evalsuite.distill.batches import collate
from evalsuite.distill.end_to_end import decode
from evalsuite.distill.packing import Document, Row, echoed, pack_documents, pack_stream, tokenize
from evalsuite.distill.readers import Example
from evalsuite.models import build_student

END = 0


def document(*tokens: int, counts: list[bool] | None = None) -> Document:
    marks = [True] * len(tokens) if counts is None else counts
    return Document(np.array(tokens, dtype=np.int32), np.array(marks, dtype=bool))


def test_a_stream_loses_no_token_and_repeats_none():
    documents = [document(1, 2, 3, END), document(4, 5, END), document(6, 7, 8, 9, END)]
    rows, left = pack_stream(documents, 4)
    assert [row.inputs.tolist() for row in rows] == [[1, 2, 3, END], [4, 5, END, 6]]
    assert [row.labels.tolist() for row in rows] == [[2, 3, END, 4], [5, END, 6, 7]]
    assert [row.lengths for row in rows] == [(4,), (4,)]
    more, _ = pack_stream([*left, document(10, END)], 4)
    assert more[0].inputs.tolist() == [7, 8, 9, END]
    assert more[0].labels.tolist() == [8, 9, END, 10]


def test_documents_are_packed_whole_and_cut_only_when_longer_than_a_row():
    long = document(*range(1, 12))
    documents = [document(1, 2, END), long, document(3, 4, 5, END)]
    rows, kept = pack_documents(documents, 6, pad=99, last=True)
    assert kept == []
    inputs = sorted(row.inputs.tolist() for row in rows)
    assert inputs == sorted([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 1, 2], [3, 4, 5, 99, 99, 99]])
    last = next(row for row in rows if row.inputs[0] == 3)
    assert last.counts.tolist() == [True, True, True, False, False, False]
    assert last.lengths == (3, 3)


def test_the_emptiest_row_waits_for_more_documents():
    rows, kept = pack_documents([document(1, 2, 3, END), document(4, END)], 3, pad=99, last=False)
    assert [row.inputs.tolist() for row in rows] == [[1, 2, 3]]
    assert [piece.tokens.tolist() for piece in kept] == [[4, END]]


def test_every_label_follows_its_input_within_a_document():
    generator = np.random.default_rng(0)
    documents = [
        document(*generator.integers(1, 1000, size).tolist(), END) for size in generator.integers(1, 40, 60)
    ]
    follows = {tuple(d.tokens[i : i + 2]) for d in documents for i in range(len(d.tokens) - 1)}
    rows, _ = pack_documents(documents, 32, pad=END, last=True)
    pairs = [(row.inputs[i], row.labels[i]) for row in rows for i in range(32) if row.counts[i]]
    assert set(pairs) == follows
    assert len(pairs) == sum(len(d.tokens) - 1 for d in documents)
    assert all(sum(row.lengths) == 32 for row in rows)


@pytest.mark.parametrize("mixer", ["gated_deltanet", "softmax", "gla"])
def test_packed_documents_cannot_see_each_other(teacher, mixer):
    """Two documents in one row: changing the first must not move the second's hidden states."""
    student = build_student(teacher, [mixer, "softmax", mixer]).eval()
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, 900, (4, 12), generator=generator).numpy().astype(np.int32)
    rows = [
        Row(tokens[0], tokens[1], np.ones(12, dtype=bool), (5, 7)),
        Row(tokens[2], tokens[3], np.ones(12, dtype=bool), (12,)),
    ]
    changed = Row(np.concatenate([tokens[3][:5], tokens[0][5:]]), tokens[1], rows[0].counts, (5, 7))
    alone = Row(tokens[0][5:], tokens[1][5:], np.ones(7, dtype=bool), (7,))
    with torch.no_grad():
        for model in (student, teacher):
            hidden = decode(model, collate(rows, packed=True))
            other = decode(model, collate([changed, rows[1]], packed=True))
            single = decode(model, collate([alone], packed=True))
            torch.testing.assert_close(hidden[0, 5:], other[0, 5:])
            torch.testing.assert_close(hidden[0, 5:], single[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(hidden[1], other[1])
            assert not torch.allclose(hidden[0, :5], other[0, :5])


def test_collate_marks_borders_positions_and_what_counts():
    counts = np.array([True, False, True, True])
    row = Row(np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32), counts, (3, 1))
    full = Row(row.inputs, row.labels, np.ones(4, dtype=bool), (4,))
    batch = collate([row, full], packed=True)
    assert batch.positions.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 8]
    assert batch.kept.tolist() == [0, 2, 3, 4, 5, 6, 7]
    plain = collate([full], packed=False)
    assert plain.positions is None
    assert plain.cu_seqlens is None
    assert plain.kept is None


def test_a_completion_mask_keeps_the_answer_and_its_end(tokenizer):
    example = Example((("Question: What pet has Ivan?\nAnswer:", False), (" owl\n", True)))
    (marked,) = tokenize([example], tokenizer.backend_tokenizer, tokenizer.eos_token_id, completions=True)
    assert tokenizer.decode(marked.tokens[marked.counts]) == " owl\n<|end|>"
    (whole,) = tokenize([example], tokenizer.backend_tokenizer, tokenizer.eos_token_id, completions=False)
    assert whole.counts.all()
    assert whole.tokens.tolist() == marked.tokens.tolist()


def test_an_echo_says_every_piece_twice_at_changing_distances():
    tokens = np.arange(1000, dtype=np.int32)
    found = echoed(Document(tokens, tokens % 3 == 0), 64)
    assert len(found.tokens) == 2000
    assert np.array_equal(found.counts, found.tokens % 3 == 0)
    first, second = np.argsort(found.tokens, kind="stable").reshape(-1, 2).T
    lags = second - first
    assert lags.max() <= 64
    assert len(set(lags.tolist())) > 8
    assert np.array_equal(tokens, found.tokens[np.sort(first)])
    assert len(echoed(Document(tokens[:0], tokens[:0] > 0), 64).tokens) == 0


def test_an_echo_in_spans_says_the_same_again_in_another_order():
    tokens = np.arange(1000, dtype=np.int32)
    plain = echoed(Document(tokens, tokens % 3 == 0), 200)
    found = echoed(Document(tokens, tokens % 3 == 0), 200, 16)
    assert np.array_equal(found.counts, found.tokens % 3 == 0)
    assert np.array_equal(np.sort(found.tokens), np.sort(plain.tokens))
    again = found.tokens[np.sort(np.argsort(found.tokens, kind="stable").reshape(-1, 2)[:, 1])]
    borders = np.flatnonzero(np.diff(again) != 1)
    # 1,000 tokens in spans of 4 to 16, of which few stand where they stood.
    assert 60 <= len(borders) <= 250
    assert (np.diff(borders) <= 16 * 2).mean() > 0.9
