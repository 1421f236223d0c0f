"""The language-model head: a product with its weight, scaled or capped in some families."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evalsuite.models.ops.numerics import soft_capped


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModelHead:
    """cap · tanh(scale · (W h + b) / cap), with W [V, D] and b those of `linear`."""

    linear: Any
    scale: float = 1.0
    """Cohere multiplies logits, Granite divides them."""
    soft_cap: float | None = None

    @classmethod
    def of(cls, model: Any) -> "LanguageModelHead":
        """The head of a causal language model of transformers, or of ours."""
        config = model.config.get_text_config()
        scale = (getattr(config, "logit_scale", None) or 1.0) / (
            getattr(config, "logits_scaling", None) or 1.0
        )
        return cls(model.get_output_embeddings(), scale, getattr(config, "final_logit_softcapping", None))

    @property
    def weight(self) -> Tensor:
        """W."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """b; None: the head has none."""
        found: Tensor | None = getattr(self.linear, "bias", None)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., D]."""
        return self.transform(self.linear(hidden))

    def slope(self, logits: Tensor) -> Tensor | float | None:
        """Derivative of the logits [..., V] with respect to the products with the weight; None: 1."""
        if self.soft_cap is None:
            return None if self.scale == 1.0 else self.scale
        return self.scale * (1 - (logits / self.soft_cap).square())

    def transform(self, logits: Tensor) -> Tensor:
        """Logits [..., V] of the products with the weight."""
        return soft_capped(logits if self.scale == 1.0 else logits * self.scale, self.soft_cap)
