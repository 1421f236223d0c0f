"""Log-likelihood protocol: lm-eval's tasks over our documents.

lm-eval builds the prompts (`fewshot_context`, `construct_requests`) and computes the metrics
(`process_results`); its loading, request cache, model loop and aggregation are not used.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.foundation import ConfigError, DataError, content_hash, nearest
from evalsuite.foundation.taxonomy import PERPLEXITIES
from evalsuite.models.inference.requests import ScoreResponse
from evalsuite.protocols import compat_lm_eval
from evalsuite.protocols.isolation import quiet_harness
from evalsuite.protocols.prompt_text import truncate_middle
from evalsuite.protocols.request_set import RequestSet, Score, chance_of
from evalsuite.protocols.tokenization import Encoder, group_by_context
from evalsuite.tasks.benchmark import Benchmark, LogLikelihood
from evalsuite.tasks.sources.documents import Document

TASK_FOLDER = Path(__file__).parent / "lm_eval_tasks"
"""Task files of ours, in lm-eval's format."""
_NUMBER = "evalsuite_number"
_REDUNDANT = ("bits_per_byte",)
"""Metrics of lm-eval that are functions of another: this one is byte_perplexity's logarithm."""


class LogLikelihoodBenchmark:
    """One benchmark under log-likelihood, over some of its documents.

    Args:
        benchmark: the benchmark.
        documents: their order numbers requests and scores.
        num_fewshot: few-shot examples per prompt.
        examples: documents that examples are drawn from (of the same subject, if there are subjects).
        seed: of the draw, which is made per document from its content.
        trust_remote_code: allow a task file that is not lm-eval's or ours; it can run Python.

    Raises:
        ConfigError: the task file is missing, is not trusted or generates text, or there are too few
            examples.
        DataError: lm-eval cannot read the rows, or drops some.
        MissingDependencyError: the installed version of lm-eval is not supported.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        documents: Sequence[Document],
        *,
        num_fewshot: int = 0,
        examples: Sequence[Document] = (),
        seed: int = 0,
        trust_remote_code: bool = False,
    ) -> None:
        if benchmark.loglikelihood is None:
            raise ConfigError(f"{benchmark.name}: has no loglikelihood protocol")
        self._benchmark = benchmark
        self._spec: LogLikelihood = benchmark.loglikelihood
        self._documents = list(documents)
        self._seed = seed
        self._trust_remote_code = trust_remote_code
        self._tasks: list[Any] = [None] * len(documents)
        self._docs: list[Any] = [None] * len(documents)
        self._caches_fields = False
        with quiet_harness():
            for subject in dict.fromkeys(document.subject for document in documents):
                rows = [each.row for each in examples if each.subject == subject]
                self._load_subject(subject, num_fewshot, rows)

    def _load_subject(self, subject: str | None, num_fewshot: int, examples: list[dict[str, Any]]) -> None:
        """Build the task of one subject, and match its docs to our documents."""
        numbers = [number for number, document in enumerate(self._documents) if document.subject == subject]
        if num_fewshot > len(examples):
            raise ConfigError(
                f"{self._benchmark.name}: num_fewshot = {num_fewshot}, but there are only {len(examples)} "
                f"examples{f' of {subject}' if subject else ''}"
            )
        rows = [self._documents[number].row | {_NUMBER: number} for number in numbers]
        task = _make_task(
            task_file(self._benchmark, subject, trust_remote_code=self._trust_remote_code),
            rows,
            examples if num_fewshot else [],
            num_fewshot,
            self._benchmark.name,
        )
        known = [str(each["metric"]) for each in task.config.metric_list or []]
        if self._spec.metric not in known:
            raise ConfigError(
                f"{self._benchmark.name}: no metric '{self._spec.metric}' in "
                f"{self._spec.task}{nearest(self._spec.metric, known)}"
            )
        docs = list(task.eval_docs)
        if len(docs) != len(numbers):
            raise DataError(
                f"{self._benchmark.name}: lm-eval drops {len(numbers) - len(docs)} of {len(numbers)} "
                "documents"
                f"{f' of {subject}' if subject else ''}"
            )
        for position, doc in enumerate(docs):
            # A task that rebuilds its docs loses our column, but preserves their order.
            number = doc.get(_NUMBER, numbers[position])
            self._tasks[number], self._docs[number] = task, doc

    def pairs(self, number: int) -> list[tuple[str, str]]:
        """Return lm-eval's (context, continuation) texts of one document.

        A document whose whole text is scored (perplexity) is one pair with an empty context.
        """
        task, doc = self._tasks[number], self._docs[number]
        seed = int(content_hash([self._seed, self._documents[number].doc_id]), 16)
        compat_lm_eval.seed_fewshot_sampler(task, seed)
        context = task.fewshot_context(
            doc, num_fewshot=task.config.num_fewshot or 0, gen_prefix=task.doc_to_prefix(doc)
        )
        built = task.construct_requests(doc=doc, ctx=context, metadata=(task.config.task, number, 1))
        instances = built if isinstance(built, list) else [built]
        pairs = [("", *each.args) if len(each.args) == 1 else each.args for each in instances]
        prefix = self._documents[number].prefix
        if prefix and task.OUTPUT_TYPE == "loglikelihood_rolling":
            raise ConfigError(f"{self._benchmark.name}: 'prefix' needs prompts; its whole text is scored")
        return [(prefix + context, continuation) for context, continuation in pairs]

    def request_sets(self, encoder: Encoder, max_length: int) -> list[RequestSet]:
        """Build the requests of every document for one tokenizer.

        Args:
            encoder: of the tokenizer.
            max_length: positions of the models; whole-text documents are split by it, and contexts cut where
                the benchmark says so.

        Raises:
            ConfigError: a context cannot be cut to this length.
        """
        with compat_lm_eval.cached_template_parsing():
            texts = [self.pairs(number) for number in range(len(self._documents))]
        if self._spec.truncate is not None:
            texts = [_truncated(pairs, encoder, max_length) for pairs in texts]
        encoded = iter(
            encoder.pairs(
                [pair for each in texts for pair in each if not self._is_rolling(each)],
                add_bos_token=self._spec.add_bos_token,
            )
        )
        found = []
        for number, (document, pairs) in enumerate(zip(self._documents, texts, strict=True)):
            if self._is_rolling(pairs):
                # Without text there is nothing to score, which the engine refuses as it does choices.
                tokens = encoder.rolling(pairs[0][1], max_length) or [((encoder.prefix_token_id,), ())]
            else:
                tokens = [next(encoded) for _ in pairs]
            if not tokens:
                raise DataError(f"{self._benchmark.name}: document {self._documents[number].doc_id} is empty")
            requests, choices = group_by_context(tokens)
            found.append(
                RequestSet(
                    doc_id=document.doc_id,
                    context=document.context,
                    prompt_hash=content_hash(pairs),
                    score_requests=tuple(requests),
                    choices=tuple(choices),
                )
            )
        return found

    def _is_rolling(self, pairs: list[tuple[str, str]]) -> bool:
        return len(pairs) == 1 and pairs[0][0] == "" and self._tasks[0].OUTPUT_TYPE == "loglikelihood_rolling"

    def score(self, number: int, request_set: RequestSet, responses: Sequence[ScoreResponse]) -> Score:
        """Score the responses to one document with lm-eval's metrics.

        Returns:
            One value per metric of the task. A perplexity is stored as the document's negative log-likelihood
            in nats, with its count of words or bytes.
        """
        if not self._caches_fields:
            # Choices and gold answer are the same for every checkpoint.
            for task in {id(task): task for task in self._tasks}.values():
                docs = [doc for doc, its in zip(self._docs, self._tasks, strict=True) if its is task]
                compat_lm_eval.cache_rendered_fields(task, docs)
            self._caches_fields = True
        with compat_lm_eval.cached_template_parsing():
            return self._score(number, request_set, responses)

    def _score(self, number: int, request_set: RequestSet, responses: Sequence[ScoreResponse]) -> Score:
        task, doc = self._tasks[number], self._docs[number]
        choices = task.doc_to_choice(doc) if task.OUTPUT_TYPE == "multiple_choice" else []
        chance = self._chance(choices)
        for response in responses:
            if response.error:
                return Score.from_error(response.error, chance)
        results = [
            (responses[request].logprobs[k], responses[request].greedy[k])
            for request, k in request_set.choices
        ]
        if task.OUTPUT_TYPE == "loglikelihood_rolling":
            total = math.fsum(logprob for logprob, _ in results)
            return Score(_values(task.process_results(doc, (total,))), chance, detail={"logprobs": [total]})
        values = _values(task.process_results(doc, results))
        logprobs = [logprob for logprob, _ in results]
        detail = {
            "logprobs": logprobs,
            "greedy": [greedy for _, greedy in results],
            "tokens": [responses[request].lengths[k] for request, k in request_set.choices],
        }
        gold = _gold(task, doc)
        return Score(
            values,
            chance,
            detail=detail if gold is None else detail | {"gold": gold},
            choices=_choices(task, choices, logprobs, values),
        )

    def _chance(self, choices: Sequence[Any]) -> float | None:
        chance = self._benchmark.chance_under("loglikelihood")
        return chance_of(choices) if chance == "per_document" else chance


def _truncated(pairs: list[tuple[str, str]], encoder: Encoder, max_length: int) -> list[tuple[str, str]]:
    """Cut the middle of contexts that leave no room for the longest choice."""
    choices = encoder.encode_bare([continuation for _, continuation in pairs])
    room = max_length - max(map(len, choices.values()))
    cut = {
        context: truncate_middle(context, room, encoder.encode, encoder.tokenizer, str)
        for context in {context for context, _ in pairs}
    }
    return [(cut[context], continuation) for context, continuation in pairs]


def task_file(benchmark: Benchmark, subject: str | None, *, trust_remote_code: bool = False) -> Path:
    """Return the lm-eval task file of one subject of a benchmark.

    Raises:
        ConfigError: there is no such file, or it is neither lm-eval's nor ours and not trusted.
    """
    import lm_eval.tasks

    assert benchmark.loglikelihood is not None
    name = benchmark.loglikelihood.task.replace("{subject}", subject or "")
    folder, _, rest = name.partition("/")
    root = Path(str(lm_eval.tasks.__file__)).parent
    path = TASK_FOLDER / rest if folder == "evalsuite" else root / name
    if not path.is_file():
        raise ConfigError(f"{benchmark.name}: no lm-eval task file {name} (expected at {path})")
    # Links are not followed: an editable install consists of links to the files of its checkout.
    place, *trusted = (Path(os.path.abspath(each)) for each in (path, root, TASK_FOLDER))
    if not trust_remote_code and not any(place.is_relative_to(each) for each in trusted):
        raise ConfigError(
            f"{benchmark.name}: 'task' = {name}: a task file outside lm-eval can run Python (!function, "
            f"include, templates); read {path.resolve()} and pass --trust-remote-code if you trust it"
        )
    return path


def _make_task(
    path: Path, rows: list[dict[str, Any]], examples: list[dict[str, Any]], num_fewshot: int, name: str
) -> Any:
    """Return lm-eval's task object of a task file, with our rows in place of its data set."""
    import datasets
    from jinja2 import TemplateError
    from lm_eval.api.task import ConfigurableTask

    # The modules of lm-eval's generation tasks may load metrics that execute code: they are not imported.
    kind = compat_lm_eval.load_task_config(path, import_code=False).get("output_type", "generate_until")
    if kind == "generate_until":
        raise ConfigError(
            f"{name}: {path.name} generates text; lm-eval tasks are used for log-likelihood only"
        )
    config = compat_lm_eval.load_task_config(path)
    for key in ("tag", "group", "task_list", "dataset_path", "dataset_name", "dataset_kwargs"):
        config.pop(key, None)
    splits = {"documents": datasets.Dataset.from_list(rows)}
    if examples:
        splits["examples"] = datasets.Dataset.from_list(examples)
    fewshot_config = config.get("fewshot_config")
    if isinstance(fewshot_config, dict):
        fewshot_config.pop("split", None)
    config |= {
        "custom_dataset": lambda **_: datasets.DatasetDict(splits),
        "test_split": "documents",
        "validation_split": None,
        "training_split": None,
        "fewshot_split": "examples" if examples else None,
        "num_fewshot": num_fewshot,
        "metadata": None,
    }
    try:
        return ConfigurableTask(config=config)
    except (KeyError, ValueError, TypeError, IndexError, TemplateError) as error:
        raise DataError(f"{name}: lm-eval's {path.name} cannot read the rows ({error!r})") from error


