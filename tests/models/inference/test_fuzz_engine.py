"""Random students, hybrids above all, respond in the torch engine as in the plain model.

Requests share prefixes, have any length and come in any order; the engine batches them, branches caches and
decodes together what it can. The plain model reads each text alone and without a cache. A campaign over other
seeds:

    EVALSUITE_FUZZ_SEEDS=1000:3000 pytest tests/models/inference/test_fuzz_engine.py
"""

import random
from collections.abc import Callable

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from evalsuite.models import StudentForCausalLM
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.tasks.synthetic.pocket import build_tokenizer
from tests.models.fuzzing import random_student, seeds

VOCABULARY = 61
Tokens = tuple[int, ...]


def random_tokens(rng: random.Random, *lengths: int) -> Tokens:
    return tuple(rng.randrange(VOCABULARY) for _ in range(rng.choice(lengths)))


def random_prompts(rng: random.Random, count: int) -> list[Tokens]:
    """Prompts of which most begin as others do; some are equal, or the beginning of others."""
    prompts = [random_tokens(rng, 1, 2, 5, 17, 40)]
    for _ in range(count - 1):
        shared = rng.choice(prompts)[: rng.choice((0, 1, 9, 60))]
        prompts.append(shared + random_tokens(rng, *((0, 1, 7, 25) if shared else (1, 8))))
    rng.shuffle(prompts)
    return prompts


def logprobs(model: StudentForCausalLM, context: Tokens, continuation: Tokens) -> float:
    """Log-probability of a continuation, from one pass over the whole text."""
    logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1]
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(continuation)[:, None]).sum())


def is_greedy(model: StudentForCausalLM, prompt: Tokens, response: Tokens, tolerance: float) -> bool:
    """Whether each token of a response is the most likely one, or as likely but for rounding."""
    logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(-1, torch.tensor(response)[:, None])[:, 0]
    return bool((logits.amax(-1) - chosen <= tolerance).all())


@seeds(6, 200)
@torch.no_grad()
def test_the_engine_responds_as_a_random_student(
    make_teacher: Callable[..., PreTrainedModel], seed: int
) -> None:
    rng = random.Random(seed)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), eos_token="</s>")
    student = random_student(rng, make_teacher, vocab_size=len(tokenizer))
    model, tolerance = student.model, 1e-3
    if not student.eager:
        model, tolerance = model.double(), 1e-5
    engine = TorchEngine(
        Checkpoint("random", "", model, tokenizer, "0" * 16), batch_tokens=rng.choice((None, 64, 512))
    )
    engine.eos_ids = frozenset()

    scored = [
        ScoreRequest(prompt, tuple(random_tokens(rng, 1, 2, 6) for _ in range(rng.choice((1, 2, 4)))))
        for prompt in random_prompts(rng, rng.choice((2, 7, 14)))
    ]
    responses = dict(engine.score(scored))
    assert sorted(responses) == list(range(len(scored)))
    for number, request in enumerate(scored):
        assert responses[number].error is None
        for found, continuation in zip(responses[number].logprobs, request.continuations, strict=True):
            wanted = logprobs(model, request.context, continuation)
            assert abs(found - wanted) < tolerance * (1 + abs(wanted)), (
                f"seed {seed}: {found} instead of {wanted} for {request}; {student}"
            )

    prompts = random_prompts(rng, rng.choice((2, 5, 9)))
    generations = [GenerateRequest(prompt, SamplingParams(rng.choice((1, 3, 8, 12)))) for prompt in prompts]
    generated = dict(engine.generate(generations))
    assert sorted(generated) == list(range(len(generations)))
    for number, prompted in enumerate(generations):
        tokens = tuple(generated[number].tokens)
        assert len(tokens) == prompted.sampling.max_new_tokens
        assert is_greedy(model, prompted.prompt, tokens, 10 * tolerance), (
            f"seed {seed}: {tokens} for {prompted.prompt}; {student}"
        )
