"""What students write themselves in a stage of objective `on_policy`, as training sequences.

Each student continues the prompts in the in-process engine, with a copy of its weights: engines rearrange a
model for inference. Draws depend on the recipe's seed, the stage, the step and the prompt's number, so that a
run that resumes writes the same; rollouts of several steps are part of the training state.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from evalsuite.distill.data.loader import collate
from evalsuite.distill.data.packing import Document, pack_documents
from evalsuite.distill.data.preparation import eos_token_id
from evalsuite.distill.objectives.end_to_end import OnPolicyDistillation
from evalsuite.distill.types import CausalLM, GlobalBatch, Rollouts
from evalsuite.foundation import ConfigError, content_hash
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference.proof import UnsupportedModelError
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.torch.engine import TorchEngine

Row = list[dict[str, Any]]
"""The rollouts of one sequence: prompt, tokens, and whether it was truncated."""


class Writer:
    """Lets one student continue prompts with its current weights.

    Raises:
        ConfigError: it cannot run in the in-process engine.
    """

    def __init__(self, stage: OnPolicyDistillation, label: str, student: CausalLM, tokenizer: Any) -> None:
        self._student, self._copy = student, copy.deepcopy(student)
        checkpoint = Checkpoint(label, label, self._copy, tokenizer, weights_id="")  # type: ignore[arg-type]
        try:
            slots = stage.rollout_slots, stage.seq_len
            self._engine = TorchEngine(checkpoint, max_length=stage.seq_len, slots=slots)
        except UnsupportedModelError as error:
            raise ConfigError(
                f"stage '{stage.name}': objective on_policy needs students that can generate; '{label}' "
                f"cannot ({error}); use objective kd"
            ) from None

    @torch.no_grad()
    def write(self, requests: Sequence[GenerateRequest]) -> list[tuple[list[int], bool]]:
        """The tokens that continue each prompt, and whether their number reached its limit."""
        for mine, current in zip(self._copy.parameters(), self._student.parameters(), strict=True):
            mine.copy_(current)
        found: dict[int, tuple[list[int], bool]] = {}
        for index, response in self._engine.generate(requests):
            found[index] = list(response.tokens), response.finish_reason == "length"
        return [found[index] for index in range(len(requests))]


@dataclass
class RolloutWriter:
    """Adds what the students of a stage write to its batches.

    Args:
        saved: label → rows that it wrote for the steps at hand; a part of the training state.
    """

    stage: OnPolicyDistillation
    students: Mapping[str, CausalLM]
    tokenizer: Any
    seed: int
    saved: dict[str, list[Row]]

    def __post_init__(self) -> None:
        self._writers = {
            label: Writer(self.stage, label, student, self.tokenizer)
            for label, student in self.students.items()
        }
        self._eos_id = eos_token_id(self.tokenizer)

    def add(self, batch: GlobalBatch, step: int) -> GlobalBatch:
        """The batch of a step with the rollouts of all students."""
        if step % self.stage.rollout_every == 0:
            requests = [
                self._request(prompt, room, [self.seed, self.stage.name, step, row, number])
                for row, prompts in enumerate(batch.prompts)
                for number, (prompt, room) in enumerate(writable(prompts, self.stage))
            ]
            rows = [request[0] for request in requests]
            for label, writer in self._writers.items():
                written = writer.write([request for _, request in requests])
                found: list[Row] = [[] for _ in batch.prompts]
                for row, (_, request), (tokens, truncated) in zip(rows, requests, written, strict=True):
                    found[row].append(
                        {"prompt": list(request.prompt), "tokens": tokens, "truncated": truncated}
                    )
                self.saved[label] = [held(row, self.stage.seq_len) for row in found]
        return replace(batch, rollouts=[self._sequences(self.saved[label]) for label in self.students])

    def _request(self, prompt: list[int], room: int, place: list[Any]) -> tuple[int, GenerateRequest]:
        sampling = SamplingParams(max_new_tokens=room, temperature=self.stage.rollout_temperature)
        return place[3], GenerateRequest(tuple(prompt), sampling, int(content_hash(place), 16))

    def _sequences(self, rows: Sequence[Row]) -> Rollouts:
        """Rows as sequences of isolated documents, whose own tokens are in the loss."""
        sequences = []
        for row in rows:
            documents = []
            for each in row:
                end = [] if each["truncated"] else [self._eos_id]
                tokens = np.array([*each["prompt"], *each["tokens"], *end], dtype=np.int32)
                in_loss = np.arange(len(tokens)) >= len(each["prompt"])
                documents.append(Document(tokens, in_loss, np.zeros(len(tokens), dtype=bool)))
            packed, _ = pack_documents(documents, self.stage.seq_len, self._eos_id, last=True)
            sequences += packed
        size = self.stage.micro_batch_size or self.stage.batch_size
        batches = [
            collate(sequences[start : start + size], packed=True) for start in range(0, len(sequences), size)
        ]
        written = [each for row in rows for each in row]
        return Rollouts(
            batches,
            sum(int(sequence.loss_mask.sum()) for sequence in sequences),
            len(written),
            sum(each["truncated"] for each in written),
        )


def writable(prompts: Sequence[Sequence[int]], stage: OnPolicyDistillation) -> list[tuple[list[int], int]]:
    """The prompts that a sequence holds if every rollout is one token, and the limits of rollouts in tokens.

    A limit is at most what a sequence has left for the prompt alone. The last token of a rollout is not read.
    """
    found: list[tuple[list[int], int]] = []
    free = stage.seq_len
    for prompt in prompts:
        if len(prompt) <= free:
            found.append((list(prompt), min(stage.max_new_tokens, stage.seq_len - len(prompt) + 1)))
            free -= len(prompt)
    return found


def held(row: Row, seq_len: int) -> Row:
    """The first rollouts that fit into a sequence, one at least.

    The others are dropped: with shorter ones that still fit in their place, what is learned would depend on
    the length.
    """
    sizes = [len(each["prompt"]) + len(each["tokens"]) - each["truncated"] for each in row]
    return row[: int((np.cumsum(sizes) <= seq_len).sum())]
