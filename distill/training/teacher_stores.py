"""Opens the teacher stores of a recipe, and makes them."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from evalsuite.distill.data.loader import DataSources, StageDataLoader, collate
from evalsuite.distill.data.packing import PackedSequence
from evalsuite.distill.data.teacher_store import StoreWriter, TeacherStore, store_folder, store_key
from evalsuite.distill.data.workers import default_num_workers
from evalsuite.distill.objectives.end_to_end import KnowledgeDistillation
from evalsuite.distill.objectives.forward import hidden_states, set_attention
from evalsuite.distill.objectives.kl_and_cross_entropy import head_logits
from evalsuite.distill.objectives.top_tokens import top_tokens
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.training.builders import check_recipe, resolve_precision
from evalsuite.distill.training.placement import Placement
from evalsuite.distill.types import CausalLM
from evalsuite.foundation import ConfigError, locked, progress
from evalsuite.models.decoder.head import LanguageModelHead
from evalsuite.models.ops.dispatch import kernel_policy

PART_BYTES = 1 << 26
"""Size of a part of a store, at most."""
MAX_LOGITS = 1 << 26
"""Logits of the teacher per chunk of tokens."""


def stored_stages(recipe: Recipe) -> list[KnowledgeDistillation]:
    """The stages that read the teacher's output from a store."""
    return [stage for stage in recipe.stages if isinstance(stage, KnowledgeDistillation) and stage.store]


def _key(recipe: Recipe, stage: KnowledgeDistillation, weights_id: str, tokenizer: Any) -> dict[str, Any]:
    return store_key(recipe, stage, weights_id, tokenizer, stage.loss.temperature)


def open_stores(recipe: Recipe, tokenizer: Any) -> dict[str, TeacherStore]:
    """Stage → the store that it reads.

    Raises:
        ConfigError: a store is missing, is one of other settings, or is too small; or a source of its stage
            generates its responses in each run folder.
        DataError: a store is damaged.
    """
    stages = stored_stages(recipe)
    if not stages:
        return {}
    from evalsuite.models.checkpoints.load import describe_checkpoint

    assert recipe.teacher is not None
    weights_id = describe_checkpoint(recipe.teacher, with_tokenizer=False).weights_id
    found = {}
    for stage in stages:
        store = found[stage.name] = TeacherStore(stage.store or "")
        key, sequences = _key(recipe, stage, weights_id, tokenizer), stage.steps * stage.batch_size
        store.check(key, k=stage.stored_k, sequences=sequences, stage=stage.name)
    return found


@dataclass(frozen=True)
class MadeStore:
    """A store that is complete; `str` describes it."""

    store: TeacherStore

    def __str__(self) -> str:
        store = self.store
        return (
            f"{store.folder}: {store.rows:,} loss tokens, {store.bytes / max(1, store.rows):,.0f} bytes "
            f"each; mass outside of the {store.k} most likely tokens: {store.tail_mass:.2%}"
        )


