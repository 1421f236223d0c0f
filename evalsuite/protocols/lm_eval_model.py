"""An engine as an lm-eval model, for `lm_eval.simple_evaluate` and everything built on it.

    lm = EngineLM(TorchEngine(load_checkpoint("./student")), cache_dir=Path("responses"))
    lm_eval.simple_evaluate(lm, tasks=["arc_easy"])

Import this module only where lm-eval is used.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs

from evalsuite.foundation import ConfigError, EvalsuiteError
from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.requests import (
    GenerateRequest,
    GenerateResponse,
    SamplingParams,
    ScoreResponse,
)
from evalsuite.models.inference.response_cache import ResponseCache, run_requests
from evalsuite.protocols.tokenization import Encoder, Tokens, group_by_context

_KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k")


class EngineLM(TemplateLM):
    """An lm-eval model whose responses come from an engine.

    Prompts that do not fit are truncated on the left, as in lm-eval's HFLM. A context that several
    continuations share is prefilled once.

    Args:
        engine: its `checkpoint` provides the tokenizer, unless `tokenizer` is given.
        tokenizer: of the checkpoint.
        cache_dir: folder of cached responses; None uses a temporary one.
        seed: of sampled responses.
        max_gen_toks: maximum number of new tokens for tasks that do not set it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        tokenizer: Any | None = None,
        cache_dir: Path | None = None,
        seed: int = 0,
        max_gen_toks: int = 256,
    ) -> None:
        super().__init__()
        self.engine = engine
        checkpoint: Any = getattr(engine, "checkpoint", None)
        if tokenizer is None and checkpoint is None:
            raise ConfigError(f"engine {engine.name} has no tokenizer: pass 'tokenizer'")
        self.tokenizer: Any = tokenizer if tokenizer is not None else checkpoint.tokenizer
        self.max_gen_toks = max_gen_toks
        self._seed = seed
        self._encoder = Encoder(self.tokenizer)
        # Deleted with this object.
        self._temporary = TemporaryDirectory(prefix="evalsuite-")
        self._cache = ResponseCache(cache_dir if cache_dir is not None else Path(self._temporary.name))

    @property
    def max_length(self) -> int:
        """Positions of the model."""
        return self.engine.max_length

    @property
    def eot_token_id(self) -> int:
        """The end-of-sequence token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The context of an empty prompt: BOS, else EOS."""
        return self._encoder.prefix_token_id

    @property
    def tokenizer_name(self) -> str:
        """Used by lm-eval in cache names."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a chat with the tokenizer's template."""
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the token ids of a text, as lm-eval's HFLM does."""
        if add_special_tokens is None:
            return list(self._encoder.encode([string])[string])
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Score (context, continuation) texts, encoded in batches instead of one by one."""
        return self._score(self._encoder.pairs([request.args for request in requests]), disable_tqdm)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """Score pairs that lm-eval has already encoded."""
        return self._score([(tuple(context), tuple(rest)) for _, context, rest in requests], disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Score whole texts, in disjoint windows of at most `max_length` tokens."""
        windows = [self._encoder.rolling(request.args[0], self.max_length) for request in requests]
        scored = iter(self._score([pair for each in windows for pair in each], disable_tqdm))
        return [sum(next(scored)[0] for _ in each) for each in windows]

    def _score(self, pairs: Sequence[tuple[Tokens, Tokens]], quiet: bool) -> list[tuple[float, bool]]:
        requests, locations = group_by_context([_fit(pair, self.max_length) for pair in pairs])
        responses = run_requests(self.engine, self._cache, requests, quiet=quiet)
        return [_continuation_score(responses[request], number) for request, number in locations]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate responses, each with the sampling parameters of its task."""
        generate_requests = []
        for request in requests:
            text, kwargs = request.args
            sampling = self._sampling_params(normalize_gen_kwargs(kwargs, self.max_gen_toks))
            room = self.max_length - sampling.max_new_tokens
            if room < 1:
                raise ConfigError(
                    f"{sampling.max_new_tokens} new tokens leave no room for a prompt in {self.max_length} "
                    "positions"
                )
            prompt = self._encoder.encode([text])[text][-room:]
            generate_requests.append(GenerateRequest(prompt, sampling, self._seed))
        responses = run_requests(self.engine, self._cache, generate_requests, quiet=disable_tqdm)
        return [_text(response) for response in responses]

    @staticmethod
    def _sampling_params(kwargs: Mapping[str, Any]) -> SamplingParams:
        unknown = sorted(set(kwargs) - set(_KNOWN))
        if unknown:
            raise ConfigError(
                f"generation_kwargs: '{unknown[0]}' is not supported; known: {', '.join(_KNOWN)}"
            )
        return SamplingParams(
            max_new_tokens=kwargs["max_gen_toks"],
            temperature=kwargs["temperature"] if kwargs["do_sample"] else 0.0,
            top_p=float(kwargs.get("top_p") or 1.0),
            top_k=int(kwargs.get("top_k") or 0),
            stop=tuple(text for text in kwargs["until"] if text),
        )

    def get_model_info(self) -> dict[str, Any]:
        """Stored by lm-eval with its results."""
        return {"engine": self.engine.name, "fingerprint": self.engine.fingerprint, "seed": self._seed}


def _fit(pair: tuple[Tokens, Tokens], max_length: int) -> tuple[Tokens, Tokens]:
    """Truncate on the left; the last token is only predicted, so it needs no position."""
    context, continuation = pair
    excess = len(context) + len(continuation) - (max_length + 1)
    if excess <= 0:
        return pair
    if excess >= len(context):
        raise ConfigError(f"a continuation of {len(continuation)} tokens does not fit {max_length} positions")
    return context[excess:], continuation


def _continuation_score(response: Any, number: int) -> tuple[float, bool]:
    assert isinstance(response, ScoreResponse)
    if response.error:
        raise EvalsuiteError(response.error)
    return response.logprobs[number], response.greedy[number]


def _text(response: Any) -> str:
    assert isinstance(response, GenerateResponse)
    if response.error:
        raise EvalsuiteError(response.error)
    return response.text
