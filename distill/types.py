"""The interface that training expects of a model."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn


class CausalLM(Protocol):
    """A Hugging Face causal language model, teacher or student.

    `model` is the decoder with its `layers`. A student's config also has `mixers`, one name per layer.
    """

    config: Any
    model: Any

    def modules(self) -> Iterator[nn.Module]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...

    def get_input_embeddings(self) -> nn.Module: ...

    def get_output_embeddings(self) -> nn.Linear: ...

    def set_attn_implementation(self, attn_implementation: str) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def save_pretrained(self, save_directory: str, *, state_dict: dict[str, Tensor]) -> None: ...
