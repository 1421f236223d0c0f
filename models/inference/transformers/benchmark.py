"""Measurements of transformers' `generate`, as a reference for our engines."""

import torch
import transformers

from evalsuite.foundation import ConfigError
from evalsuite.foundation.efficiency import EfficiencyRow
from evalsuite.models.benchmark.points import Point
from evalsuite.models.benchmark.subject import InProcessBenchmark
from evalsuite.models.benchmark.timing import time_responses
from evalsuite.models.checkpoints.load import Checkpoint

NEW_TOKENS = 17
"""Length of the longer of two responses; the difference to a single token is decoding."""


class GenerateBenchmark(InProcessBenchmark):
    """Measures greedy `generate` of a loaded model, with its default cache."""

    def __init__(self, checkpoint: Checkpoint, *, random_weights: bool = False) -> None:
        super().__init__(checkpoint, "transformers", random_weights=random_weights)

    def measure(self, point: Point) -> EfficiencyRow:
        """Raises ConfigError for decode points, which need a cache of our own."""
        if point.kind != "request":
            raise ConfigError("transformers' generate takes no synthetic caches; measure requests")
        self.subject.check_positions(point.context + NEW_TOKENS)
        self.gpu.begin_point()
        generator = torch.Generator().manual_seed(0)
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        size = point.batch, point.context
        prompts = torch.randint(vocabulary, size, generator=generator).to(self.device)

        def respond(count: int) -> None:
            config = transformers.GenerationConfig(
                max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0
            )
            with torch.inference_mode():
                found = self.model.generate(  # type: ignore[operator]  # a mixin's method
                    prompts, attention_mask=torch.ones_like(prompts), generation_config=config
                )
            assert found.shape[1] == point.context + count, found.shape

        respond(2)
        timed = time_responses(respond, NEW_TOKENS, point.repeats, self.device)
        return self.subject.row(point, **timed, **self.gpu.facts())
