"""The model that EvalScope sees: it notes what it is asked, and answers with what was written elsewhere.

Imported only where EvalScope is used.
"""

from typing import Any

from evalscope.api.messages import ChatMessage
from evalscope.api.model import GenerateConfig, Model, ModelAPI, ModelOutput

NAME = "evalsuite"


class Replay(ModelAPI):
    """A ModelAPI that holds one answer.

    Args:
        text: what it answers.
        finish: how that answer ended, in the engine's words.
    """

    def __init__(self, text: str = "", finish: str = "stop") -> None:
        super().__init__(model_name=NAME)
        self.text = text
        self.finish = finish
        self.asked: list[list[ChatMessage]] = []

    def generate(
        self, input: list[ChatMessage], tools: list[Any], tool_choice: Any, config: GenerateConfig
    ) -> ModelOutput:
        """Note the messages and answer."""
        self.asked.append(list(input))
        output = ModelOutput.from_content(model=NAME, content=self.text)
        output.choices[0].stop_reason = "max_tokens" if self.finish == "length" else "stop"
        return output

    def model(self) -> Model:
        """This API as the object that adapters call."""
        return Model(self, GenerateConfig())
