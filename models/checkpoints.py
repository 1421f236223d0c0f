"""Checkpoints from a hub id, a folder or a GGUF file: whole and safe, or refused with a reason."""

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as logging_of_transformers

from evalsuite.foundation import CheckpointError, EvalsuiteError
from evalsuite.models.gguf_files import parsed_once
from evalsuite.models.identity import weights_id
from evalsuite.models.weights import stored_tensors

POCKET = Path(__file__).parent / "pocket"
"""Where the pocket teacher's checkpoint lies."""

TRAINING = "training.jsonl"
"""The loss curve in the folder of a student that `evalsuite.distill` made."""

_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_QUANTIZATION = re.compile(r"(?:BF16|F16|F32|I?Q\d\w*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model with its tokenizer and its name."""

    label: str
    path: str
    """As the user wrote it."""
    model: PreTrainedModel
    tokenizer: Any
    weights_id: str
    lineage: dict[str, Any] = field(default_factory=dict)
    """How it was made: the `lineage.json` beside a student; empty for a teacher."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What can be said of a checkpoint without its weights in memory."""

    label: str
    path: str
    config: PreTrainedConfig
    tokenizer: Any
    weights_id: str
    parameters: int
    lineage: dict[str, Any] = field(default_factory=dict)
    training: Path | None = None
    """Its loss curve, where it has one: see `training_file`."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a checkpoint lies on this machine."""

    source: str
    folder: Path
    gguf: str | None = None

    @property
    def path(self) -> Path:
        return self.folder / self.gguf if self.gguf else self.folder

    @property
    def arguments(self) -> dict[str, Any]:
        return {"gguf_file": self.gguf} if self.gguf else {}


def load_checkpoint(
    path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
    label: str | None = None,
) -> Checkpoint:
    """Load a model for inference (eval mode).

    Args:
        path: hub id, folder, `.gguf` file, or `pocket`.
        dtype: `auto` (as stored; float32 for GGUF), or a torch dtype or its name.
        trust_remote_code: run Python code that comes with the checkpoint. Off unless asked for.
        label: its name on pages; by default from the path.

    Raises:
        CheckpointError: missing, truncated, pickled, of a newer schema, in need of remote code, or with a
            tokenizer that does not fit; the message says which and what would work.
    """
    place = _find(str(path))
    if place.gguf is None:
        stored_tensors(place.folder)
    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) and dtype != "auto" else dtype
    if wanted != "auto" and not isinstance(wanted, torch.dtype):
        raise CheckpointError(f"dtype '{dtype}' is not a torch dtype; try auto, float32 or bfloat16")
    extra = {}
    if place.gguf is not None:
        # Plain tensors on every machine: transformers would keep the blocks packed where it finds a kernel.
        extra["quantization_config"] = GgufConfig(dequantize=True)
        wanted = torch.float32 if wanted == "auto" else wanted
    name = weights_id(place.path)
    with parsed_once() if place.gguf else nullcontext():
        tokenizer = _load(AutoTokenizer, place, trust_remote_code)
        model, report = _load(
            AutoModelForCausalLM, place, trust_remote_code, dtype=wanted, output_loading_info=True, **extra
        )
    lost = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lost:
        raise CheckpointError(
            f"{place.source}: {len(lost)} weights are missing or of another shape, first '{lost[0]}'; "
            "the files do not belong to this config"
        )
    if place.gguf:
        _forget_quantization(model)
    _check_tokenizer(place.source, tokenizer, model.get_input_embeddings().weight.shape[0])
    return Checkpoint(
        label=label or _label(place),
        path=str(path),
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        weights_id=name,
        lineage=_lineage(place),
    )


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Silence transformers' own progress bars, which would tear ours."""
    shown = logging_of_transformers.is_progress_bar_enabled()
    logging_of_transformers.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging_of_transformers.enable_progress_bar()


def describe_checkpoint(path: str | Path, *, trust_remote_code: bool = False) -> CheckpointInfo:
    """Describe a checkpoint without loading its weights. Raises CheckpointError as `load_checkpoint`."""
    place = _find(str(path))
    with parsed_once() if place.gguf else nullcontext():
        config = _load(AutoConfig, place, trust_remote_code)
        tokenizer = _load(AutoTokenizer, place, trust_remote_code)
        parameters = _parameters(place)
    _check_tokenizer(place.source, tokenizer, config.vocab_size)
    return CheckpointInfo(
        label=_label(place),
        path=str(path),
        config=config,
        tokenizer=tokenizer,
        weights_id=weights_id(place.path),
        parameters=parameters,
        lineage=_lineage(place),
        training=None if place.gguf else training_file(place.folder),
    )


