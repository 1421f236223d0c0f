"""Teacher responses to prompts, as training data.

Responses go through the inference engine and its cache, so that an interrupted run generates only the missing
ones.
"""

import json
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.data.config import ResponsesSourceConfig
from evalsuite.distill.data.examples import Example
from evalsuite.distill.data.preparation import read_examples
from evalsuite.distill.recipe import Recipe
from evalsuite.foundation import ConfigError, DataError, write_text


def generate_responses(recipe: Recipe, out: Path, device: torch.device, *, quiet: bool = False) -> Recipe:
    """Generate the teacher's responses for all `responses` sources; return a recipe that reads them.

    Responses are written to `out/responses/<source>.jsonl`; existing files are reused.

    Raises:
        ConfigError: a responses source without a teacher, or with an unknown prompt source.
        DataError: the prompt source has no prompts, or no response was completed.
    """
    wanted = {
        name: source for name, source in recipe.data.items() if isinstance(source, ResponsesSourceConfig)
    }
    if not wanted:
        return recipe
    data = dict(recipe.data)
    checkpoint: Any = None
    for name, source in wanted.items():
        path = out / "responses" / f"{name}.jsonl"
        if not path.exists():
            if recipe.teacher is None:
                raise ConfigError(f"data source '{name}': generating responses needs a 'teacher'")
            if checkpoint is None:
                from evalsuite.models import load_checkpoint

                dtype = "bfloat16" if device.type == "cuda" else "float32"
                checkpoint = load_checkpoint(recipe.teacher, dtype=dtype, device=str(device))
            _generate(path, name, source, recipe, checkpoint, quiet)
        data[name] = source.as_local(str(path))
    return recipe.model_copy(update={"data": data})


def _generate(
    path: Path, name: str, source: ResponsesSourceConfig, recipe: Recipe, checkpoint: Any, quiet: bool
) -> None:
    from evalsuite.models.inference import GenerateRequest, ResponseCache, SamplingParams, run_requests
    from evalsuite.models.inference.torch.engine import TorchEngine

    prompts = _prompts(name, source, recipe, checkpoint.tokenizer)
    backend = checkpoint.tokenizer.backend_tokenizer
    sampling = SamplingParams(
        max_new_tokens=source.max_new_tokens, temperature=source.temperature, top_p=source.top_p
    )
    requests = [
        GenerateRequest(prompt=tuple(encoding.ids), sampling=sampling, seed=source.seed)
        for encoding in backend.encode_batch(prompts, add_special_tokens=True)
    ]
    responses: list[Any] = run_requests(
        TorchEngine(checkpoint), ResponseCache(path.parent / "cache"), list(requests), quiet=quiet
    )
    rows = [
        {"prompt": prompt, "completion": response.text}
        for prompt, response in zip(prompts, responses, strict=True)
        # Truncated responses would teach the student to stop in mid-sentence.
        if response.finish_reason in ("eos", "stop") and response.text
    ]
    if not rows:
        raise DataError(
            f"data source '{name}': none of {len(prompts)} responses was completed within "
            f"{source.max_new_tokens} tokens; raise 'max_new_tokens'"
        )
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _prompts(name: str, source: ResponsesSourceConfig, recipe: Recipe, tokenizer: Any) -> list[str]:
    """The first `num_prompts` distinct prompts (texts before a completion) of the prompt source."""
    origin = recipe.data.get(source.prompt_source)
    if origin is None or isinstance(origin, ResponsesSourceConfig):
        raise ConfigError(
            f"data source '{name}': 'prompt_source' = '{source.prompt_source}' is not a source of prompts"
        )
    found: dict[str, None] = {}
    for example in read_examples(source.prompt_source, origin, tokenizer):
        if prompt := _prompt(example):
            found[prompt] = None
        if len(found) == source.num_prompts:
            break
    if not found:
        raise DataError(f"data source '{name}': '{source.prompt_source}' has no prompts with completions")
    return list(found)


def _prompt(example: Example) -> str:
    """The text before the first completion segment; empty if there is no completion or nothing before it."""
    before: list[str] = []
    for text, is_completion in example.segments:
        if is_completion:
            return "".join(before)
        before.append(text)
    return ""
