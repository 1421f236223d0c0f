"""From a recipe to the models it speaks of: teacher, students, tokenizer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.fused import fuse
from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.recipe import Architecture, Recipe, SelectedBy
from evalsuite.foundation import CheckpointError, ConfigError, MissingDependencyError
from evalsuite.foundation.strict import parse


@dataclass(frozen=True)
class Cast:
    """Everything that plays a part: the teacher (frozen), the students by label, the tokenizer."""

    teacher: LanguageModel | None
    teacher_weights: str | None
    students: dict[str, LanguageModel]
    tokenizer: Any
    precision: str
    """`bf16` (a copy of fp32 master weights runs) or `fp32`."""

    @property
    def dtype(self) -> torch.dtype:
        """In which teacher and students run."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def writer(self, out: Path) -> Any:
        """A TensorBoard writer in the run's folder."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingDependencyError("saving.tensorboard needs `pip install tensorboard`") from None
        return SummaryWriter(str(out / "tensorboard"))


def with_mixers(recipe: Recipe, mixers: Sequence[str] | None) -> Recipe:
    """The recipe with other mixers, if any are named."""
    if not mixers:
        return recipe
    if recipe.architecture is not None:
        raise ConfigError(
            f"recipe '{recipe.name}' trains a Transformer from random weights: it has no mixers"
        )
    return recipe.model_copy(update={"student": recipe.student.model_copy(update={"mixers": list(mixers)})})


def with_starts(recipe: Recipe, out: Path) -> Recipe:
    """The recipe with the folder of every student of another variant that it goes on from (`:NAME`).

    Args:
        out: the run's folder; other variants lie beside it, as `distill --variants` puts them.

    Raises:
        ConfigError: that variant has not been made.
    """
    starts = dict(recipe.student.checkpoints)
    for mixer, start in starts.items():
        if start.startswith(":"):
            folder = out.parent / start[1:] / mixer
            if not (folder / "lineage.json").is_file():
                raise ConfigError(
                    f"student.checkpoints.{mixer}: recipe '{recipe.name}' goes on from its variant "
                    f"'{start[1:]}', which is not in {folder}; name that variant first (--variants "
                    f"{start[1:]} …), or a student with --set student.checkpoints.{mixer}=FOLDER"
                )
            starts[mixer] = str(folder)
    return recipe.model_copy(update={"student": recipe.student.model_copy(update={"checkpoints": starts})})


def assemble(recipe: Recipe, device: torch.device) -> Cast:
    """Load or build all models of a recipe.

    Raises:
        CheckpointError: a checkpoint is missing, damaged or unsafe.
        ConfigError: an unknown mixer or option, layers that the teacher does not have, or vocabularies
            that differ.
    """
    precision = recipe.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    if recipe.architecture is not None:
        tokenizer = architecture_tokenizer(recipe.architecture)
        random = from_architecture(recipe.architecture, len(tokenizer), tokenizer, recipe.seed)
        fuse(random)
        return Cast(None, None, {recipe.labels[0]: random.to(device).train()}, tokenizer, precision)
    from evalsuite.models import build_student, load_checkpoint

    loaded = None if recipe.teacher is None else load_checkpoint(recipe.teacher, dtype="float32")
    if loaded is not None:
        _check_selection(recipe, loaded.weights_id)
    students: dict[str, LanguageModel] = {}
    tokenizer = None if loaded is None else loaded.tokenizer
    for label, mixer in zip(recipe.labels, recipe.student.mixers, strict=True):
        start = recipe.student.checkpoints.get(mixer)
        if start is not None:
            checkpoint = load_checkpoint(start, dtype="float32")
            model: Any = checkpoint.model
            tokenizer = tokenizer or checkpoint.tokenizer
        else:
            assert loaded is not None
            layers = layer_mixers(recipe, mixer, loaded.model.config.num_hidden_layers)
            options = {mixer: recipe.student.options[mixer]} if mixer in recipe.student.options else {}
            model = build_student(
                loaded.model,
                layers,
                options=options,
                init=recipe.student.init,
                seed=recipe.seed,
                kv_expansion=recipe.student.kv_expansion,
            )
        if loaded is not None and model.config.vocab_size != loaded.model.config.vocab_size:
            raise ConfigError(
                f"student '{start}' has a vocabulary of {model.config.vocab_size}, the teacher "
                f"'{recipe.teacher}' one of {loaded.model.config.vocab_size}: their tokens differ"
            )
        fuse(model)
        students[label] = model.to(device).train()
    teacher: Any = None
    if loaded is not None:
        teacher = loaded.model
        teacher.to(device).eval().requires_grad_(False)
        if precision == "bf16":
            # Parameters only: rotary frequencies in bf16 would turn far positions by radians.
            for parameter in teacher.parameters():
                parameter.data = parameter.data.bfloat16()
        fuse(teacher)
        _check_head(teacher)
    return Cast(teacher, None if loaded is None else loaded.weights_id, students, tokenizer, precision)


def layer_mixers(recipe: Recipe, mixer: str, layers: int) -> list[str]:
    """The mixer of each layer: softmax where the recipe says so.

    Raises:
        ConfigError: a layer that does not exist, or a selection file that is missing or of another kind.
    """
    softmax = with_selection(recipe).student.softmax_layers
    assert not isinstance(softmax, str)
    beyond = [layer for layer in softmax if not 0 <= layer < layers]
    if beyond:
        raise ConfigError(f"student.softmax_layers: the teacher has layers 0 to {layers - 1}, not {beyond}")
    return ["softmax" if layer in softmax else mixer for layer in range(layers)]


def with_selection(recipe: Recipe) -> Recipe:
    """The recipe with the layers of its selection file in place of the file's name, and their origin.

    So a run belongs to the layers, not to a file that may change under its name.

    Raises:
        ConfigError: the file is missing or no selection.
    """
    name = recipe.student.softmax_layers
    if not isinstance(name, str):
        return recipe
    try:
        value = json.loads(Path(name).read_text())
        found = value if isinstance(value, dict) else {"layers": value}
        layers = sorted(int(layer) for layer in found["layers"])
    except FileNotFoundError:
        raise ConfigError(f"student.softmax_layers: {name}: no such file") from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"student.softmax_layers: {name} holds no list 'layers' ({error})") from None
    by = None
    if "selector" in found:
        origin = {key: found.get(key) for key in ("selector", "teacher", "mixer")}
        by = parse(origin, SelectedBy, name)
    student = recipe.student.model_copy(update={"softmax_layers": layers, "selection": by})
    return recipe.model_copy(update={"student": student})


def _check_selection(recipe: Recipe, weights: str) -> None:
    by = recipe.student.selection
    if by is not None and by.teacher not in (None, weights):
        raise ConfigError(
            f"student.softmax_layers were chosen by {by.selector} in another teacher (weights {by.teacher}); "
            f"'{recipe.teacher}' has weights {weights}. To use them all the same, give the list itself"
        )


def _check_head(teacher: LanguageModel) -> None:
    """Refuse heads that do more than a matrix product, which the chunked loss would silently leave out."""
    head = teacher.get_output_embeddings()
    config: Any = teacher.config
    if getattr(head, "bias", None) is not None or getattr(config, "final_logit_softcapping", None):
        raise CheckpointError("the teacher's head has a bias or soft-capped logits, which is not supported")


def architecture_tokenizer(architecture: Architecture) -> Any:
    """The tokenizer of an architecture, ready to be saved beside the model."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if architecture.tokenizer == "pocket":
        from evalsuite.tasks.pocket import build_tokenizer
        from evalsuite.tasks.pocket.vocabulary import END, PAD

        return PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), eos_token=END, pad_token=PAD)
    try:
        return AutoTokenizer.from_pretrained(architecture.tokenizer)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"architecture.tokenizer '{architecture.tokenizer}' cannot be loaded ({error})"
        ) from error


def from_architecture(architecture: Architecture, vocabulary: int, tokenizer: Any, seed: int) -> Any:
    """A Llama-style model with random weights that `seed` decides."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=architecture.max_length,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        tie_word_embeddings=architecture.tie_embeddings,
        initializer_range=architecture.initial_std,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    random = torch.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.set_rng_state(random)
    return model
