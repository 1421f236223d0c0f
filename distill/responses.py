"""Prompts answered by the teacher, as training data: what a student will be asked to write.

The answers go through the engine and its store, so that a run that is killed asks only what is missing.
"""

import json
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.batches import end_token
from evalsuite.distill.chat import chat_renderer
from evalsuite.distill.readers import Example, open_reader
from evalsuite.distill.recipe import DataSource, Recipe
from evalsuite.foundation import ConfigError, DataError, write_text


def with_responses(recipe: Recipe, out: Path, device: torch.device, *, quiet: bool = False) -> Recipe:
    """Have the teacher write what the recipe's `responses` sources ask for; return a recipe that reads it.

    Files go to `out/responses/<source>.jsonl`; those that are there are not written again.

    Raises:
        ConfigError: a source of responses without teacher, or whose prompts are responses themselves.
        DataError: the prompts' source holds no prompt, or the teacher answered none.
    """
    wanted = {name: source for name, source in recipe.data.items() if source.kind == "responses"}
    if not wanted:
        return recipe
    data = dict(recipe.data)
    checkpoint: Any = None
    for name, source in wanted.items():
        path = out / "responses" / f"{name}.jsonl"
        if not path.exists():
            if recipe.teacher is None:
                raise ConfigError(f"data source '{name}': responses need a 'teacher' to write them")
            if checkpoint is None:
                from evalsuite.models import load_checkpoint

                dtype = "bfloat16" if device.type == "cuda" else "float32"
                checkpoint = load_checkpoint(recipe.teacher, dtype=dtype, device=str(device))
            _write(path, name, source, recipe, checkpoint, quiet)
        data[name] = DataSource(
            kind="local",
            files=[str(path)],
            prompt="prompt",
            completion="completion",
            seed=source.seed,
            repeat=source.repeat,
        )
    return recipe.model_copy(update={"data": data})


def _write(path: Path, name: str, source: DataSource, recipe: Recipe, checkpoint: Any, quiet: bool) -> None:
    from evalsuite.models.engine import AnswerStore, GenerateRequest, Sampling, answer_all
    from evalsuite.models.engine.torch_engine import TorchEngine

    prompts = _prompts(name, source, recipe, checkpoint.tokenizer)
    backend = checkpoint.tokenizer.backend_tokenizer
    sampling = Sampling(
        max_new_tokens=source.max_new_tokens, temperature=source.temperature, top_p=source.top_p
    )
    requests = [
        GenerateRequest(prompt=tuple(encoding.ids), sampling=sampling, seed=source.seed)
        for encoding in backend.encode_batch(prompts, add_special_tokens=True)
    ]
    answers: list[Any] = answer_all(
        TorchEngine(checkpoint), AnswerStore(path.parent / "answers"), list(requests), quiet=quiet
    )
    rows = [
        {"prompt": prompt, "completion": answer.text}
        for prompt, answer in zip(prompts, answers, strict=True)
        # An answer that was cut off would teach to stop in mid-sentence.
        if answer.finish in ("eos", "stop") and answer.text
    ]
    if not rows:
        raise DataError(
            f"data source '{name}': none of {len(prompts)} answers came to an end within "
            f"{source.max_new_tokens} tokens; raise 'max_new_tokens'"
        )
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _prompts(name: str, source: DataSource, recipe: Recipe, tokenizer: Any) -> list[str]:
    """The first `count` distinct prompts of the source that is named: what comes before a completion."""
    origin = recipe.data.get(source.prompts or "")
    if origin is None or origin.kind == "responses":
        raise ConfigError(f"data source '{name}': 'prompts' = '{source.prompts}' names no source of prompts")
    end_token(tokenizer)
    render = chat_renderer(tokenizer, origin.chat_template) if origin.messages is not None else None
    reader = open_reader(origin, str(source.prompts), render)
    found: dict[str, None] = {}
    position: dict[str, Any] | None = {}
    while position is not None and len(found) < source.count:
        examples, position = reader.window(position)
        found.update(dict.fromkeys(filter(None, map(_prompt, examples))))
    if not found:
        raise DataError(f"data source '{name}': '{source.prompts}' holds no prompt with a completion")
    return list(found)[: source.count]


def _prompt(example: Example) -> str:
    """The text before the first marked piece; empty if the example begins with one."""
    before: list[str] = []
    for piece, marked in example.pieces:
        if marked:
            return "".join(before)
        before.append(piece)
    return ""
