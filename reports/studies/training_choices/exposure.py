"""Exposure: does a student still predict the teacher's response where it reads its own continuation?

For the first documents of every benchmark under generation, each token of the teacher's response is scored
by the student after the teacher's own tokens (teacher-forced). The student's free-running response says
whether it produced the same token at that position. Both need only the verbs `score` and `generate`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, write_text
from evalsuite.models.inference.requests import GenerateResponse, ScoreRequest, ScoreResponse

DOCUMENTS = 60
"""Documents of each benchmark; each position is one request."""


def forced_requests(prompt: Sequence[int], response: Sequence[int]) -> list[ScoreRequest]:
    """Return one request per token of a response: that token after all before it."""
    return [
        ScoreRequest((*prompt, *response[:position]), ((token,),)) for position, token in enumerate(response)
    ]


def exposure_row(
    teacher: Sequence[int], own: Sequence[int], forced: Sequence[ScoreResponse]
) -> dict[str, list[Any]]:
    """Return how a student predicts the tokens of the teacher's response, each a list over positions.

    Args:
        teacher: tokens of the teacher's response.
        own: tokens of the student's free-running response.
        forced: responses to `forced_requests`.

    Returns:
        ``logprob`` (nats) and ``forced`` (whether the token is the argmax), both after the teacher's tokens;
        ``free``: whether the student's own response has that token at that position.

    Raises:
        DataError: a token could not be scored.
    """
    for response in forced:
        if response.error:
            raise DataError(f"a teacher's token could not be scored: {response.error}")
    return {
        "logprob": [round(response.logprobs[0], 4) for response in forced],
        "forced": [response.greedy[0] for response in forced],
        "free": [position < len(own) and own[position] == token for position, token in enumerate(teacher)],
    }


def write_exposure(path: Path, checkpoint: str, *, run: Path, teacher_run: Path, device: str) -> None:
    """Write one row per document, with ``benchmark``, ``doc_id`` and ``context``.

    Args:
        run, teacher_run: run folders with the generated responses of the student and of the teacher.

    Raises:
        DataError: a response is missing.
    """
    from evalsuite.evaluation.inference.engines import engine_factory

    chosen = list(_documents(run))
    own, teacher = _responses(run, chosen), _responses(teacher_run, chosen)
    requests = [forced_requests(request.prompt, teacher[key].tokens) for key, _, request in chosen]
    engine = engine_factory("torch", device=device, dtype="auto", trust_remote_code=False)(checkpoint, None)
    try:
        flat = [each for group in requests for each in group]
        answers: list[Any] = [None] * len(flat)
        for index, response in engine.score(flat):
            answers[index] = response
    finally:
        engine.close()
    lines, start = [], 0
    for (key, facts, _), group in zip(chosen, requests, strict=True):
        forced = answers[start : start + len(group)]
        start += len(group)
        lines.append(json.dumps({**facts, **exposure_row(teacher[key].tokens, own[key].tokens, forced)}))
    write_text(path, "".join(f"{line}\n" for line in lines))


def _documents(run: Path) -> Iterator[tuple[Any, Mapping[str, Any], Any]]:
    """Yield (key, facts, request) of the first documents of every benchmark, over its contexts in turn."""
    from evalsuite.evaluation.run_paths import cells_of, read_built, read_requests

    manifest = read_built(run)
    tokenizer = manifest.checkpoints[0].tokenizer
    for cell in cells_of(manifest):
        if (sampling := cell.sampling_params) is None:
            continue
        sets = read_requests(run, tokenizer, cell)
        for each in islice(sets, 0, None, max(1, len(sets) // DOCUMENTS)):
            request = each.generate_request(sampling, cell.seeds[0])
            yield (
                request.key(),
                {"benchmark": cell.benchmark, "doc_id": each.doc_id, "context": each.context},
                request,
            )


def _responses(run: Path, chosen: Sequence[tuple[Any, Any, Any]]) -> dict[Any, GenerateResponse]:
    from evalsuite.evaluation.run_paths import open_responses, read_built

    manifest = read_built(run)
    (fingerprint,) = manifest.fingerprints.values()
    known = open_responses(run, manifest).known(fingerprint, [key for key, _, _ in chosen])
    missing = [facts for key, facts, _ in chosen if key not in known]
    if missing:
        raise DataError(f"{run}: no response to {len(missing)} documents, such as {missing[0]['doc_id']}")
    return {key: response for key, response in known.items() if isinstance(response, GenerateResponse)}
