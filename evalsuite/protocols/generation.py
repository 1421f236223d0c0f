"""Asking by making the model write: EvalScope's benchmarks over documents of ours.

EvalScope makes the prompts (its adapters' `load_dataset` and `run_inference`) and the metrics
(`calculate_metrics`), with a model object that first notes what it is asked and later replays what was
written. Nothing of its loading, thread pool, caches or reports is used.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from evalsuite.foundation import ConfigError, DataError, MissingDependencyError, content_hash, nearest
from evalsuite.models.engine.requests import GenerateAnswer
from evalsuite.protocols import sandbox
from evalsuite.protocols.encode import Encoder
from evalsuite.protocols.outcome import outcome_of
from evalsuite.protocols.question import Judgement, Question, one_in
from evalsuite.protocols.quiet import quiet_harness, same_dice
from evalsuite.protocols.time_limit import (
    TookTooLongError,
    each_number_worked_out_once,
    mathematics_without_forks,
    processor_limit,
)
from evalsuite.protocols.truncate import cut_middle
from evalsuite.tasks.benchmark import Benchmark, Generation
from evalsuite.tasks.documents import Document
from evalsuite.tasks.sized import answer_begins

Message = tuple[str, str]
_NUMBER = "evalsuite_number"
JUDGE_SECONDS = 10.0
"""Processor time after which a metric's verdict on one answer is given up."""
SEED = 42
"""EvalScope's own default; it shuffles choices by it, from each document's content."""


