"""EvalScope types of ours: a model that replays responses, and a benchmark for rows with a prompt.

Import this module only where EvalScope is used; importing it registers the benchmark under `NAME`.
"""

from typing import Any

from evalscope.api.benchmark import BenchmarkMeta, DefaultDataAdapter
from evalscope.api.dataset import Sample
from evalscope.api.evaluator import TaskState
from evalscope.api.messages import ChatMessage
from evalscope.api.metric import Score
from evalscope.api.model import GenerateConfig, Model, ModelAPI, ModelOutput
from evalscope.api.registry import register_benchmark

from evalsuite.protocols.scorers import SCORERS

NAME = "evalsuite_prompt"


class ReplayModel(ModelAPI):
    """A model that records its prompts and returns one fixed response.

    Args:
        text: the response.
        finish_reason: finish reason of the response, in the engine's words.
    """

    def __init__(self, text: str = "", finish_reason: str = "stop") -> None:
        super().__init__(model_name="evalsuite")
        self.text = text
        self.finish_reason = finish_reason
        self.prompts: list[list[ChatMessage]] = []

    def generate(
        self, input: list[ChatMessage], tools: list[Any], tool_choice: Any, config: GenerateConfig
    ) -> ModelOutput:
        """Record the messages and return the response."""
        self.prompts.append(list(input))
        output = ModelOutput.from_content(model="evalsuite", content=self.text)
        output.choices[0].stop_reason = "max_tokens" if self.finish_reason == "length" else "stop"
        return output

    def model(self) -> Model:
        """Return the object that EvalScope's adapters call."""
        return Model(self, GenerateConfig())


@register_benchmark(
    BenchmarkMeta(
        name=NAME,
        pretty_name="Rows with a prompt",
        dataset_id=NAME,
        metric_list=["accuracy"],
        eval_split="test",
        extra_params={"scorer": {"type": "str", "description": "A name in SCORERS.", "value": ""}},
    )
)
class PromptAdapter(DefaultDataAdapter):
    """Sends the prompt of a row as it is, and applies one of our scorers."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        name = str(self.extra_params["scorer"])
        self._scorer = SCORERS.get_or_raise(name)
        # Fail before inference, not after hours of it, if the scorer's package is missing.
        self._scorer.check_packages(f"scorer '{name}'")

    def record_to_sample(self, record: dict[str, Any]) -> Sample:
        """Return a sample whose metadata is the row."""
        return Sample(input=record["prompt"], metadata=record)

    def format_prompt_template(self, sample: Sample) -> str:
        """Return the prompt as it is."""
        return str(sample.input)

    def extract_answer(self, prediction: str, task_state: TaskState) -> str:
        """Return the answer that the scorer extracts."""
        return self._scorer(task_state.metadata, prediction).extracted

    def match_score(
        self, original_prediction: str, filtered_prediction: str, reference: str, task_state: TaskState
    ) -> Score:
        """Return the scorer's values."""
        scored = self._scorer(task_state.metadata, original_prediction)
        return Score(
            value=dict(scored.values),
            extracted_prediction=scored.extracted,
            prediction=original_prediction,
            metadata={"target": scored.target},
        )
