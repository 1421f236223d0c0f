"""What the torch engine must respond: the model's own log-probabilities and greedy generation."""

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.tasks.synthetic.pocket import build_tokenizer


def pocket_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the pocket teacher."""
    return PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), eos_token="</s>")


@torch.no_grad()
def assert_engine_responds_as(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, new: int) -> None:
    """Compare log-probabilities of continuations, and `new` tokens, of three prompts."""
    engine = TorchEngine(Checkpoint("x", "", model, tokenizer, "0" * 16))
    engine.eos_ids = frozenset()
    model.generation_config.eos_token_id = None
    drawn = torch.randint(0, 61, (14,), generator=torch.Generator().manual_seed(1)).tolist()
    texts = [tuple(drawn[:length]) for length in (3, 9, 12)]
    requests = [ScoreRequest(text, ((1, 2, 3), (4,))) for text in texts]
    for number, response in engine.score(requests):
        for logprob, continuation in zip(response.logprobs, requests[number].continuations, strict=True):
            whole = torch.tensor([[*texts[number], *continuation]])
            scores = model(whole).logits.log_softmax(-1)[0, len(texts[number]) - 1 : -1]
            wanted = scores.gather(1, torch.tensor(continuation)[:, None]).sum()
            assert logprob == pytest.approx(float(wanted), abs=1e-3)
    for number, response in engine.generate([GenerateRequest(text, SamplingParams(new)) for text in texts]):
        prompt = torch.tensor([texts[number]])
        found = model.generate(prompt, max_new_tokens=new, do_sample=False, pad_token_id=0)
        assert list(response.tokens) == found[0, len(texts[number]) :].tolist()