class GenerationBenchmark:
    """One benchmark under generation, over some of its documents.

    Args:
        benchmark: what is asked.
        documents: in the order in which questions and judgements are numbered.
        shots: few-shot examples per prompt; EvalScope takes the first of `examples`.
        examples: documents that examples are taken from.

    Raises:
        ConfigError: an EvalScope benchmark that does not exist, or not enough examples.
        DataError: EvalScope cannot read the rows, or drops some.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        documents: Sequence[Document],
        *,
        shots: int = 0,
        examples: Sequence[Document] = (),
    ) -> None:
        if benchmark.generation is None:
            raise ConfigError(f"{benchmark.name}: has no generation protocol")
        self._benchmark = benchmark
        self._how: Generation = benchmark.generation
        self._documents = list(documents)
        self._rows = Rows(self._how)
        with quiet_harness():
            self._adapter = self._build(shots, list(examples))
            self._samples = self._load()

    def _build(self, shots: int, examples: list[Document]) -> Any:
        """Make EvalScope's adapter and give it our rows in place of its loader."""
        from evalscope.api.registry import BENCHMARK_REGISTRY, get_benchmark
        from evalscope.config import TaskConfig

        from evalsuite.protocols.replay import Replay

        name = self._how.dataset
        options: dict[str, Any] = {"few_shot_num": shots, **self._how.options}
        if name == "evalsuite":
            from evalsuite.protocols.prompt_adapter import NAME

            name = NAME
            options["extra_params"] = {"judge": self._how.judge}
        if name not in BENCHMARK_REGISTRY:
            known = list(BENCHMARK_REGISTRY.keys())
            raise ConfigError(
                f"{self._benchmark.name}: no EvalScope benchmark '{name}'{nearest(name, known)}"
            )
        options["subset_list"] = list(dict.fromkeys(self._subset(document) for document in self._documents))
        config = TaskConfig(
            model=Replay(), eval_type="custom", datasets=[name], dataset_args={name: options}, seed=SEED
        )
        try:
            adapter = get_benchmark(name, config)
        except ImportError as error:
            raise MissingDependencyError(f"{self._benchmark.name}: {str(error).strip()}") from error
        except ValueError as error:
            raise ConfigError(f"{self._benchmark.name}: {error}") from error
        if self._how.executes:
            self._limit(adapter)
        numbered = list(enumerate(self._documents))
        adapter.load_subset = lambda subset, data_loader: self._dataset(adapter, subset, numbered)
        adapter.load_fewshot_subset = lambda subset, data_loader: self._examples(
            adapter, subset, shots, examples
        )
        return adapter

    def _limit(self, adapter: Any) -> None:
        """Let EvalScope run code in our sandbox instead of its own, which has no limits or needs Docker."""

        def run(code: str, **_: Any) -> dict[str, Any]:
            done = sandbox.run_limited(code)
            return {"status": "success" if done.passed else "error", "error": done.message}

        kind = type(adapter)
        adapter.__class__ = type(kind.__name__, (kind,), {"use_sandbox": True})
        adapter.execute_code_in_sandbox = run

    def _subset(self, document: Document) -> str:
        source = self._benchmark.source
        return document.subject or (source.config if source is not None else None) or "default"

    def _dataset(self, adapter: Any, subset: str, numbered: list[tuple[int, Document]]) -> Any:
        """The documents of one subset as EvalScope's samples, each marked with its number."""
        from evalscope.api.dataset.dataset import MemoryDataset

        samples = []
        for number, document in numbered:
            if not adapter.reformat_subset and self._subset(document) != subset:
                continue
            sample = self._sample(adapter, document)
            sample.metadata = {**sample.metadata, _NUMBER: number}
            samples.append(sample)
        dataset = MemoryDataset(samples).filter(adapter.sample_filter)
        dataset.reindex()
        if adapter.shuffle_choices:
            dataset.shuffle_choices(seed=SEED)
        return dataset

    def _examples(self, adapter: Any, subset: str, shots: int, examples: list[Document]) -> Any:
        from evalscope.api.dataset.dataset import MemoryDataset

        mine = [each for each in examples if adapter.reformat_subset or self._subset(each) == subset]
        if len(mine) < shots:
            raise ConfigError(
                f"{self._benchmark.name}: {shots} shots asked, {len(mine)} examples of {subset} to take"
            )
        kept = mine if adapter.reformat_subset else mine[:shots]
        return MemoryDataset([self._sample(adapter, document) for document in kept])

    def _sample(self, adapter: Any, document: Document) -> Any:
        from jinja2 import TemplateError

        try:
            made = adapter.record_to_sample(self._rows.convert(document.row))
        except (KeyError, ValueError, TypeError, IndexError, TemplateError) as error:
            reader = f"EvalScope's {self._how.dataset}" if self._how.judge is None else "its template"
            raise DataError(
                f"{self._benchmark.name}: {reader} cannot read document {document.doc_id} ({error!r})"
            ) from error
        if isinstance(made, list):
            raise DataError(f"{self._benchmark.name}: EvalScope makes {len(made)} questions of one document")
        return made

    def _load(self) -> list[Any]:
        """Let EvalScope apply its templates, and put its samples into the order of the documents."""
        found: dict[int, Any] = {}
        for dataset in self._adapter.load_dataset().datasets.values():
            for sample in dataset:
                found[sample.metadata.pop(_NUMBER)] = sample
        missing = [document.doc_id for number, document in enumerate(self._documents) if number not in found]
        if missing:
            raise DataError(
                f"{self._benchmark.name}: EvalScope's {self._how.dataset} drops {len(missing)} of "
                f"{len(self._documents)} documents, the first is {missing[0]}"
            )
        return [found[number] for number in range(len(self._documents))]

    def messages(self, number: int) -> list[Message]:
        """The chat messages, (role, text), that EvalScope sends for one document."""
        from evalsuite.protocols.replay import Replay

        replay = Replay()
        self._adapter.run_inference(replay.model(), self._samples[number], "")
        if len(replay.asked) != 1:
            raise ConfigError(
                f"{self._benchmark.name}: EvalScope's {self._how.dataset} asks {len(replay.asked)} times per "
                "document; only single questions are asked"
            )
        return [(message.role, message.text) for message in replay.asked[0]]

    def text(
        self, number: int, encoder: Encoder | None, *, template: bool, max_length: int | None = None
    ) -> str:
        """The text that a model continues; see `prompt_text`.

        Args:
            number: of the document.
            encoder: of the model's tokenizer; None where nothing is known of it.
            template: put a chat prompt through the tokenizer's chat template.
            max_length: positions that the model reads, for benchmarks that cut what is longer.

        Raises:
            ConfigError: such a model cannot be given the question, however much of it is cut.
        """
        messages = self.messages(number)
        tokenizer = encoder.tokenizer if encoder is not None else None
        chat = template and self._how.prompt == "chat"
        # A prompt of ours is whole as it is: only a chat template may stand around it.
        prompt = self._how.prompt if chat or self._how.judge is None else "literal"

        def wrap(text: str) -> str:
            if chat:
                return chat_text(self._benchmark, [*messages[:-1], (messages[-1][0], text)], tokenizer)
            return prompt_text([*messages[:-1], (messages[-1][0], text)], prompt, None)

        text = messages[-1][1]
        if self._how.truncate is not None and encoder is not None and max_length is not None:
            # The benchmark's own limit, not a suite's: the prompt is then the same in every suite.
            room = max_length - self._how.sampling.max_new_tokens
            text = cut_middle(text, room, encoder.encode_bare if chat else encoder.encode, tokenizer, wrap)
        return wrap(text)

    def questions(self, encoder: Encoder, *, template: bool, max_length: int | None = None) -> list[Question]:
        """Render every document for one tokenizer.

        Args:
            encoder: of the tokenizer.
            template: put chat prompts through the tokenizer's chat template; see `prompt_text`.
            max_length: positions that the models read; only benchmarks that say so are cut by it.

        Raises:
            DataError: the tokenizer cannot encode what generated documents ask for.
        """
        chat = template and self._how.prompt == "chat"
        self._check_needles(encoder)
        with quiet_harness():
            texts = [
                self.text(number, encoder, template=template, max_length=max_length)
                for number in range(len(self._documents))
            ]
        # A chat template writes the special tokens itself.
        encoded = encoder.encode_bare(texts) if chat else encoder.encode(texts)
        return [
            Question(
                doc_id=document.doc_id,
                context=document.context,
                prompt_hash=content_hash(text),
                prompt=encoded[text] or (encoder.prefix_token_id,),
            )
            for document, text in zip(self._documents, texts, strict=True)
        ]

    def _check_needles(self, encoder: Encoder) -> None:
        """Refuse a tokenizer in whose tokens an answer of a generated document cannot be written."""
        if self._benchmark.generated is None:
            return
        answers = [str(each) for document in self._documents for each in document.row.get("answers", ())]
        for answer, tokens in encoder.encode_bare(answers).items():
            read = str(encoder.tokenizer.decode(tokens, skip_special_tokens=True))
            if answer not in read:
                name = getattr(encoder.tokenizer, "name_or_path", "")
                raise DataError(
                    f"{self._benchmark.name}: the tokenizer{f' of {name}' if name else ''} cannot encode the "
                    f"answer {answer!r}: it reads {read!r}; leave this benchmark out for models with this "
                    "tokenizer"
                )

    def judge(self, number: int, answer: GenerateAnswer) -> Judgement:
        """Judge one written answer with EvalScope's extraction and metrics.

        Raises:
            ConfigError: this runs code that the model wrote, and the user has not allowed it.
        """
        from evalscope.metrics.aggregators import METRIC_WEIGHTS_KEY

        from evalsuite.protocols.replay import Replay

        if self._how.executes and not sandbox.allowed():
            raise ConfigError(f"{self._benchmark.name}: {sandbox.WHY}")
        sample = self._samples[number]
        chance = self._how.chance if self._how.chance is not None else self._benchmark.chance
        if chance == "per_document":
            chance = one_in(sample.choices or [])
        if answer.error:
            return Judgement.failed(answer.error, chance)
        with quiet_harness():
            replay = Replay(answer.text, answer.finish)
            state = self._adapter.run_inference(replay.model(), sample, "")
            try:
                with (
                    mathematics_without_forks(),
                    each_number_worked_out_once(),
                    same_dice(),
                    processor_limit(JUDGE_SECONDS),
                ):
                    score = self._adapter.calculate_metrics(state).score
            except TookTooLongError:
                return self._undecided(answer, sample, chance)
        # Metrics that EvalScope weighs (instructions of IFEval) are no means over documents, as ours are.
        weighed = score.metadata.get(METRIC_WEIGHTS_KEY, {})
        values = {name: float(value) for name, value in score.value.items() if name not in weighed}
        if self._how.metric not in values:
            reason = "; ".join(str(value) for value in score.metadata.values()) or "it gave no value"
            needs = f"; {self._benchmark.name} needs {self._benchmark.needs}" if self._benchmark.needs else ""
            return Judgement.failed(f"EvalScope could not judge the answer: {reason}{needs}"[:500], chance)
        extracted = str(score.extracted_prediction or "")
        target = score.metadata.get("target", sample.target)
        detail = {
            "response": answer.text,
            "extracted": extracted,
            "target": target if isinstance(target, str) else list(target),
            "finish": answer.finish,
            "tokens": len(answer.tokens),
        }
        outcome = outcome_of(answer, extracted, right=values[self._how.metric] >= 1)
        return Judgement(values, chance, outcome, detail)

    def _undecided(self, answer: GenerateAnswer, sample: Any, chance: float | None) -> Judgement:
        """An answer that the metric cannot make out is wrong: sympy may add fractions for hours."""
        detail = {
            "response": answer.text,
            "extracted": "",
            "target": sample.target if isinstance(sample.target, str) else list(sample.target),
            "finish": answer.finish,
            "tokens": len(answer.tokens),
            "judge": f"gave up after {JUDGE_SECONDS:g} s of processor time",
        }
        return Judgement({self._how.metric: 0.0}, chance, outcome_of(answer, "", right=False), detail)


