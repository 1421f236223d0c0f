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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from evalsuite.foundation.strict import Strict

if TYPE_CHECKING:
    from evalsuite.distill.data.packing import PackedSequence


class TokenWeights(Strict):
    """Weights of loss tokens by class, relative to tokens that are new to the text."""

    copied: float = Field(default=1.0, gt=0, le=100)
    """Weight of tokens that complete four tokens which stand earlier in the same order."""
    repeated: float = Field(default=1.0, gt=0, le=100)
    """Weight of other tokens that stand earlier."""

    @model_validator(mode="after")
    def _differ(self) -> "TokenWeights":
        if self.copied == self.repeated == 1:
            raise ValueError("'copied' and 'repeated' are both 1, the weight of all other tokens")
        return self

    def of(self, sequence: "PackedSequence") -> NDArray[np.float32]:
        """Weights [length] of the labels of a sequence, before their division by the mean."""
        # Recipes are read without torch, which the package of models imports.
        from evalsuite.models.diagnostics.token_classes import NGRAM, previous_places

        weights = np.ones(len(sequence.labels), dtype=np.float32)
        boundaries = np.cumsum([0, *sequence.doc_lengths])
        for start, end in pairwise(boundaries):
            text = np.append(sequence.input_ids[start], sequence.labels[start:end])
            weights[start:end][previous_places(text, 1)[1:] >= 0] = self.repeated
            weights[start:end][previous_places(text, NGRAM)[1:] >= 0] = self.copied
        return weights

    def of_step(self, sequences: Sequence["PackedSequence"]) -> list[NDArray[np.float32]]:
        """Weights of the labels of each sequence of one optimizer step, of mean 1 over its loss tokens."""
        weights = [self.of(sequence) for sequence in sequences]
        in_loss = [sequence.loss_mask for sequence in sequences]
        tokens = sum(int(mask.sum()) for mask in in_loss)
        total = sum(float(each[mask].sum()) for each, mask in zip(weights, in_loss, strict=True))
        return [each * np.float32(tokens / total) for each in weights] if tokens else weights
