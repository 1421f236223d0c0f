"""Scores of lm-eval and EvalScope by themselves: their own loading, templates, loops, metrics and averages.

`evalsuite.protocols` builds no prompt and computes no score here; the harnesses read the documents from
files.
"""

import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.protocols.generation import SEED, RowConverter
from evalsuite.protocols.isolation import quiet_harness
from evalsuite.protocols.loglikelihood import task_file
from evalsuite.protocols.prompt_text import Message
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.sources.documents import Document

Scores = dict[str, float]
"""Metric → score, as the harness reports it."""


@dataclass(frozen=True, kw_only=True)
class HarnessInput:
    """Input of a harness: one benchmark under one protocol."""

    benchmark: Benchmark
    documents: Sequence[Document]
    num_fewshot: int = 0
    examples: Sequence[Document] = ()

    def subjects(self) -> list[str | None]:
        """Return the subjects of the documents, in their order."""
        return list(dict.fromkeys(document.subject for document in self.documents))

    def of(self, subject: str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return rows and few-shot examples of one subject."""
        return (
            [each.row for each in self.documents if each.subject == subject],
            [each.row for each in self.examples if each.subject == subject],
        )


def lm_eval_scores(given: HarnessInput, checkpoint: Any, max_length: int, batch: int = 1) -> Scores:
    """Return the scores of `lm_eval.simple_evaluate` with HFLM, `batch` sequences at a time.

    Every subject is a task; scores are averaged over documents, as in lm-eval's groups.
    """
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    with TemporaryDirectory(prefix="evalsuite-") as folder, quiet_harness():
        tasks = [
            _lm_eval_task(Path(folder), given, subject, number, checkpoint.tokenizer)
            for number, subject in enumerate(given.subjects())
        ]
        model = HFLM(
            pretrained=checkpoint.model,
            tokenizer=checkpoint.tokenizer,
            batch_size=batch,
            max_length=max_length,
        )
        with silent():
            results = lm_eval.simple_evaluate(
                model,
                tasks=[name for name, _ in tasks],
                task_manager=TaskManager(include_path=folder, include_defaults=False),
                bootstrap_iters=0,
                log_samples=False,
            )
    assert results is not None
    return _averaged(results["results"], tasks)


def _lm_eval_task(
    folder: Path, given: HarnessInput, subject: str | None, number: int, tokenizer: Any
) -> tuple[str, int]:
    """Write one lm-eval task; return its name and number of documents."""
    name = f"{given.benchmark.name}__{number}"
    how = given.benchmark.loglikelihood
    assert how is not None
    rows, examples = given.of(subject)
    if how.add_bos_token:
        # lm-eval cannot add a BOS token that the tokenizer does not add by default, except as text.
        rows = [row | {"prompt": tokenizer.bos_token + row["prompt"]} for row in rows]
    files = {"test": str(_lines(folder / name / "test.jsonl", rows))}
    if given.num_fewshot:
        files["examples"] = str(_lines(folder / name / "examples.jsonl", examples))
    task = {
        "include": str(task_file(given.benchmark, subject)),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, "cache_dir": str(folder / "cache")},
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "fewshot_split": "examples" if given.num_fewshot else None,
        "num_fewshot": given.num_fewshot,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(task))
    return name, len(rows)


def _averaged(results: Mapping[str, Any], tasks: Sequence[tuple[str, int]]) -> Scores:
    total = sum(count for _, count in tasks)
    metrics = [key.removesuffix(",none") for key in results[tasks[0][0]] if key.endswith(",none")]
    return {
        metric: sum(float(results[name][f"{metric},none"]) * count for name, count in tasks) / total
        for metric in metrics
        if not metric.endswith("_stderr")
    }


Texts = Mapping[tuple[Message, ...], str]
"""Response to each list of messages."""


def evalscope_scores(given: HarnessInput, texts: Texts) -> Scores:
    """Return the scores of `evalscope.run_task` with a model that replays our responses.

    Raises:
        DataError: EvalScope sends a prompt without a response.
    """
    from evalscope import TaskConfig, run_task
    from evalscope.api.messages import ChatMessage
    from evalscope.api.model import GenerateConfig, ModelAPI, ModelOutput

    class Replay(ModelAPI):
        unknown: list[str] = []  # noqa: RUF012 -- one object per call of this function

        def generate(
            self, input: list[ChatMessage], tools: Any, tool_choice: Any, config: GenerateConfig
        ) -> ModelOutput:
            messages = tuple((message.role, message.text) for message in input)
            if messages not in texts:
                self.unknown.append(messages[-1][1])
            return ModelOutput.from_content(model="replay", content=texts.get(messages, ""))

    how = given.benchmark.generation
    assert how is not None
    replay = Replay(model_name="replay")
    with TemporaryDirectory(prefix="evalsuite-") as folder, quiet_harness(), _cache_in(folder):
        subsets = _evalscope_folder(Path(folder, "data"), given)
        options = {
            "dataset_id": str(Path(folder, "data")),
            "few_shot_num": given.num_fewshot,
            "subset_list": subsets,
            **how.dataset_args,
        }
        config = TaskConfig(
            model=replay,
            model_id="replay",
            eval_type="custom",
            datasets=[how.dataset],
            dataset_args={how.dataset: options},
            generation_config={"temperature": 0.0},
            work_dir=str(Path(folder, "out")),
            no_timestamp=True,
            seed=SEED,
            eval_batch_size=1,
            collect_perf=False,
        )
        with silent():
            reports = run_task(config)
    if replay.unknown:
        raise DataError(
            f"{given.benchmark.name}: EvalScope sends {len(replay.unknown)} prompts without a "
            f"response, such as {replay.unknown[0][:200]!r}"
        )
    scores = {metric.identity.name: float(metric.score) for metric in reports[how.dataset].metrics}
    # Its reports and its samples use different names for one metric.
    return scores | ({"acc": scores["accuracy"]} if "accuracy" in scores else {})


@contextmanager
def silent() -> Iterator[None]:
    """Drop logs and progress bars of a harness; EvalScope reconfigures its loggers whenever it runs."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    """Cache data sets below a folder: `datasets` takes two folders of one name for one data set."""
    import datasets

    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = Path(folder, "cache")
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before


def _evalscope_folder(folder: Path, given: HarnessInput) -> list[str]:
    """Write documents and examples as a hub repository; return EvalScope's subset names."""
    from evalscope.api.registry import get_benchmark
    from evalscope.config import TaskConfig

    how = given.benchmark.generation
    assert how is not None
    convert = RowConverter(how).convert
    adapter = get_benchmark(how.dataset, TaskConfig(model="none", datasets=[how.dataset]))
    source = given.benchmark.source
    default = (source.config if source is not None else None) or "default"
    subjects = given.subjects()
    configs: dict[str, list[str | None]] = {subject or default: [subject] for subject in subjects}
    if adapter.reformat_subset:
        configs = {adapter.default_subset: list(subjects)}
    lines = ["---", "configs:"]
    for name, parts in configs.items():
        rows, examples = (
            [convert(row) for part in parts for row in given.of(part)[which]] for which in (0, 1)
        )
        lines += [f"- config_name: {json.dumps(name)}", "  data_files:"]
        splits = {adapter.eval_split: rows} | ({adapter.train_split: examples} if given.num_fewshot else {})
        for split, content in splits.items():
            if split and content:
                _lines(folder / name / f"{split}.jsonl", content)
                lines += [f"  - split: {split}", f"    path: {json.dumps(f'{name}/{split}.jsonl')}"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))
    return [subject or default for subject in subjects]


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows))
    return path