def chat_text(benchmark: Benchmark, messages: Sequence[Message], tokenizer: Any) -> str:
    """Return messages as a chat, in which a prompt's own beginning of an answer is the assistant's.

    RULER ends its prompts with the first words of the answer and puts them behind the chat template
    (`answer_prefix` in its `prepare.py`; lm-eval's `gen_prefix`).

    Args:
        benchmark: whose prompt the last message is.
        messages: (role, text) pairs.
        tokenizer: whose chat template is applied.
    """
    role, text = messages[-1]
    at = len(text)
    if benchmark.generated is not None and benchmark.generated.generator == "sized":
        at = answer_begins(benchmark.generated.kind, text)
    return prompt_text([*messages[:-1], (role, text[:at])], "chat", tokenizer) + text[at:].lstrip()


def prompt_text(messages: Sequence[Message], prompt: str, tokenizer: Any | None) -> str:
    """Return the text that a model continues.

    Args:
        messages: (role, text) pairs.
        prompt: ``literal`` gives the text as it is.
        tokenizer: whose chat template is applied; None makes plain text: the messages, apart by a blank
            line, and a line break after which a base model may begin.
    """
    if prompt == "literal":
        return "".join(text for _, text in messages)
    if tokenizer is None:
        return "\n\n".join(text for _, text in messages) + "\n"
    chat = [{"role": role, "content": text} for role, text in messages]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


class Rows:
    """Rows in the columns that EvalScope expects, by the benchmark's Jinja expressions and template."""

    def __init__(self, how: Generation) -> None:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import SandboxedEnvironment

        strict = SandboxedEnvironment(keep_trailing_newline=True, undefined=StrictUndefined)
        self._template = None if how.template is None else strict.from_string(how.template)
        environment = SandboxedEnvironment()
        self._fields = {
            name: environment.compile_expression(expression, undefined_to_none=False)
            for name, expression in how.fields.items()
        }

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        # Some of EvalScope's benchmarks write into the row.
        own = deepcopy(dict(row))
        made = own | {name: expression(**own) for name, expression in self._fields.items()}
        return made if self._template is None else made | {"prompt": self._template.render(**made)}
