"""Weights of tokens in a loss by what predicting them takes: looking back, or knowing the language.

    loss = Σ_t c_t ℓ_t / Σ_t c_t

over the loss tokens t of an optimizer step, ℓ_t the loss of one of them (KL and cross-entropy, or a layer's
distance where t is predicted), c_t the weight of its class. A step's weights are divided by their mean, so
that they average 1: the scale of the loss, and with it the learning rate, stays.

The classes are `copied` and `repeated` of `evalsuite.models.diagnostics.token_classes`; all other tokens have
the weight 1. Earlier text is what the model has read: the sequence, or the document where documents are
packed.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evalsuite.distill.data.packing import PackedSequence
from evalsuite.distill.recipe.config import TokenWeights
from evalsuite.models.diagnostics.token_classes import NGRAM, previous_places


def sequence_weights(sequence: PackedSequence, weights: TokenWeights) -> NDArray[np.float32]:
    """Weights [length] of the labels of a sequence, before their division by the mean."""
    found = np.ones(len(sequence.labels), dtype=np.float32)
    boundaries = np.cumsum([0, *sequence.doc_lengths])
    for start, end in pairwise(boundaries):
        text = np.append(sequence.input_ids[start], sequence.labels[start:end])
        found[start:end][previous_places(text, 1)[1:] >= 0] = weights.repeated
        found[start:end][previous_places(text, NGRAM)[1:] >= 0] = weights.copied
    return found


def step_weights(sequences: Sequence[PackedSequence], weights: TokenWeights) -> list[NDArray[np.float32]]:
    """Weights of the labels of each sequence of one optimizer step, of mean 1 over its loss tokens."""
    found = [sequence_weights(sequence, weights) for sequence in sequences]
    in_loss = [sequence.loss_mask for sequence in sequences]
    tokens = sum(int(mask.sum()) for mask in in_loss)
    total = sum(float(each[mask].sum()) for each, mask in zip(found, in_loss, strict=True))
    return [each * np.float32(tokens / total) for each in found] if tokens else found
