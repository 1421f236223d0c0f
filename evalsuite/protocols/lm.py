"""Our engine as a model of lm-eval, for `lm_eval.simple_evaluate` and everything built on it.

    lm = EngineLM(TorchEngine(load_checkpoint("./student")), answers=Path("answers"))
    lm_eval.simple_evaluate(lm, tasks=["arc_easy"])

Imported only where lm-eval is used.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs

from evalsuite.foundation import ConfigError, EvalsuiteError
from evalsuite.models.engine.base import Engine
from evalsuite.models.engine.requests import GenerateAnswer, GenerateRequest, Sampling, ScoreAnswer
from evalsuite.models.engine.store import AnswerStore, answer_all
from evalsuite.protocols.encode import Encoder, Tokens, grouped

_KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k")


class EngineLM(TemplateLM):
    """A model of lm-eval whose answers come from an engine.

    Prompts that do not fit lose their beginning, as with lm-eval's HFLM. Contexts that several
    continuations share are read once.

    Args:
        engine: with the checkpoint's tokenizer in `engine.checkpoint`, unless `tokenizer` is given.
        tokenizer: of the checkpoint.
        answers: folder in which answers are kept and looked up; None forgets them.
        seed: of sampled answers.
        max_gen_toks: tokens written where a task does not say.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        tokenizer: Any | None = None,
        answers: Path | None = None,
        seed: int = 0,
        max_gen_toks: int = 256,
    ) -> None:
        super().__init__()
        self.engine = engine
        checkpoint: Any = getattr(engine, "checkpoint", None)
        if tokenizer is None and checkpoint is None:
            raise ConfigError(f"engine {engine.name} holds no tokenizer: give it as 'tokenizer'")
        self.tokenizer: Any = tokenizer if tokenizer is not None else checkpoint.tokenizer
        self.max_gen_toks = max_gen_toks
        self._seed = seed
        self._encoder = Encoder(self.tokenizer)
        # Holds the folder until this object goes.
        self._forgotten = TemporaryDirectory(prefix="evalsuite-")
        self._store = AnswerStore(answers if answers is not None else Path(self._forgotten.name))

    @property
    def max_length(self) -> int:
        """Positions that the model reads."""
        return self.engine.max_length

    @property
    def eot_token_id(self) -> int:
        """The end-of-sequence token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before an empty context: BOS, else EOS."""
        return self._encoder.prefix_token_id

    @property
    def tokenizer_name(self) -> str:
        """Used by lm-eval in names of caches."""
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
        """Token ids of a text, as lm-eval's HFLM gives them."""
        if add_special_tokens is None:
            return list(self._encoder.encode([string])[string])
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Score (context, continuation) texts; encoded in batches instead of one by one."""
        return self._scored(self._encoder.pairs([request.args for request in requests]), disable_tqdm)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """Score pairs that lm-eval has encoded."""
        return self._scored([(tuple(context), tuple(rest)) for _, context, rest in requests], disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Score whole texts, in disjoint windows of at most `max_length` tokens."""
        windows = [self._encoder.rolling(request.args[0], self.max_length) for request in requests]
        scored = iter(self._scored([pair for each in windows for pair in each], disable_tqdm))
        return [sum(next(scored)[0] for _ in each) for each in windows]

    def _scored(self, pairs: Sequence[tuple[Tokens, Tokens]], quiet: bool) -> list[tuple[float, bool]]:
        requests, places = grouped([_fit(pair, self.max_length) for pair in pairs])
        answers = answer_all(self.engine, self._store, requests, quiet=quiet)
        return [_picked(answers[request], number) for request, number in places]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Write answers, each with the sampling that its task asks for."""
        asked = []
        for request in requests:
            text, how = request.args
            sampling = self._sampling(normalize_gen_kwargs(how, self.max_gen_toks))
            room = self.max_length - sampling.max_new_tokens
            if room < 1:
                raise ConfigError(
                    f"{sampling.max_new_tokens} new tokens leave no room for a prompt; the model reads "
                    f"{self.max_length}"
                )
            asked.append(GenerateRequest(self._encoder.encode([text])[text][-room:], sampling, self._seed))
        answers = answer_all(self.engine, self._store, asked, quiet=disable_tqdm)
        return [_text(answer) for answer in answers]

    @staticmethod
    def _sampling(how: Mapping[str, Any]) -> Sampling:
        unknown = sorted(set(how) - set(_KNOWN))
        if unknown:
            raise ConfigError(
                f"generation_kwargs: '{unknown[0]}' is not supported; known: {', '.join(_KNOWN)}"
            )
        return Sampling(
            max_new_tokens=how["max_gen_toks"],
            temperature=how["temperature"] if how["do_sample"] else 0.0,
            top_p=float(how.get("top_p") or 1.0),
            top_k=int(how.get("top_k") or 0),
            stop=tuple(text for text in how["until"] if text),
        )

    def get_model_info(self) -> dict[str, Any]:
        """Stored by lm-eval beside results."""
        return {"engine": self.engine.name, "fingerprint": self.engine.fingerprint, "seed": self._seed}


def _fit(pair: tuple[Tokens, Tokens], max_length: int) -> tuple[Tokens, Tokens]:
    """Drop the beginning of what is too long; the last token is predicted, never read."""
    context, continuation = pair
    over = len(context) + len(continuation) - (max_length + 1)
    if over <= 0:
        return pair
    if over >= len(context):
        raise ConfigError(f"a continuation of {len(continuation)} tokens does not fit {max_length} positions")
    return context[over:], continuation


def _picked(answer: Any, number: int) -> tuple[float, bool]:
    assert isinstance(answer, ScoreAnswer)
    if answer.error:
        raise EvalsuiteError(answer.error)
    return answer.logprobs[number], answer.greedy[number]


def _text(answer: Any) -> str:
    assert isinstance(answer, GenerateAnswer)
    if answer.error:
        raise EvalsuiteError(answer.error)
    return answer.text
