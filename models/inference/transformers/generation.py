"""Generation with any causal language model, without padding.

Prompts of a batch differ in length, and padding would enter the states of a recurrent model. So all rows are
read in lockstep: first as many tokens as the shortest prompt has, then one at a time, which in each row is
the next token of its prompt or else the one that was sampled. Every row is at the same position, always.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from evalsuite.models.inference.batch_limits import BatchLimits
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.models.inference.sampling import SamplingMetadata, sample
from evalsuite.models.inference.stopping import GenerationState
from evalsuite.models.inference.transformers.runner import PlainRunner


def make_lockstep_batches(
    sequences: Sequence[GenerationState], runner: PlainRunner, limits: BatchLimits, max_num_seqs: int
) -> list[list[GenerationState]]:
    """Batch sequences that are read in lockstep, those with the longest prompts first.

    A prompt joins a batch if the steps that it adds, its distance to the longest prompt, are not more than
    those that a batch of its own would take.
    """
    found: list[list[GenerationState]] = []
    per_token = max(1, runner.kv_bytes_per_token)
    alone = "single texts" in (runner.batching, runner.caching)
    for sequence in sorted(sequences, key=lambda each: -len(each.request.prompt)):
        prompt, limit = len(sequence.request.prompt), sequence.stop_checker.limit
        if found and not alone:
            batch = found[-1]
            longest = len(batch[0].request.prompt)
            end = longest + max(limit, *(each.stop_checker.limit for each in batch))
            size = len(batch) + 1
            cache_bytes = size * (end * per_token + runner.state_bytes_per_seq)
            fits = cache_bytes <= limits.cache_bytes and size * prompt <= limits.max_tokens
            if fits and size <= max_num_seqs and longest - prompt <= limit:
                batch.append(sequence)
                continue
        found.append([sequence])
    return found


def generate_in_lockstep(
    runner: PlainRunner, sequences: Sequence[GenerationState]
) -> Iterator[tuple[int, GenerateResponse]]:
    """Yield (index, response) of the sequences of one batch as they finish."""
    requests = [sequence.request for sequence in sequences]
    prompts = [request.prompt for request in requests]
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=runner.device)
    sampling = SamplingMetadata.from_requests(requests, runner.device)
    end = max(len(each.request.prompt) + each.stop_checker.limit for each in sequences)
    reader = runner.reader(end - 1)
    place = min(map(len, prompts))
    column: list[Any] = [prompt[:place] for prompt in prompts]
    while True:
        logits = reader.read(torch.tensor(column, device=runner.device).view(len(prompts), -1))
        sampled, non_finite = sample(logits, sampling, (place - lengths).clamp(min=0))
        column = []
        for sequence, token, bad in zip(sequences, sampled.tolist(), non_finite.tolist(), strict=True):
            prompt = sequence.request.prompt
            if place < len(prompt):
                token = prompt[place]
            elif not sequence.finished and (response := sequence.append([token], [bad])) is not None:
                yield sequence.index, response
            column.append(token)
        if all(sequence.finished for sequence in sequences):
            return
        place += 1
