"""`task_add` and `task_replace`: greedy search by scores on tasks, without training (arXiv 2601.11667)."""

from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from evalsuite.distill.selection.result import SelectionResult
from evalsuite.distill.selection.selector import SELECTORS, Start
from evalsuite.distill.selection.selectors.hybrid_search import HybridSearch
from evalsuite.foundation import content_hash
from evalsuite.foundation.strict import Seed

if TYPE_CHECKING:
    from evalsuite.distill.selection.context import SelectionContext
    from evalsuite.distill.selection.measured_sets import MeasuredSets


class TaskSearch(HybridSearch):
    """Greedy search by accuracy of hybrids on tasks; ties are broken by the log-probability of right answers.

    Questions are not those that benchmarks evaluate, and prompts have one form: they show no chat template
    and end where the answer begins.
    """

    source: ClassVar[str] = "Distill-then-Replace, arXiv 2601.11667"
    criterion: ClassVar[str] = "score"
    lower_is_better: ClassVar[bool] = False

    tasks: list[str] = Field(min_length=1)
    """Tasks, whose accuracies are averaged: benchmarks, by their few-shot split or by further generated
    documents; paths of benchmarks; or data sources of the recipe with prompts and completions."""
    protocol: Literal["loglikelihood", "generation"] = "loglikelihood"
    """Whether the right answer is the likeliest choice, where there are choices, or what greedy decoding
    gives."""
    num_examples: int = Field(default=200, gt=0)
    """Questions of each task."""
    seed: Seed = 0
    """Seed of the questions."""
    context: int | None = Field(default=None, gt=0)
    """Prompt length in tokens, for tasks that have several."""
    evaluated_documents: bool = False
    """Take the documents that runs evaluate, such as those of a file of one's own, which is a set for
    selection then: do not evaluate the student on them."""

    def criterion_title(self) -> str:
        return f"accuracy on {', '.join(self.tasks)} ({self.protocol})"

    def hybrids(self, context: "SelectionContext") -> Mapping[Start, "MeasuredSets"]:
        from evalsuite.distill.selection.hybrids import measured_hybrids
        from evalsuite.distill.selection.questions import task_questions
        from evalsuite.distill.selection.tasks import TaskSet

        questions = {
            task: task_questions(
                context,
                task,
                num_examples=self.num_examples,
                seed=self.seed,
                prompt_length=self.context,
                evaluated=self.evaluated_documents,
            )
            for task in self.tasks
        }
        with_choices = self.protocol == "loglikelihood"
        sets = [
            TaskSet(each, context.tokenizer, context.device, context.max_length, with_choices=with_choices)
            for each in questions.values()
        ]

        def evaluate(student: Any) -> tuple[float, ...]:
            found = [each.evaluate(student) for each in sets]
            accuracies, logprobs = zip(*found, strict=True)
            return (*accuracies, sum(accuracies) / len(sets), sum(logprobs) / len(sets))

        about = {
            "protocol": self.protocol,
            "tasks": {
                task: {"questions": len(found), "hash": content_hash([astuple(each) for each in found])}
                for task, found in questions.items()
            },
        }
        columns = (*(f"accuracy on {task}" for task in questions), "score", "logprob")
        return measured_hybrids(
            context, "tasks", about, columns, evaluate, cost=lambda row: (-row["score"], -row["logprob"])
        )

    def select(self, context: "SelectionContext", k: int) -> SelectionResult:
        result = self.search(context, k, 1)
        if not self.evaluated_documents:
            return result
        note = f"layers are selected by evaluated documents of {', '.join(self.tasks)}; evaluate on others"
        return replace(result, notes=(note,))


@SELECTORS.register("task_add")
class TaskAdd(TaskSearch):
    """Greedy search by accuracy on tasks, adding layers to the all-linear student."""


@SELECTORS.register("task_replace")
class TaskReplace(TaskSearch):
    """Greedy search by accuracy on tasks, replacing layers of the teacher."""

    start: ClassVar[Start] = "teacher"
