"""Layerwise objectives: every student layer is trained on the teacher's own activations."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from evalsuite.distill.recipe.stage import OBJECTIVES, Stage
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import Strict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evalsuite.distill.types import CausalLM, MicroBatch, StepLosses
    from evalsuite.models.decoder.block import Block, LayerActivations
    from evalsuite.models.decoder.cost import ModelCost

MATRIX_COPIES = 8
"""fp32 matrices [B, H, T, T] of one layer in matrix mixing: the teacher's scores and probabilities, and the
student's scores, decays, products, differences and gradients."""


class LayerwiseStage(Stage):
    """A stage that compares layers of teacher and student on the same input.

    The loss is the mean over the replaced layers (arXiv 2504.14366 Eq. 2 and 4) of the distance per token.
    """

    is_layerwise: ClassVar[bool] = True
    default_trainable: ClassVar[str] = "mixer"

    @property
    def target_norm(self) -> "Callable[[Tensor], Tensor] | None":
        """The distance from a target of a layer that outputs 0, summed over the loss tokens, if distances are
        divided by it; None: by the number of tokens."""
        return None

    @abstractmethod
    def target(self, activations: "LayerActivations", batch: "MicroBatch") -> "Tensor":
        """What the students' layers are compared with."""

    @abstractmethod
    def distance(
        self, layer: "Block", activations: "LayerActivations", target: "Tensor", batch: "MicroBatch"
    ) -> "Tensor":
        """Distance of a student's layer from the target, summed over the loss tokens; differentiable."""

    @abstractmethod
    def layer_flops(self, student: "ModelCost", layer: int) -> float:
        """FLOPs per token of forward and backward pass of one replaced layer."""

    def flops_per_token(self, teacher: "ModelCost | None", students: "Sequence[ModelCost]") -> float:
        assert teacher is not None
        layers = sum(self.layer_flops(student, layer) for student in students for layer in student.replaced)
        return teacher.forward_flops(self.seq_len, head=False) + layers

    def activation_bytes(self, student: "ModelCost", width: int) -> float:
        """One layer at a time, without logits: what its backward pass needs, and as much of the mixer again
        for gradients, which in other stages are those of one layer in many."""
        layers = zip(student.layer_activations, student.mixer_activations, strict=True)
        return width * self.micro_batch_tokens * max(layer + mixer for layer, mixer in layers)

    def start(
        self, teacher: "CausalLM | None", students: "Sequence[CausalLM]", device: "torch.device"
    ) -> "StepLosses":
        from evalsuite.distill.objectives.layer_losses import LayerLosses

        assert teacher is not None
        return LayerLosses(self.target, self.distance, self.target_norm, teacher, students, device)

    @property
    def trainable_sets(self) -> tuple[str, ...]:
        """Sets of parameters that this stage can train."""
        return ("mixer", "mixer_qk")

    @model_validator(mode="after")
    def _trains_layers(self) -> "LayerwiseStage":
        if self.trainable_set not in self.trainable_sets:
            raise ValueError(
                f"{self.objective} trains {'mixers' if len(self.trainable_sets) == 2 else 'blocks'} only: "
                f"'trainable' must be {' or '.join(self.trainable_sets)}"
            )
        return self


class HiddenDistanceConfig(Strict):
    """How hidden states of teacher and student are compared."""

    squared: bool | None = None
    """Squared L2 norm (default of attention_output) or L2 norm (default of hidden_state)."""
    target: Literal["mixer", "block"] | None = None
    """Compare mixer outputs (default of attention_output) or block outputs (default of hidden_state)."""
    normalize_by_teacher: bool = False
    """Divide by the teacher's mean square, so that all layers have the same weight."""


class HiddenDistanceStage(LayerwiseStage):
    """A stage that compares hidden states after mixers or blocks."""

    splits_sequences: ClassVar[bool] = True
    default_squared: ClassVar[bool]
    default_target: ClassVar[Literal["mixer", "block"]]

    alignment_loss: HiddenDistanceConfig = HiddenDistanceConfig()

    @property
    def target_norm(self) -> "Callable[[Tensor], Tensor] | None":
        """Sum of the (squared) L2 norms, if it is to normalize."""
        if not self.alignment_loss.normalize_by_teacher:
            return None
        from evalsuite.distill.objectives.layer_losses import l2_norm

        return partial(l2_norm, squared=self.squared)

    @property
    def squared(self) -> bool:
        """Whether distances are squared."""
        squared = self.alignment_loss.squared
        return self.default_squared if squared is None else squared

    @property
    def compares_blocks(self) -> bool:
        """Whether outputs of blocks are compared, instead of those of mixers."""
        return (self.alignment_loss.target or self.default_target) == "block"

    @property
    def trainable_sets(self) -> tuple[str, ...]:
        """Whole blocks, too, if these are compared."""
        return (*super().trainable_sets, *(("block",) if self.compares_blocks else ()))

    def target(self, activations: "LayerActivations", batch: "MicroBatch") -> "Tensor":
        """The teacher's hidden states [N, D]."""
        states = activations.block_output if self.compares_blocks else activations.output
        return batch.weigh(states, squared=self.squared)

    def distance(
        self, layer: "Block", activations: "LayerActivations", target: "Tensor", batch: "MicroBatch"
    ) -> "Tensor":
        """Sum of the (squared) L2 distances."""
        from evalsuite.distill.objectives.layer_losses import l2_distance

        if self.compares_blocks:
            # The block's own norm before the mixer has gradients if whole blocks train.
            normed = None if self.trainable_set == "block" else activations.input
            output = layer(activations.block_input, activations.context, normed=normed)
        else:
            output, _ = layer.mix(activations.input, activations.context)
        return l2_distance(batch.weigh(output, squared=self.squared), target, squared=self.squared)

    def layer_flops(self, student: "ModelCost", layer: int) -> float:
        mixer = 3 * student.mixer_flops(layer, self.seq_len)
        if not self.compares_blocks:
            return mixer
        # A frozen MLP after the mixer costs a forward pass and the gradient w.r.t. its input.
        return mixer + (3 if self.trainable_set == "block" else 2) * student.mlp_flops(layer)


