"""Measurements of transformers' `generate`, as a reference for our engines."""

import gc

import torch
import transformers

from evalsuite.foundation import ConfigError
from evalsuite.models.benchmark.gpu import Gpu, free_memory
from evalsuite.models.benchmark.points import Measurement, Point
from evalsuite.models.benchmark.subject import Benchmark, Subject, check_positions
from evalsuite.models.benchmark.timing import step_between, time_each
from evalsuite.models.checkpoints.load import Checkpoint

NEW_TOKENS = 17
"""Length of the longer of two responses; the difference to a single token is decoding."""


class GenerateBenchmark(Benchmark):
    """Measures greedy `generate` of a loaded model, with its default cache."""

    def __init__(self, checkpoint: Checkpoint, *, random_weights: bool = False) -> None:
        self.model = checkpoint.model
        self.device = self.model.device
        self.gpu = Gpu(self.device)
        self.subject = Subject.in_process(checkpoint, "transformers", random_weights=random_weights)

    def measure(self, point: Point) -> Measurement:
        """Raises ConfigError for decode points, which need a cache of our own."""
        if point.kind != "request":
            raise ConfigError("transformers' generate takes no synthetic caches; measure requests")
        check_positions(self.subject, point.context + NEW_TOKENS)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
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
        ttft = time_each(lambda: respond(1), point.repeats, self.device)
        whole = time_each(lambda: respond(NEW_TOKENS), point.repeats, self.device)
        on_gpu = self.device.type == "cuda"
        return self.subject.row(
            point,
            ttft_ms=ttft,
            step_ms=step_between(ttft, whole, NEW_TOKENS - 1),
            peak_bytes=torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            sm_clock_mhz=self.gpu.read().sm_clock_mhz,
            other_processes=self.gpu.other_processes(),
        )

    def release(self) -> None:
        gc.collect()
        free_memory(self.device)
