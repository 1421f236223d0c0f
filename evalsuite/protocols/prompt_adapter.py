"""An EvalScope benchmark for rows that bring their own prompt: ``{"prompt": …, …}``, judged by one of ours.

Imported only where EvalScope is used; importing it registers the benchmark under `NAME`.
"""

from typing import Any

from evalscope.api.benchmark import BenchmarkMeta, DefaultDataAdapter
from evalscope.api.dataset import Sample
from evalscope.api.evaluator import TaskState
from evalscope.api.metric import Score
from evalscope.api.registry import register_benchmark

from evalsuite.foundation import ConfigError, nearest
from evalsuite.protocols import longbench
from evalsuite.protocols.judges import JUDGES

NAME = "evalsuite_prompt"


@register_benchmark(
    BenchmarkMeta(
        name=NAME,
        pretty_name="Rows with a prompt",
        dataset_id=NAME,
        metric_list=["accuracy"],
        eval_split="test",
        extra_params={"judge": {"type": "str", "description": "How answers are judged.", "value": ""}},
    )
)
class PromptAdapter(DefaultDataAdapter):
    """Gives the prompt to the model as it is and lets the named judge decide."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        name = str(self.extra_params["judge"])
        if name not in JUDGES:
            raise ConfigError(f"unknown judge '{name}'{nearest(name, JUDGES)}")
        # A package that judging needs is missed now, not after a night of answering.
        longbench.require(name)
        self._judge = JUDGES[name]

    def record_to_sample(self, record: dict[str, Any]) -> Sample:
        """A sample whose metadata is the row."""
        return Sample(input=record["prompt"], metadata=record)

    def format_prompt_template(self, sample: Sample) -> str:
        """The prompt as it is."""
        return str(sample.input)

    def extract_answer(self, prediction: str, task_state: TaskState) -> str:
        """What the judge reads out of the prediction."""
        return self._judge(task_state.metadata, prediction).extracted

    def match_score(
        self, original_prediction: str, filtered_prediction: str, reference: str, task_state: TaskState
    ) -> Score:
        """The judge's values."""
        verdict = self._judge(task_state.metadata, original_prediction)
        return Score(
            value=dict(verdict.values),
            extracted_prediction=verdict.extracted,
            prediction=original_prediction,
            metadata={"target": verdict.target},
        )