def _values(results: Mapping[str, Any]) -> dict[str, float]:
    """Return one document's values; lm-eval's log-likelihoods are negated, to nats per document."""
    values: dict[str, float] = {}
    for metric, result in results.items():
        if metric in _REDUNDANT:
            continue
        if metric in PERPLEXITIES:
            units = PERPLEXITIES[metric]
            values[metric] = -float(result if units is None else result[0])
            if units is not None:
                values[units] = float(result[1])
        elif isinstance(result, bool | int | float):
            values[metric] = float(result)
        else:
            raise ConfigError(f"metric '{metric}' is not a number per document; choose another in the task")
    return values


def _choices(
    task: Any, choices: Sequence[str], logprobs: Sequence[float], values: Mapping[str, float]
) -> dict[str, int]:
    """Return the index of the choice that each metric picks.

    As lm-eval's `ConfigurableTask.process_results`: `acc` takes the highest log-probability, `acc_norm` that
    per character, `acc_bytes` that per byte. None are known for a task with a `process_results` of its own,
    and for mutual information, which scores every choice twice.
    """
    if not choices or len(choices) != len(logprobs) or callable(task.config.process_results):
        return {}
    lengths = {
        "acc": [1] * len(choices),
        "acc_norm": [len(choice) for choice in choices],
        "acc_bytes": [len(choice.encode()) for choice in choices],
    }
    return {
        metric: int(np.argmax(np.divide(logprobs, lengths[metric])))
        for metric in values
        if metric in lengths and all(lengths[metric])
    }


def _gold(task: Any, doc: Any) -> int | list[int] | None:
    """Return the index or indices of the gold choices; None if the task has no choices."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    valid = isinstance(gold, int) or (isinstance(gold, list) and all(isinstance(each, int) for each in gold))
    return gold if valid else None
