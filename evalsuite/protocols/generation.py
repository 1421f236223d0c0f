"""Generation protocol: EvalScope's benchmarks over our documents.

EvalScope builds the prompts (`load_dataset`, `run_inference` of its adapters) and computes the metrics
(`calculate_metrics`), with a model object that first records prompts and later replays responses. Its
loading, thread pool, caches and reports are not used.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from evalsuite.foundation import ConfigError, DataError, MissingDependencyError, content_hash, nearest
from evalsuite.foundation.extraction import Basis, basis_of, later_blocks, parts_before_next_question
from evalsuite.foundation.thoughts import CLOSE
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.protocols import compat_evalscope, sandbox
from evalsuite.protocols.isolation import CpuTimeExceededError, cpu_time_limit, quiet_harness, seeded_random
from evalsuite.protocols.outcomes import classify_outcome
from evalsuite.protocols.prompt_text import Message, chat_text, prompt_text, truncate_middle
from evalsuite.protocols.reasoning import UNCLOSED, answer_of, opens_reasoning
from evalsuite.protocols.request_set import RequestSet, Score, chance_of
from evalsuite.protocols.thinking import FORCED_CLOSE
from evalsuite.protocols.tokenization import Encoder
from evalsuite.tasks.benchmark import Benchmark, Generation
from evalsuite.tasks.sources.documents import Document

_NUMBER = "evalsuite_number"
SCORE_SECONDS = 10.0
"""Processor time after which the metric of one response is aborted."""
SEED = 42
"""EvalScope's default; choices are shuffled by it and the content of each document."""


