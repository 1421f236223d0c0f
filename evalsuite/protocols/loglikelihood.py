"""Asking by ranking log-likelihoods: lm-eval's tasks over documents of ours.

lm-eval makes the prompts (`fewshot_context`, `construct_requests`) and the metrics (`process_results`);
nothing of its loading, request cache, model loop or aggregation is used.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError, content_hash, nearest
from evalsuite.foundation.metrics import PERPLEXITIES
from evalsuite.models.engine.requests import ScoreAnswer
from evalsuite.protocols.encode import Encoder, grouped
from evalsuite.protocols.question import Judgement, Question, one_in
from evalsuite.protocols.quiet import quiet_harness, render_once, templates_parsed_once
from evalsuite.tasks.benchmark import Benchmark, LogLikelihood
from evalsuite.tasks.documents import Document

OURS = Path(__file__).parent / "lm_eval_tasks"
_NUMBER = "evalsuite_number"
_REPEATED = ("bits_per_byte",)
"""Metrics of lm-eval that say the same as another: it is byte_perplexity's logarithm in other units."""


class LogLikelihoodBenchmark:
    """One benchmark under log-likelihood, over some of its documents.

    Args:
        benchmark: what is asked.
        documents: in the order in which questions and judgements are numbered.
        shots: few-shot examples per prompt.
        examples: documents that examples are drawn from (of the same subject, where there are subjects).
        seed: of the draw, which is made anew for each document, from its content.

    Raises:
        ConfigError: the task file is missing or asks for text, or there are not enough examples.
        DataError: lm-eval cannot read the rows, or drops some.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        documents: Sequence[Document],
        *,
        shots: int = 0,
        examples: Sequence[Document] = (),
        seed: int = 0,
    ) -> None:
        if benchmark.loglikelihood is None:
            raise ConfigError(f"{benchmark.name}: has no loglikelihood protocol")
        self._benchmark = benchmark
        self._how: LogLikelihood = benchmark.loglikelihood
        self._documents = list(documents)
        self._seed = seed
        self._tasks: list[Any] = [None] * len(documents)
        self._docs: list[Any] = [None] * len(documents)
        self._renders_once = False
        with quiet_harness():
            for subject in dict.fromkeys(document.subject for document in documents):
                self._load(subject, shots, [each.row for each in examples if each.subject == subject])

    def _load(self, subject: str | None, shots: int, examples: list[dict[str, Any]]) -> None:
        """Build the task of one subject and note which of its docs is which document."""
        numbers = [number for number, document in enumerate(self._documents) if document.subject == subject]
        if shots > len(examples):
            raise ConfigError(
                f"{self._benchmark.name}: {shots} shots asked, {len(examples)} examples"
                f"{f' of {subject}' if subject else ''} to draw from"
            )
        rows = [self._documents[number].row | {_NUMBER: number} for number in numbers]
        task = _build(
            task_file(self._benchmark, subject), rows, examples if shots else [], shots, self._benchmark.name
        )
        known = [str(each["metric"]) for each in task.config.metric_list or []]
        if self._how.metric not in known:
            raise ConfigError(
                f"{self._benchmark.name}: no metric '{self._how.metric}' in "
                f"{self._how.task}{nearest(self._how.metric, known)}"
            )
        docs = list(task.eval_docs)
        if len(docs) != len(numbers):
            raise DataError(
                f"{self._benchmark.name}: lm-eval keeps {len(docs)} of {len(numbers)} documents"
                f"{f' of {subject}' if subject else ''}"
            )
        for position, doc in enumerate(docs):
            # A task that rebuilds its docs loses our column; it then keeps their order.
            number = doc.get(_NUMBER, numbers[position])
            self._tasks[number], self._docs[number] = task, doc

    def pairs(self, number: int) -> list[tuple[str, str]]:
        """The (context, continuation) texts that are scored for one document, as lm-eval makes them.

        A document whose whole text is scored (perplexity) is one pair with an empty context.
        """
        task, doc = self._tasks[number], self._docs[number]
        if hasattr(task, "sampler"):
            # lm-eval draws from one stream for all; a draw of its own keeps a document's prompt the same
            # whatever is asked before it.
            task.sampler.set_rnd(int(content_hash([self._seed, self._documents[number].doc_id]), 16))
        context = task.fewshot_context(
            doc, num_fewshot=task.config.num_fewshot or 0, gen_prefix=task.doc_to_prefix(doc)
        )
        made = task.construct_requests(doc=doc, ctx=context, metadata=(task.config.task, number, 1))
        instances = made if isinstance(made, list) else [made]
        return [("", *each.args) if len(each.args) == 1 else each.args for each in instances]

    def questions(self, encoder: Encoder, max_length: int) -> list[Question]:
        """Render every document for one tokenizer.

        Args:
            encoder: of the tokenizer.
            max_length: positions that the models read; only whole-text documents are cut by it.
        """
        with templates_parsed_once():
            texts = [self.pairs(number) for number in range(len(self._documents))]
        encoded = iter(
            encoder.pairs(
                [pair for each in texts for pair in each if not self._rolling(each)], begin=self._how.begin
            )
        )
        found = []
        for number, (document, pairs) in enumerate(zip(self._documents, texts, strict=True)):
            if self._rolling(pairs):
                tokens = encoder.rolling(pairs[0][1], max_length)
            else:
                tokens = [next(encoded) for _ in pairs]
            if not tokens:
                raise DataError(f"{self._benchmark.name}: document {self._documents[number].doc_id} is empty")
            requests, places = grouped(tokens)
            found.append(
                Question(
                    doc_id=document.doc_id,
                    context=document.context,
                    prompt_hash=content_hash(pairs),
                    scores=tuple(requests),
                    places=tuple(places),
                )
            )
        return found

    def _rolling(self, pairs: list[tuple[str, str]]) -> bool:
        return len(pairs) == 1 and pairs[0][0] == "" and self._tasks[0].OUTPUT_TYPE == "loglikelihood_rolling"

    def judge(self, number: int, question: Question, answers: Sequence[ScoreAnswer]) -> Judgement:
        """Judge the answers to one question with lm-eval's metrics.

        Returns:
            One value per metric of the task. A perplexity becomes the document's negative log-likelihood
            in nats, beside the count of its words or bytes.
        """
        if not self._renders_once:
            # Choices and gold answer are the same for every checkpoint.
            for task in {id(task): task for task in self._tasks}.values():
                mine = [doc for doc, its in zip(self._docs, self._tasks, strict=True) if its is task]
                render_once(task, mine)
            self._renders_once = True
        with templates_parsed_once():
            return self._judged(number, question, answers)

    def _judged(self, number: int, question: Question, answers: Sequence[ScoreAnswer]) -> Judgement:
        task, doc = self._tasks[number], self._docs[number]
        choices = task.doc_to_choice(doc) if task.OUTPUT_TYPE == "multiple_choice" else []
        chance = self._chance(choices)
        for answer in answers:
            if answer.error:
                return Judgement.failed(answer.error, chance)
        picked = [
            (answers[request].logprobs[k], answers[request].greedy[k]) for request, k in question.places
        ]
        if task.OUTPUT_TYPE == "loglikelihood_rolling":
            total = math.fsum(logprob for logprob, _ in picked)
            return Judgement(
                _values(task.process_results(doc, (total,))), chance, detail={"logprobs": [total]}
            )
        values = _values(task.process_results(doc, picked))
        detail = {
            "logprobs": [logprob for logprob, _ in picked],
            "greedy": [greedy for _, greedy in picked],
            "tokens": [answers[request].lengths[k] for request, k in question.places],
        }
        gold = _gold(task, doc)
        return Judgement(values, chance, detail=detail if gold is None else detail | {"gold": gold})

    def _chance(self, choices: Sequence[Any]) -> float | None:
        chance = self._how.chance if self._how.chance is not None else self._benchmark.chance
        return one_in(choices) if chance == "per_document" else chance


def task_file(benchmark: Benchmark, subject: str | None) -> Path:
    """Return the lm-eval task file of one subject of a benchmark. Raises ConfigError if there is none."""
    import lm_eval.tasks

    assert benchmark.loglikelihood is not None
    name = benchmark.loglikelihood.task.replace("{subject}", subject or "")
    ours, _, rest = name.partition("/")
    root = Path(str(lm_eval.tasks.__file__)).parent
    path = OURS / rest if ours == "evalsuite" else root / name
    if not path.is_file():
        raise ConfigError(f"{benchmark.name}: no lm-eval task file {name} (looked for {path})")
    return path


def _build(
    path: Path, rows: list[dict[str, Any]], examples: list[dict[str, Any]], shots: int, name: str
) -> Any:
    """Build lm-eval's task object from a task file, with rows of ours instead of its data set."""
    import datasets
    from jinja2 import TemplateError
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(path)
    if config.get("output_type") == "generate_until":
        raise ConfigError(
            f"{name}: {path.name} asks for text; only log-likelihoods are asked through lm-eval"
        )
    for key in ("tag", "group", "task_list", "dataset_path", "dataset_name", "dataset_kwargs"):
        config.pop(key, None)
    splits = {"documents": datasets.Dataset.from_list(rows)}
    if examples:
        splits["examples"] = datasets.Dataset.from_list(examples)
    drawn = config.get("fewshot_config")
    if isinstance(drawn, dict):
        drawn.pop("split", None)
    config |= {
        "custom_dataset": lambda **_: datasets.DatasetDict(splits),
        "test_split": "documents",
        "validation_split": None,
        "training_split": None,
        "fewshot_split": "examples" if examples else None,
        "num_fewshot": shots,
        "metadata": None,
    }
    try:
        return ConfigurableTask(config=config)
    except (KeyError, ValueError, TypeError, IndexError, TemplateError) as error:
        raise DataError(f"{name}: lm-eval's {path.name} cannot read the rows ({error!r})") from error


def _values(results: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of one document; lm-eval's log-likelihoods change their sign, to nats per document."""
    values: dict[str, float] = {}
    for metric, result in results.items():
        if metric in _REPEATED:
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


def _gold(task: Any, doc: Any) -> int | list[int] | None:
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    whole = isinstance(gold, int) or (isinstance(gold, list) and all(isinstance(each, int) for each in gold))
    return gold if whole else None