def training_file(folder: Path) -> Path | None:
    """The loss curve of a student in its folder; None for one without, and for what is no student of ours.

    `training.jsonl` is also what people call their data: only beside a lineage is it a curve.
    """
    found = (folder / "lineage.json").is_file() and (folder / TRAINING).is_file()
    return folder / TRAINING if found else None


def _find(source: str) -> _Place:
    """Where the checkpoint lies here; a hub id is looked up in the cache, and fetched unless offline."""
    if source == "pocket":
        if not (POCKET / "config.json").is_file():
            raise CheckpointError("pocket: this installation has no pocket teacher; reinstall evalsuite")
        return _Place(source, POCKET)
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{source}: a checkpoint is a hub id, a folder or a .gguf file")
        return _Place(source, path.parent, path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{source}: no config.json here; a checkpoint is a Hugging Face folder")
        return _Place(source, path)
    if not _HUB_ID.fullmatch(source):
        raise CheckpointError(f"{source}: no such folder or file")
    return _Place(source, _from_hub(source))


def _from_hub(source: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(source, allow_patterns=_WANTED))
        if (folder / "lineage.json").is_file():
            snapshot_download(source, allow_patterns=[TRAINING])
        return folder
    except Exception as error:
        # The hub client raises a dozen kinds (offline, gated, not found, timeouts); all mean the same here.
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise CheckpointError(
            f"{source}: no such folder, and not to be had from the Hugging Face hub{offline}: "
            f"{_first_line(error)}"
        ) from error


def _load(kind: Any, place: _Place, trust_remote_code: bool, **arguments: Any) -> Any:
    """`kind.from_pretrained`, its errors made ours."""
    try:
        # Converting a GGUF tokenizer logs a warning about merges that says nothing to a user.
        logging.getLogger("transformers.modeling_gguf_pytorch_utils").setLevel(logging.ERROR)
        with without_progress_bars():
            return kind.from_pretrained(
                place.folder,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                **place.arguments,
                **arguments,
            )
    except EvalsuiteError as error:
        raise CheckpointError(f"{place.source}: {error}") from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError) as error:
        raise CheckpointError(f"{place.source}: cannot be loaded: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    text = _first_line(error)
    if "trust_remote_code" in str(error):
        return f"{text} (it brings its own Python code; --trust-remote-code runs it, if you trust it)"
    return text


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _forget_quantization(model: PreTrainedModel) -> None:
    """The weights are plain tensors now; marked as quantized, the model could not be saved or moved."""
    for owner, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
        if hasattr(owner, name):
            delattr(owner, name)


def _check_tokenizer(source: str, tokenizer: Any, rows: int) -> None:
    """Every token id must have an embedding. Embeddings may be padded beyond the vocabulary."""
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= rows:
        raise CheckpointError(
            f"{source}: the tokenizer has token {highest}, but the model embeds only {rows}; "
            "the tokenizer belongs to another model"
        )


def _parameters(place: _Place) -> int:
    if place.gguf is None:
        return sum(tensor.elements for tensor in stored_tensors(place.folder))
    from gguf import GGUFReader

    return int(sum(int(tensor.n_elements) for tensor in GGUFReader(place.path).tensors))


def _lineage(place: _Place) -> dict[str, Any]:
    file = place.folder / "lineage.json"
    if place.gguf is not None or not file.is_file():
        return {}
    try:
        lineage = json.loads(file.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file}: not JSON ({error})") from error
    return lineage if isinstance(lineage, dict) else {}


def _label(place: _Place) -> str:
    if place.gguf is None:
        return place.source.rstrip("/").rsplit("/", 1)[-1] if place.source != "pocket" else "pocket"
    stem = place.gguf.removesuffix(".gguf")
    name, dot, kind = stem.rpartition(".")
    if not dot:
        name, _, kind = stem.rpartition("-")
    if name and _QUANTIZATION.fullmatch(kind):
        return f"{name} ({kind} dequantized)"
    return f"{stem} (dequantized)"