class GenerationBenchmark:
    """One benchmark under generation, over some of its documents.

    Args:
        benchmark: the benchmark.
        documents: their order numbers requests and scores.
        num_fewshot: few-shot examples per prompt; EvalScope takes the first of `examples`.
        examples: documents for few-shot examples.

    Raises:
        ConfigError: an unknown EvalScope benchmark, one that executes code without the user's consent or
            outside the sandbox, or too few examples.
        DataError: EvalScope cannot read the rows, or drops some.
        MissingDependencyError: a package of the benchmark, or a supported version of EvalScope, is missing.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        documents: Sequence[Document],
        *,
        num_fewshot: int = 0,
        examples: Sequence[Document] = (),
    ) -> None:
        if benchmark.generation is None:
            raise ConfigError(f"{benchmark.name}: has no generation protocol")
        self._benchmark = benchmark
        self._spec: Generation = benchmark.generation
        self._documents = list(documents)
        self._rows = RowConverter(self._spec)
        with quiet_harness():
            self._adapter = self._make_adapter(num_fewshot, list(examples))
            self._samples = self._load_samples()

    def _make_adapter(self, num_fewshot: int, examples: list[Document]) -> Any:
        """Return EvalScope's adapter, with our documents in place of its data set."""
        from evalscope.api.registry import BENCHMARK_REGISTRY, get_benchmark
        from evalscope.config import TaskConfig

        from evalsuite.protocols.evalscope_adapter import NAME, ReplayModel

        name = self._spec.dataset
        options: dict[str, Any] = {"few_shot_num": num_fewshot, **self._spec.dataset_args}
        if name == "evalsuite":
            name = NAME
            options["extra_params"] = {"scorer": self._spec.scorer}
        if name not in BENCHMARK_REGISTRY:
            known = list(BENCHMARK_REGISTRY.keys())
            raise ConfigError(
                f"{self._benchmark.name}: no EvalScope benchmark '{name}'{nearest(name, known)}"
            )
        if refusal := sandbox.execution_refusal(self._spec.dataset):
            raise ConfigError(f"{self._benchmark.name}: 'dataset' = {self._spec.dataset}: {refusal}")
        options["subset_list"] = list(dict.fromkeys(self._subset(document) for document in self._documents))
        config = TaskConfig(
            model=ReplayModel(),
            eval_type="custom",
            datasets=[name],
            dataset_args={name: options},
            seed=SEED,
        )
        try:
            adapter = get_benchmark(name, config)
        except ImportError as error:
            raise MissingDependencyError(f"{self._benchmark.name}: {str(error).strip()}") from error
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{self._benchmark.name}: {error}") from error
        if name in sandbox.IN_SANDBOX:
            run = _run_for_output if name in sandbox.BY_OUTPUT else _run_with_tests
            compat_evalscope.replace_sandbox(adapter, run)
        if not any(document.subject for document in self._documents):
            # EvalScope would divide them by a column, and drop those of other values than it knows.
            adapter.reformat_subset = False
        compat_evalscope.count_words_for_tokens(adapter)
        numbered = list(enumerate(self._documents))
        compat_evalscope.replace_data_loading(
            adapter,
            lambda subset: self._dataset(adapter, subset, numbered),
            lambda subset: self._fewshot_dataset(adapter, subset, num_fewshot, examples),
        )
        return adapter

    def _subset(self, document: Document) -> str:
        source = self._benchmark.source
        return document.subject or (source.config if source is not None else None) or "default"

    def _dataset(self, adapter: Any, subset: str, numbered: list[tuple[int, Document]]) -> Any:
        """Return the documents of one subset as EvalScope samples, each with its number."""
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

    def _fewshot_dataset(self, adapter: Any, subset: str, num_fewshot: int, examples: list[Document]) -> Any:
        from evalscope.api.dataset.dataset import MemoryDataset

        found = [each for each in examples if adapter.reformat_subset or self._subset(each) == subset]
        if len(found) < num_fewshot:
            raise ConfigError(
                f"{self._benchmark.name}: num_fewshot = {num_fewshot}, but {subset} has only {len(found)} "
                "examples"
            )
        chosen = found if adapter.reformat_subset else found[:num_fewshot]
        return MemoryDataset([self._sample(adapter, document) for document in chosen])

    def _sample(self, adapter: Any, document: Document) -> Any:
        from jinja2 import TemplateError

        try:
            sample = adapter.record_to_sample(self._rows.convert(document.row))
        except (KeyError, ValueError, TypeError, IndexError, TemplateError) as error:
            reader = f"EvalScope's {self._spec.dataset}" if self._spec.scorer is None else "its template"
            raise DataError(
                f"{self._benchmark.name}: {reader} cannot read document {document.doc_id} ({error!r})"
            ) from error
        if isinstance(sample, list):
            raise DataError(
                f"{self._benchmark.name}: EvalScope makes {len(sample)} questions of one document"
            )
        return sample

    def _load_samples(self) -> list[Any]:
        """Apply EvalScope's templates, and return its samples in the order of the documents."""
        found: dict[int, Any] = {}
        for dataset in self._adapter.load_dataset().datasets.values():
            for sample in dataset:
                found[sample.metadata.pop(_NUMBER)] = sample
        missing = [document.doc_id for number, document in enumerate(self._documents) if number not in found]
        if missing:
            raise DataError(
                f"{self._benchmark.name}: EvalScope's {self._spec.dataset} drops {len(missing)} of "
                f"{len(self._documents)} documents, the first is {missing[0]}"
            )
        return [found[number] for number in range(len(self._documents))]

    def messages(self, number: int) -> list[Message]:
        """Return the chat messages that EvalScope sends for one document."""
        from evalsuite.protocols.evalscope_adapter import ReplayModel

        replay = ReplayModel()
        self._adapter.run_inference(replay.model(), self._samples[number], "")
        if len(replay.prompts) != 1:
            raise ConfigError(
                f"{self._benchmark.name}: EvalScope's {self._spec.dataset} sends {len(replay.prompts)} "
                "prompts "
                "per document; only single-turn benchmarks are supported"
            )
        return [(message.role, message.text) for message in replay.prompts[0]]

    def text(
        self, number: int, encoder: Encoder | None, *, chat_template: bool, max_length: int | None = None
    ) -> str:
        """Return the text that a model continues; see `prompt_text`.

        Args:
            number: of the document.
            encoder: of the model's tokenizer; None if it is unknown.
            chat_template: apply the tokenizer's chat template to chat prompts.
            max_length: positions of the model, for benchmarks that truncate longer prompts.

        Raises:
            ConfigError: the prompt cannot be truncated to this length.
        """
        messages = self.messages(number)
        tokenizer = encoder.tokenizer if encoder is not None else None
        chat = chat_template and self._spec.prompt == "chat"
        # Prompts of our own adapter are complete; only a chat template is applied to them.
        prompt = self._spec.prompt if chat or self._spec.scorer is None else "literal"

        def wrap(text: str) -> str:
            if chat:
                return chat_text(self._benchmark, [*messages[:-1], (messages[-1][0], text)], tokenizer)
            return prompt_text([*messages[:-1], (messages[-1][0], text)], prompt, None)

        text = self._documents[number].prefix + messages[-1][1]
        if self._spec.truncate is not None and encoder is not None and max_length is not None:
            # The benchmark's own limit, not a suite's: the prompt is then the same in every suite.
            how = self._spec.sampling
            room = max_length - how.max_new_tokens - (how.thinking_budget or 0)
            text = truncate_middle(text, room, encoder.encode, tokenizer, wrap)
        return wrap(text)

    def request_sets(
        self,
        encoder: Encoder,
        *,
        chat_template: bool,
        max_length: int | None = None,
        closes_thoughts: bool = False,
    ) -> list[RequestSet]:
        """Build the requests of every document for one tokenizer.

        Args:
            encoder: of the tokenizer.
            chat_template: apply the tokenizer's chat template to chat prompts; see `prompt_text`.
            max_length: positions of the models, for benchmarks that truncate longer prompts.
            closes_thoughts: whether there is a thinking budget.

        Raises:
            DataError: the tokenizer cannot encode the answer of a generated document, or `CLOSE`.
        """
        chat = chat_template and self._spec.prompt == "chat"
        self._check_answers(encoder)
        with quiet_harness():
            texts = [
                self.text(number, encoder, chat_template=chat_template, max_length=max_length)
                for number in range(len(self._documents))
            ]
        encoded = encoder.encode(texts)
        close = self._forced_close(encoder) if closes_thoughts else ()
        return [
            RequestSet(
                doc_id=document.doc_id,
                context=document.context,
                prompt_hash=content_hash(text),
                prompt=encoded[text] or (encoder.prefix_token_id,),
                in_reasoning=chat and opens_reasoning(text),
                close=close,
            )
            for document, text in zip(self._documents, texts, strict=True)
        ]

    def _forced_close(self, encoder: Encoder) -> tuple[int, ...]:
        """Return the tokens that close a thought."""
        tokens = encoder.encode_bare([FORCED_CLOSE])[FORCED_CLOSE]
        if CLOSE not in str(encoder.tokenizer.decode(tokens)):
            raise DataError(f"{self._benchmark.name}: 'thinking_budget': the tokenizer cannot encode {CLOSE}")
        return tokens

    def _check_answers(self, encoder: Encoder) -> None:
        """Refuse a tokenizer that cannot encode the answer of a generated document."""
        if self._benchmark.generated is None:
            return
        answers = [str(each) for document in self._documents for each in document.row.get("answers", ())]
        for answer, tokens in encoder.encode_bare(answers).items():
            decoded = str(encoder.tokenizer.decode(tokens, skip_special_tokens=True))
            if answer not in decoded:
                name = getattr(encoder.tokenizer, "name_or_path", "")
                raise DataError(
                    f"{self._benchmark.name}: the tokenizer{f' of {name}' if name else ''} cannot encode the "
                    f"answer {answer!r}: it decodes to {decoded!r}; exclude this benchmark for models with "
                    "this "
                    "tokenizer"
                )

    def score(self, number: int, response: GenerateResponse, *, in_reasoning: bool = False) -> Score:
        """Score one response with EvalScope's extraction and metrics.

        Unless the benchmark keeps reasoning, only what follows it is scored; a response that ends within it
        is wrong.

        Args:
            number: of the document.
            response: of a model.
            in_reasoning: whether the prompt opens a block of reasoning.
        """
        sample, metric = self._samples[number], self._spec.metric
        chance = self._benchmark.chance_under("generation")
        if chance == "per_document":
            row = self._documents[number].row
            chance = chance_of(sample.choices or (row.get("choices", ()) if self._spec.scorer else ()))
        if response.error:
            return Score.from_error(response.error, chance)
        answer: str | None = response.text
        if self._spec.reasoning == "strip":
            answer = answer_of(response.text, in_reasoning=in_reasoning)
        basis: Basis = "answer"
        ran_on, extracted = False, ""
        try:
            score = self._apply(sample, answer or "", response.finish_reason)
            values = _values(score)
            if answer is not None and metric in values:
                extracted = str(score.extracted_prediction or "")
                basis = self._basis(sample, answer, extracted)
                if values[metric] < 1:
                    better = partial(self._any_better, sample, response.finish_reason, values[metric])
                    ran_on = better(parts_before_next_question(self._spec.dataset, answer))
                    basis = "nothing" if better(later_blocks(self._spec.dataset, answer)) else basis
        except CpuTimeExceededError:
            # Whether it is right would depend on the speed of the processor.
            error = f"the metric was aborted after {SCORE_SECONDS:g} s of processor time"
            return Score.from_error(error, chance, _detail(response, "", sample.target), undecided=True)
        if metric not in values:
            reason = "; ".join(str(value) for value in score.metadata.values()) or "it returned no value"
            requires = self._benchmark.requires
            needs = f"; {self._benchmark.name} needs {requires}" if requires else ""
            error = f"EvalScope could not score the response: {reason}{needs}"[:500]
            return Score.from_error(error, chance, _detail(response, "", sample.target), undecided=True)
        target = score.metadata.get("target", sample.target)
        if answer is None:
            # Some metrics accept an empty response.
            values = dict.fromkeys(values, 0.0)
        correct = values[metric] >= 1
        if basis == "nothing" and not correct:
            extracted = ""
        outcome = classify_outcome(
            replace(response, text=answer or ""),
            extracted,
            correct=correct,
            guessed=basis == "guess",
            ran_on=ran_on,
        )
        detail = _detail(response, extracted, target) | ({"reason": UNCLOSED} if answer is None else {})
        return Score(values, chance, outcome, detail)

    def _apply(self, sample: Any, text: str, finish_reason: str) -> Any:
        """Return EvalScope's score of a text. Raises CpuTimeExceededError."""
        from evalsuite.protocols.evalscope_adapter import ReplayModel

        with quiet_harness():
            state = self._adapter.run_inference(ReplayModel(text, finish_reason).model(), sample, "")
            with (
                compat_evalscope.in_process_math(),
                compat_evalscope.cached_evalf(),
                seeded_random(),
                cpu_time_limit(SCORE_SECONDS),
            ):
                return self._adapter.calculate_metrics(state).score

    def _basis(self, sample: Any, text: str, extracted: str) -> Basis:
        options = [str(each) for each in sample.choices or ()]
        return basis_of(self._spec.dataset, text, extracted, options)

    def _any_better(self, sample: Any, finish_reason: str, value: float, parts: Iterable[str]) -> bool:
        """Return whether a part of a response scores more than `value`, other than by a guess.

        Raises CpuTimeExceededError.
        """
        for part in parts:
            score = self._apply(sample, part, finish_reason)
            basis = self._basis(sample, part, str(score.extracted_prediction or ""))
            if basis == "answer" and _values(score).get(self._spec.metric, 0.0) > value:
                return True
        return False