@OBJECTIVES.register("attention_output")
class AttentionOutput(HiddenDistanceStage):
    """Outputs of the mixers (arXiv 2504.14366 Eq. 1)."""

    default_squared: ClassVar[bool] = True
    default_target: ClassVar[Literal["mixer", "block"]] = "mixer"

    objective: Literal["attention_output"]


@OBJECTIVES.register("hidden_state")
class HiddenState(HiddenDistanceStage):
    """Outputs of the blocks (arXiv 2504.14366 Eq. 3)."""

    default_squared: ClassVar[bool] = False
    default_target: ClassVar[Literal["mixer", "block"]] = "block"

    objective: Literal["hidden_state"]


class MatrixDistanceConfig(Strict):
    """How matrices of token mixing are compared."""

    matrix_norm: Literal["frobenius", "mse"] = "frobenius"
    """Frobenius norm, or mean square of the causal half."""


@OBJECTIVES.register("matrix_mixing")
class MatrixMixing(LayerwiseStage):
    """Attention matrices of whole sequences ("Empirical Evaluation of Knowledge Distillation from
    Transformers to Subquadratic Language Models", Eq. 7 and Appendix B)."""

    teacher_attention: ClassVar[Literal["sdpa", "eager"]] = "eager"

    objective: Literal["matrix_mixing"]
    alignment_loss: MatrixDistanceConfig = MatrixDistanceConfig()

    def target(self, activations: "LayerActivations", batch: "MicroBatch") -> "Tensor":
        """The teacher's attention matrix [B, H, T, T].

        Raises:
            ConfigError: the teacher is a student itself, and this layer is no softmax attention.
        """
        if activations.attention is None:
            raise ConfigError(
                f"stage '{self.name}': objective matrix_mixing needs attention matrices, which a layer of "
                "the teacher does not have, since it is a student itself; use attention_output"
            )
        return activations.attention

    def distance(
        self, layer: "Block", activations: "LayerActivations", target: "Tensor", batch: "MicroBatch"
    ) -> "Tensor":
        """Distance of the matrices, as often as the batch has tokens.

        The row of a query is multiplied by the square root of its token's weight, if tokens have weights.
        The means over heads are compared if the student has another number of heads, for which the paper
        states no rule.
        """
        from evalsuite.distill.objectives.layer_losses import matrix_mixing

        positions = layer.position_embeddings(activations.context)
        matrix, _ = layer.self_attn.attention_matrix(activations.input, positions)
        if matrix.shape[1] != target.shape[1]:
            matrix, target = matrix.mean(1, keepdim=True), target.mean(1, keepdim=True)
        if batch.loss_weights is not None:
            rows = batch.loss_weights.sqrt()[:, None, :, None].to(matrix.dtype)
            matrix, target = matrix * rows, target * rows
        mean = matrix_mixing(matrix, target, norm=self.alignment_loss.matrix_norm)
        return mean * batch.input_ids.numel()

    def layer_flops(self, student: "ModelCost", layer: int) -> float:
        return 3 * (student.mixer_matrix_flops(layer) + 2 * self.seq_len * student.inner_size)

    def activation_bytes(self, student: "ModelCost", width: int) -> float:
        """Includes matrices of the squared sequence length."""
        matrices = (
            4 * MATRIX_COPIES * student.config.num_attention_heads * self.micro_batch_tokens * self.seq_len
        )
        return super().activation_bytes(student, width) + matrices

    def check_students(self, students: "Mapping[str, CausalLM]") -> None:
        """Every replaced layer needs an attention matrix."""
        from evalsuite.distill.types import softmax_layer_indices
        from evalsuite.models.mixers import Mixer

        for label, student in students.items():
            for number in set(range(len(student.model.layers))) - softmax_layer_indices(student):
                kind: Any = type(student.model.layers[number].self_attn)
                if kind.attention_matrix is Mixer.attention_matrix:
                    raise ConfigError(
                        f"stage '{self.name}': objective matrix_mixing needs attention matrices, which layer "
                        f"{number} ({student.config.mixers[number]}) of student '{label}' does not have; use "
                        "attention_output"
                    )

    @model_validator(mode="after")
    def _whole_sequences(self) -> "MatrixMixing":
        for field, supported in (("packing", "concat"), ("loss_mask", "full")):
            if getattr(self, field) != supported:
                raise ValueError(
                    f"matrix_mixing compares whole sequences: '{field}' must be {supported}, not "
                    f"{getattr(self, field)}; attention_output supports both"
                )
        return self
