"""Teacher responses to prompts, as training data.

Responses go through the inference engine and its cache, so that an interrupted run generates only the missing
ones. Each process of a run generates its share into the same cache.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from evalsuite.distill.data.preparation import read_shuffled
from evalsuite.distill.recipe.data_sources import DataSourceConfig, ResponsesSourceConfig
from evalsuite.foundation import ConfigError, DataError, content_hash, write_jsonl
from evalsuite.models.checkpoints.tokenizers import TextEncoder


class Processes(Protocol):
    """The processes of a run (see `training.distributed.ProcessGroup`)."""

    device: torch.device
    rank: int
    world_size: int

    def barrier(self) -> None:
        """Wait for all of them."""


def generate_responses(
    sources: Mapping[str, DataSourceConfig],
    teacher: str | None,
    out: Path,
    processes: Processes,
    *,
    read: Collection[str],
    quiet: bool = False,
) -> dict[str, DataSourceConfig]:
    """Generate the teacher's responses for all `responses` sources that are read; return the sources with
    local files in their place.

    Responses are written to `out/responses/<source>.<key>.jsonl`; the key stands for the settings they
    depend on. Existing files are reused. A collective call.

    Args:
        teacher: a checkpoint, as the recipe names it.
        read: names of the sources that are read.
        processes: each of them generates the responses to its share of the prompts.

    Raises:
        ConfigError: a responses source without a teacher, or with an unknown prompt source.
        DataError: the prompt source has no prompts, or no response was completed.
    """
    found = dict(sources)
    checkpoint: Any = None
    for name, source in sources.items():
        if name not in read or not isinstance(source, ResponsesSourceConfig):
            continue
        path = out / "responses" / f"{name}.{_key(source, sources, teacher)}.jsonl"
        if not path.exists():
            if teacher is None:
                raise ConfigError(f"data source '{name}': generating responses needs a 'teacher'")
            if checkpoint is None:
                from evalsuite.models import load_checkpoint

                dtype = "bfloat16" if processes.device.type == "cuda" else "float32"
                checkpoint = load_checkpoint(teacher, dtype=dtype, device=str(processes.device))
            generation = _Generation(path.parent / "cache", name, sources, checkpoint)
            generation.run(processes.rank, processes.world_size, quiet=quiet or processes.rank > 0)
            processes.barrier()
            rows = generation.rows()
            if processes.rank == 0:
                write_jsonl(path, rows)
            processes.barrier()
        found[name] = source.as_local(str(path))
    return found


class _Generation:
    """The responses of one source, in a cache that all processes share."""

    def __init__(
        self, cache: Path, name: str, sources: Mapping[str, DataSourceConfig], checkpoint: Any
    ) -> None:
        from evalsuite.models.inference import GenerateRequest, SamplingParams
        from evalsuite.models.inference.torch.engine import TorchEngine

        source = sources[name]
        assert isinstance(source, ResponsesSourceConfig)
        self._cache, self._name, self._source = cache, name, source
        self._engine = TorchEngine(checkpoint)
        self._prompts = _prompts(name, source, sources, checkpoint.tokenizer)
        sampling = SamplingParams(
            max_new_tokens=source.max_new_tokens, temperature=source.temperature, top_p=source.top_p
        )
        self._requests: list[Any] = [
            GenerateRequest(prompt=tuple(encoding.ids), sampling=sampling, seed=source.seed)
            for encoding in TextEncoder(checkpoint.tokenizer).encode(self._prompts)
        ]

    def run(self, rank: int, world_size: int, *, quiet: bool) -> list[Any]:
        """Generate what the cache lacks of every `world_size`-th response, from `rank`; return these."""
        from evalsuite.models.inference import ResponseCache, run_requests

        share = self._requests[rank::world_size]
        return list(run_requests(self._engine, ResponseCache(self._cache), share, quiet=quiet))

    def rows(self) -> list[dict[str, str]]:
        """Prompts and completed responses, once all processes have run. DataError if there are none."""
        rows = [
            {"prompt": prompt, "completion": response.text}
            for prompt, response in zip(self._prompts, self.run(0, 1, quiet=True), strict=True)
            # Truncated responses would teach the student to stop in mid-sentence.
            if response.finish_reason in ("eos", "stop") and response.text
        ]
        if not rows:
            raise DataError(
                f"data source '{self._name}': none of {len(self._prompts)} responses was completed within "
                f"{self._source.max_new_tokens} tokens; raise 'max_new_tokens'"
            )
        return rows


def _key(source: ResponsesSourceConfig, sources: Mapping[str, DataSourceConfig], teacher: str | None) -> str:
    """Stands for a source's settings, those of its prompts, and the teacher."""
    settings = (source, sources.get(source.prompt_source))
    described = [each and each.model_dump(mode="json") for each in settings]
    return content_hash([str(teacher), *described], length=8)


def _prompts(
    name: str, source: ResponsesSourceConfig, sources: Mapping[str, DataSourceConfig], tokenizer: Any
) -> list[str]:
    """The first `num_prompts` distinct prompts (texts before a completion) of the prompt source, shuffled.

    They are shuffled as for training: in the order of the files, all could come from the first one.
    """
    origin = sources.get(source.prompt_source)
    if origin is None or isinstance(origin, ResponsesSourceConfig):
        raise ConfigError(
            f"data source '{name}': 'prompt_source' = '{source.prompt_source}' is not a source of prompts"
        )
    found: dict[str, None] = {}
    for example in read_shuffled(source.prompt_source, origin, tokenizer, seed=source.seed):
        if prompt := example.first_turn[0]:
            found[prompt] = None
        if len(found) == source.num_prompts:
            break
    if not found:
        raise DataError(f"data source '{name}': '{source.prompt_source}' has no prompts with completions")
    return list(found)