def _values(score: Any) -> dict[str, float]:
    """Values per metric, without those that have weights (IFEval's instructions).

    Those are not means over documents, as ours are.
    """
    from evalscope.metrics.aggregators import METRIC_WEIGHTS_KEY

    weighted = score.metadata.get(METRIC_WEIGHTS_KEY, {})
    return {name: float(value) for name, value in score.value.items() if name not in weighted}


def _detail(response: GenerateResponse, extracted: str, target: Any) -> dict[str, Any]:
    return {
        "response": response.text,
        "extracted": extracted,
        "target": target if isinstance(target, str) else list(target),
        "finish_reason": response.finish_reason,
        "tokens": len(response.tokens),
    }


def _run_with_tests(code: str) -> dict[str, Any]:
    """Run a program that contains its tests, and has to reach its end."""
    result = sandbox.run_limited(code)
    return {"status": "success" if result.passed else "error", "error": result.message}


def _run_for_output(code: str) -> dict[str, Any]:
    """Run a program that is scored by what it prints, and may exit anywhere."""
    result = sandbox.run_limited(code, seconds=sandbox.OUTPUT_SECONDS)
    status = "success" if result.exited else "error"
    return {"status": status, "error": result.message, "output": result.output}


class RowConverter:
    """Converts rows to the columns that EvalScope expects, by Jinja expressions and a template."""

    def __init__(self, spec: Generation) -> None:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import SandboxedEnvironment

        strict = SandboxedEnvironment(keep_trailing_newline=True, undefined=StrictUndefined)
        self._template = None if spec.prompt_template is None else strict.from_string(spec.prompt_template)
        environment = SandboxedEnvironment()
        self._fields = {
            name: environment.compile_expression(expression, undefined_to_none=False)
            for name, expression in spec.fields.items()
        }

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the row with the expected columns; some EvalScope benchmarks write into it."""
        own = deepcopy(dict(row))
        converted = own | {name: expression(**own) for name, expression in self._fields.items()}
        if self._template is None:
            return converted
        return converted | {"prompt": self._template.render(**converted)}
