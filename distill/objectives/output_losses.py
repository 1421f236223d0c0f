"""Losses of a stage on the last hidden states of teacher and students."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evalsuite.distill.objectives.cuda_streams import SideStreams
from evalsuite.distill.objectives.forward import hidden_states, read_out
from evalsuite.distill.objectives.kl_and_cross_entropy import LossTokens, compute_dtype, head_logits
from evalsuite.distill.objectives.top_tokens import TopTokens
from evalsuite.distill.types import CausalLM, MicroBatch, Rollouts
from evalsuite.models.decoder.head import LanguageModelHead

TEACHER_STREAM = 0


class OutputLosses:
    """`StepLosses` of an end-to-end stage: every student runs once, the teacher at most once for all.

    During CUDA graph capture the teacher has a stream, and so have `concurrent` students.

    Args:
        loss_columns, columns: see `EndToEndStage`.
        teacher: None if the loss does not depend on it.
        shares_logits: compute the teacher's logits of all tokens once for several students.
    """

    def __init__(
        self,
        loss_columns: Callable[[LossTokens], Sequence[Tensor]],
        columns: Sequence[str],
        teacher: CausalLM | None,
        students: Sequence[CausalLM],
        concurrent: int,
        device: torch.device,
        *,
        shares_logits: bool = False,
    ) -> None:
        self._loss_columns, self._concurrent = loss_columns, concurrent
        self._shares_logits = shares_logits
        self._teacher, self._students = teacher, students
        self._losses = torch.zeros(len(students), len(columns), device=device)

    def zero(self) -> None:
        """Begin a step."""
        self._losses.zero_()

    def backward(self, batch: MicroBatch, num_loss_tokens: int) -> None:
        """A loss token has its weight over `num_loss_tokens`."""
        self._losses += self._run(batch, num_loss_tokens, self._students)

    def _run(self, batch: MicroBatch, num_loss_tokens: float, students: Sequence[CausalLM]) -> Tensor:
        """Add gradients of these students; return their losses [students, columns]."""
        teacher_hidden = teacher_head = teacher_logits = None
        streams = SideStreams(1 + self._concurrent, batch.input_ids.device)
        if self._teacher is not None:
            with torch.no_grad(), streams.fork(TEACHER_STREAM):
                teacher_hidden = batch.select(hidden_states(self._teacher, batch))
                teacher_head = LanguageModelHead.of(self._teacher)
                if self._shares_logits and len(students) > 1:
                    dtype = compute_dtype(teacher_hidden, teacher_head.weight)
                    with torch.autocast(teacher_hidden.device.type, enabled=False):
                        weight = teacher_head.weight.to(dtype)
                        teacher_logits = head_logits(teacher_hidden.to(dtype), weight, teacher_head)
        labels = batch.select(batch.labels)
        if batch.loss_weights is None:
            weights = torch.full(labels.shape, 1 / num_loss_tokens, device=labels.device)
        else:
            weights = batch.select(batch.loss_weights) / num_loss_tokens
        top = None
        if batch.top_ids is not None and batch.top_log_probs is not None:
            top = TopTokens(batch.top_ids, batch.top_log_probs)

        def loss(hidden: Tensor, head: LanguageModelHead) -> Sequence[Tensor]:
            selected = batch.select(hidden)
            streams.wait(TEACHER_STREAM)
            tokens = LossTokens(
                selected, head, labels, weights, teacher_hidden, teacher_head, top, teacher_logits
            )
            return self._loss_columns(tokens)

        rows = []
        for number, student in enumerate(students):
            with streams.fork(1 + number % self._concurrent):
                columns = read_out(student, batch, loss)
                columns[0].backward()
                rows.append(torch.stack([column.detach() for column in columns]))
        streams.join()
        return torch.stack(rows)

    def reduce(self, all_reduce: Callable[[Tensor], None]) -> tuple[Tensor, None]:
        """Gradients are final."""
        return self._losses.clone(), None


class OnPolicyLosses(OutputLosses):
    """`RolloutLosses` of a stage: (1 − share) · divergence a token of the data + share · that of rollouts.

    What a student wrote is read by it once more, and by the teacher (GKD, arXiv 2306.13649): gradients flow
    through these forward passes, and not through the choice of tokens, so that they are no policy gradients.

    Args:
        loss_columns: loss and divergence.
        share: weight of the rollouts, 0 to 1.
        arguments: those of `OutputLosses`.
    """

    def __init__(
        self,
        loss_columns: Callable[[LossTokens], Sequence[Tensor]],
        share: float,
        *arguments: Any,
        shares_logits: bool,
    ) -> None:
        super().__init__(loss_columns, *arguments, shares_logits=shares_logits)
        self._share = share

    def backward(self, batch: MicroBatch, num_loss_tokens: int) -> None:
        """A loss token has its weight over `num_loss_tokens`, those of the data."""
        found = self._run(batch, num_loss_tokens / (1 - self._share), self._students)
        self._losses[:, 0] += found[:, 0]
        self._losses[:, 1] += found[:, 1] / (1 - self._share)

    def backward_rollouts(self, rollouts: Sequence[Rollouts]) -> None:
        """Each student runs on its own, and the teacher on those of all students."""
        for row, student, written in zip(self._losses, self._students, rollouts, strict=True):
            for batch in written.micro_batches:
                weighted = written.num_tokens / self._share
                (found,) = self._run(batch.to(row.device), weighted, [student])
                row[0] += found[0]
                row[2] += found[1] / self._share
            row[3] = written.num_tokens / max(1, written.count)
            row[4] = 1 - written.truncated / max(1, written.count)
            row[5] = written.truncated