def make_stores(recipe: Recipe, *, device: str | None = None, quiet: bool = False) -> Iterator[MadeStore]:
    """Make the teacher stores that a recipe's stages name, or continue them; yield each.

    The teacher reads the sequences of a stage as training does. Those of earlier stages are drawn only, since
    a stage begins where they have stopped.

    Args:
        device: as of `distill`. One process makes a store.

    Raises:
        ConfigError: no stage names a store, a folder holds another one, or as `check_recipe`.
        CheckpointError, DataError: the teacher or the data cannot be read.
        RunFolderError: another process is making the store, or it cannot be written.
    """
    stages = stored_stages(recipe)
    if not stages:
        raise ConfigError(
            f"recipe '{recipe.name}': no stage names a teacher store; add --set stage.NAME.teacher_store=DIR "
            "stage.NAME.loss.top_k=64 stage.NAME.loss.tail=bucket, for a stage of objective kd"
        )
    tokenizer = check_recipe(recipe)
    on = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if resolve_precision(recipe, on) == "bf16" else torch.float32
    placement = Placement(recipe, on, dtype)
    assert recipe.teacher is not None
    checkpoint = placement.open(recipe.teacher)
    teacher = placement.teacher(checkpoint.model, {})
    set_attention(teacher, "sdpa")
    vocab_size = LanguageModelHead.of(teacher).weight.shape[0]
    for each in stages:
        if each.stored_k >= vocab_size:
            raise ConfigError(
                f"stage '{each.name}': loss.top_k is {each.stored_k}, and the teacher has {vocab_size} "
                "tokens; a store is for fewer"
            )
    workers = default_num_workers(on.type, 1) if recipe.num_workers is None else recipe.num_workers
    previous: dict[str, dict[str, Any]] = {}
    with (
        closing(DataSources(recipe.data, tokenizer, seed=recipe.seed, num_workers=workers)) as sources,
        kernel_policy(recipe.kernels),
    ):
        for number, stage in enumerate(recipe.stages):
            read_later = {
                name for later in recipe.stages[number + 1 :] if later.store for name in later.mixture
            }
            state = None
            if isinstance(stage, KnowledgeDistillation) and stage.store:
                folder = store_folder(stage.store)
                folder.mkdir(parents=True, exist_ok=True)
                with locked(folder / ".lock", wait=False):
                    key = _key(recipe, stage, checkpoint.weights_id, tokenizer)
                    writer = StoreWriter(folder, key, k=stage.stored_k, vocab_size=vocab_size)
                    state = _make(stage, writer, teacher, sources, previous, on, quiet=quiet)
                yield MadeStore(TeacherStore(folder))
            if state is None and read_later & stage.mixture.keys():
                loader = StageDataLoader(sources, stage, previous=previous)
                for _ in range(stage.steps):
                    _, state = loader.draw(stage.batch_size)
            previous |= state["sources"] if state else {}


def _make(
    stage: KnowledgeDistillation,
    writer: StoreWriter,
    teacher: CausalLM,
    sources: DataSources,
    previous: Mapping[str, dict[str, Any]],
    device: torch.device,
    *,
    quiet: bool,
) -> dict[str, Any] | None:
    """Write the parts that are missing; the state of the data loader after the stage, None if the store has
    more than it."""
    state, total = writer.loader_state, stage.steps * stage.batch_size
    loader = StageDataLoader(sources, stage, state=state, previous=previous)
    size = max(1, PART_BYTES // (stage.seq_len * writer.row_bytes))
    bar = progress(total=total * stage.seq_len, what=f"teacher store {stage.name}", unit="tok", quiet=quiet)
    bar.update(min(total, writer.sequences) * stage.seq_len)
    with bar:
        while writer.sequences < total:
            sequences, state = loader.draw(min(size, total - writer.sequences))
            found = _targets(stage, sequences, loader.micro_batch_size, teacher, device)
            writer.append(sequences, found, state)
            bar.update(len(sequences) * stage.seq_len)
    return state if writer.sequences == total else None


@torch.no_grad()
def _targets(
    stage: KnowledgeDistillation,
    sequences: list[PackedSequence],
    micro_batch_size: int,
    teacher: CausalLM,
    device: torch.device,
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """ids [N, K] and log_probs [N, K + 1] of the loss tokens, chunk by chunk."""
    head = LanguageModelHead.of(teacher)
    chunk = max(1, MAX_LOGITS // head.weight.shape[0])
    for start in range(0, len(sequences), micro_batch_size):
        batch = collate(sequences[start : start + micro_batch_size], packed=stage.packing == "documents")
        batch = batch.to(device)
        for states in batch.select(hidden_states(teacher, batch)).split(chunk):
            logits = head_logits(states, head.weight, head)
            accumulate = torch.promote_types(logits.dtype, torch.float32)
            top = top_tokens(logits.to(accumulate), stage.stored_k, stage.loss.temperature)
            yield top.ids.cpu().numpy(), top.log_probs.cpu().numpy()
