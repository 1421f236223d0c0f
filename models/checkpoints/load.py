"""Loading and describing checkpoints from a hub id, a folder or a GGUF file."""

import inspect
import logging
import math
import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from evalsuite.foundation import CheckpointError, ConfigError, EvalsuiteError, content_hash
from evalsuite.models.checkpoints.config import STUDENT_TYPE, check_config, read_object
from evalsuite.models.checkpoints.fingerprint import tokenizer_files_id
from evalsuite.models.checkpoints.hashing_ahead import hashed
from evalsuite.models.checkpoints.location import TRAINING, Location, first_line, locate
from evalsuite.models.checkpoints.once_per_file import once_per_file
from evalsuite.models.checkpoints.precision import EXACT, Precision
from evalsuite.models.checkpoints.safetensors_index import stored_tensors
from evalsuite.models.checkpoints.tokenizers import whole_texts, with_stated_tokens

if TYPE_CHECKING:
    # Describing a checkpoint does without what builds models, which takes seconds to import.
    from transformers import PreTrainedModel

_QUANTIZED = re.compile(r"(?P<name>.+)[.-](?P<kind>BF16|F16|F32|I?Q\d\w*)\.gguf", re.IGNORECASE)
"""Names of GGUF files that end in their quantization."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model with its tokenizer and label."""

    label: str
    path: str
    """As given by the user."""
    model: "PreTrainedModel"
    tokenizer: Any
    """None if loaded without."""
    weights_id: str
    lineage: dict[str, Any] = field(default_factory=dict)
    """Provenance: the `lineage.json` in a student's folder; empty for a teacher."""
    revision: str | None = None
    """The commit of a hub model; None for local files."""
    precision: Precision = EXACT
    """To what its weights and states are rounded."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Description of a checkpoint, without its weights in memory."""

    label: str
    path: str
    config: PreTrainedConfig
    tokenizer: Any
    """None if described without."""
    tokens: int
    """Tokens of its vocabulary."""
    weights_id: str
    parameters: int
    lineage: dict[str, Any] = field(default_factory=dict)
    training: Path | None = None
    """Its loss curve, if it has one: see `training_file`."""
    revision: str | None = None
    """The commit of a hub model; None for local files."""
    folder: Path | None = None
    """Where its files lie: the folder or, of a hub model, that of the commit in the hub's cache."""


def load_checkpoint(
    path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    trust_remote_code: bool = False,
    label: str | None = None,
    as_decoder: bool = True,
    with_tokenizer: bool = True,
    shares_tokenizer: bool = False,
) -> Checkpoint:
    """Load a model for inference (eval mode).

    Args:
        path: hub id (`ORG/NAME` or `ORG/NAME@REVISION`), folder, `.gguf` file, or `pocket`. With settings,
            such as `./kda:weights=int8:state=bf16`, the variant whose weights and recurrent states are
            rounded; see `evalsuite.models.decoder.precision`.
        dtype: `auto` (as stored; float32 for GGUF), or a torch dtype or its name.
        trust_remote_code: allow Python code from the checkpoint. Off by default.
        label: name in reports; derived from the path by default.
        as_decoder: load a teacher of a supported family as our decoder, with `softmax` in every layer; false:
            as transformers' own model.
        with_tokenizer: false: without the tokenizer, for a caller that has it (see `load_outline`).
        shares_tokenizer: the tokenizer may be that of another checkpoint in this process with equal files;
            for a caller that does not change it.

    Raises:
        CheckpointError: missing, truncated, pickled, of another schema, in need of remote code, with a
            tokenizer of another model, or with settings that do not apply to it; the message names the
            problem and a remedy.
    """
    torch_dtype = getattr(torch, dtype, None) if isinstance(dtype, str) and dtype != "auto" else dtype
    if torch_dtype != "auto" and not isinstance(torch_dtype, torch.dtype):
        raise CheckpointError(f"dtype '{dtype}' is not a torch dtype; try auto, float32 or bfloat16")
    with _opened(path, variants=as_decoder) as location, ThreadPoolExecutor(1) as pool:
        extra = {}
        if location.gguf is not None:
            # Dequantize on every machine: with a suitable kernel transformers would keep the blocks packed.
            extra["quantization_config"] = GgufConfig(dequantize=True)
            torch_dtype = torch.float32 if torch_dtype == "auto" else torch_dtype
        # Hashing a file needs neither the interpreter nor what is read here.
        weights = pool.submit(hashed, location.path)
        # The tokenizer and the model read it as well, with errors that do not name it.
        config = _load(AutoConfig, location, trust_remote_code)
        tokenizer = None
        if with_tokenizer:
            tokenizer = _load_tokenizer(location, trust_remote_code, config, shared=shares_tokenizer)
        model, report = _load(
            AutoModelForCausalLM,
            location,
            trust_remote_code,
            dtype=torch_dtype,
            output_loading_info=True,
            **extra,
        )
        original = weights.result()
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if missing:
        raise CheckpointError(
            f"{location.source}: {len(missing)} weights are missing or of another shape, "
            f"first '{missing[0]}'; the files do not match the config"
        )
    if location.gguf:
        # A model that is marked as quantized could not be saved or moved.
        for owner, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
            if hasattr(owner, name):
                delattr(owner, name)
    checkpoint = Checkpoint(
        label=label or _label(location),
        path=str(path),
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        weights_id=location.precision.weights_id(original),
        lineage=_lineage(location, original),
        revision=location.revision,
        precision=location.precision,
    )
    if not as_decoder:
        return checkpoint
    checkpoint = with_decoder(checkpoint)
    if location.precision:
        _apply_precision(checkpoint.model, location)
    return checkpoint


def _apply_precision(model: "PreTrainedModel", location: Location) -> None:
    from evalsuite.models.decoder.precision import round_states, round_weights

    try:
        if location.precision.weights is not None:
            round_weights(model, location.precision.weights)
        if location.precision.state is not None:
            round_states(model, location.precision.state)
    except ConfigError as error:
        raise CheckpointError(f"{location.name}: {error}") from error


def with_decoder(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a teacher of a supported family as our decoder, which shares its weights."""
    if remote_code_hash(checkpoint.model) is not None:
        return checkpoint
    from evalsuite.models.decoder.build import to_decoder

    return replace(checkpoint, model=to_decoder(checkpoint.model).eval())


def remote_code_hash(model: "PreTrainedModel") -> str | None:
    """Hash of the checkpoint's own Python code, if it defines the model; `weights_id` does not cover it."""
    if not type(model).__module__.startswith("transformers_modules."):
        return None
    folder = Path(inspect.getfile(type(model))).parent
    return content_hash({file.name: file.read_text() for file in sorted(folder.glob("*.py"))})


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Disable transformers' progress bars, which would interfere with ours."""
    was_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers_logging.enable_progress_bar()


def describe_checkpoint(
    path: str | Path,
    *,
    trust_remote_code: bool = False,
    with_tokenizer: bool = True,
    shares_tokenizer: bool = False,
    variants: bool = False,
) -> CheckpointInfo:
    """Describe a checkpoint without loading its weights.

    Args:
        variants: accept settings in the path, for a caller that loads the model with `load_checkpoint`.
        with_tokenizer: false does without the tokenizer of a GGUF file, whose merges take seconds to derive.
        shares_tokenizer: as in `load_checkpoint`.

    Raises:
        CheckpointError: as `load_checkpoint`.
    """
    with _opened(path, variants=variants) as location, ThreadPoolExecutor(1) as pool:
        config = _load(AutoConfig, location, trust_remote_code)
        if location.precision.state:
            _check_states(config, location)
        weights = pool.submit(hashed, location.path)
        if location.header is not None and not with_tokenizer:
            tokenizer, tokens = None, location.header.num_tokens
            if not tokens:
                raise CheckpointError(f"{location.source}: it has no tokenizer")
            _check_tokenizer(location, tokens - 1, config)
        else:
            tokenizer = _load_tokenizer(location, trust_remote_code, config, shared=shares_tokenizer)
            tokens = len(tokenizer)
        parameters = _parameters(location)
        original = weights.result()
    return CheckpointInfo(
        label=_label(location),
        path=str(path),
        config=config,
        tokenizer=tokenizer,
        tokens=tokens,
        weights_id=location.precision.weights_id(original),
        parameters=parameters,
        lineage=_lineage(location, original),
        revision=location.revision,
        folder=location.folder,
        training=None if location.gguf or location.precision else training_file(location.folder),
    )


def _check_states(config: PreTrainedConfig, location: Location) -> None:
    """Raise CheckpointError unless the config is that of a student with recurrent states."""
    from evalsuite.models.decoder.precision import with_states
    from evalsuite.models.mixers import MIXERS

    mixers = config.mixers if config.model_type == STUDENT_TYPE else ()
    try:
        with_states([MIXERS[name] for name in mixers], str(location.precision.state))
    except ConfigError as error:
        raise CheckpointError(f"{location.name}: {error}") from error


def load_config(path: str | Path) -> Any:
    """The config of a checkpoint, of which nothing else is read. Raises as `load_checkpoint`."""
    with _opened(path) as location:
        return _load(AutoConfig, location, False)


def load_outline(path: str | Path) -> tuple[Any, Any]:
    """The config and tokenizer of a checkpoint, whose weights are not read. Raises as `load_checkpoint`."""
    with _opened(path) as location:
        config = _load(AutoConfig, location, False)
        return config, _load_tokenizer(location, False, config)


def count_parameters(path: str | Path) -> int:
    """Number of weights in a checkpoint, from the headers of its files. Raises as `load_checkpoint`."""
    with _opened(path) as location:
        return _parameters(location)


def training_file(folder: Path) -> Path | None:
    """The loss curve in a student's folder, or None.

    `training.jsonl` is also a common name for data sets; it is a loss curve only if there is a
    `lineage.json`.
    """
    found = (folder / "lineage.json").is_file() and (folder / TRAINING).is_file()
    return folder / TRAINING if found else None


@contextmanager
def _opened(path: str | Path, *, variants: bool = False) -> Iterator[Location]:
    """Locate and check a checkpoint; the header of a GGUF file is parsed once in a process.

    Raises:
        CheckpointError: as `load_checkpoint`, or settings without `variants`.
    """
    location = locate(str(path))
    if location.precision and not variants:
        raise CheckpointError(
            f"{location.name}: only evalsuite's decoder, in engine torch, rounds weights and states; leave "
            f"out '{location.precision}' here"
        )
    if location.gguf is None:
        # What transformers would trip over later, without a word about the file.
        check_config(location.folder / "config.json")
        if read_object(location.folder / "config.json")["model_type"] == STUDENT_TYPE:
            # Students are registered with transformers here; other models do without their modules.
            import evalsuite.models.decoder  # noqa: F401
        for name in ("generation_config.json", "tokenizer_config.json"):
            if (location.folder / name).exists():
                read_object(location.folder / name)
        stored_tensors(location.folder)
        yield location
        return
    # gguf takes a while to import, and most checkpoints are folders.
    from evalsuite.models.checkpoints.gguf_header import header_parsed_once

    with header_parsed_once(str(location.path)) as header:
        yield replace(location, header=header)


def _load(kind: Any, location: Location, trust_remote_code: bool, **arguments: Any) -> Any:
    """Call `kind.from_pretrained` and convert its errors."""
    try:
        # Converting a GGUF tokenizer logs a warning about merges that does not concern the user.
        logging.getLogger("transformers.modeling_gguf_pytorch_utils").setLevel(logging.ERROR)
        with without_progress_bars():
            loaded = kind.from_pretrained(
                location.folder,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                **({"gguf_file": location.gguf} if location.gguf else {}),
                **arguments,
            )
    except EvalsuiteError as error:
        raise CheckpointError(f"{location.source}: {error}") from error
    except Exception as error:
        # A damaged file makes transformers, tokenizers and torch raise anything.
        reason = first_line(error)
        if "trust_remote_code" in str(error):
            reason += " (the checkpoint includes Python code; --trust-remote-code allows it to run)"
        raise CheckpointError(f"{location.source}: {_FILES[kind]} cannot be loaded: {reason}") from error
    return loaded


_SHARED: dict[str, Any] = {}
"""Content of tokenizer files → tokenizer: the last ones that are shared."""
_MAX_SHARED = 4


def _load_tokenizer(
    location: Location, trust_remote_code: bool, config: PreTrainedConfig, *, shared: bool = False
) -> Any:
    """The checkpoint's tokenizer, whose only owner is the caller unless it is shared.

    Raises as `load_checkpoint`.
    """
    if location.header is not None:
        tokenizer = _derive_tokenizer(location, trust_remote_code)
    elif shared and not trust_remote_code and (location.folder / "tokenizer.json").is_file():
        # A tokenizer without that file may depend on others than those that are hashed.
        key = f"{config.model_type} {tokenizer_files_id(location.folder)}"
        known = _SHARED.pop(key, None)
        loaded = _load(AutoTokenizer, location, trust_remote_code) if known is None else known
        _SHARED[key] = tokenizer = whole_texts(loaded)
        # Another thread may load a checkpoint at the same time.
        for old in list(_SHARED)[:-_MAX_SHARED]:
            _SHARED.pop(old, None)
    else:
        tokenizer = whole_texts(_load(AutoTokenizer, location, trust_remote_code))
    _check_tokenizer(location, max(tokenizer.get_vocab().values(), default=-1), config)
    return tokenizer


def _derive_tokenizer(location: Location, trust_remote_code: bool) -> Any:
    """The tokenizer of a GGUF file."""
    derived: list[Any] = []

    def derive() -> bytes:
        loaded = _load(AutoTokenizer, location, trust_remote_code)
        try:
            derived.append(whole_texts(with_stated_tokens(loaded, location.header.stated)))
        except ConfigError as error:
            raise CheckpointError(f"{location.source}: {error}") from error
        return pickle.dumps(derived[0])

    # Its merges take seconds to derive.
    pickled = once_per_file(f"tokenizer, {trust_remote_code=}", location.path, derive)
    return derived[0] if derived else whole_texts(pickle.loads(pickled))


_FILES = {
    AutoConfig: "config.json",
    AutoTokenizer: "its tokenizer (tokenizer.json)",
    AutoModelForCausalLM: "config.json and weights",
}
"""What `_load` reads."""


def _check_tokenizer(location: Location, highest: int, config: PreTrainedConfig) -> None:
    """Require an embedding for every token id; embeddings may be padded beyond the vocabulary."""
    rows = config.get_text_config().vocab_size
    if highest >= rows:
        raise CheckpointError(
            f"{location.source}: the tokenizer has token id {highest}, but the model has only {rows} "
            "embeddings; the tokenizer belongs to another model"
        )


def _parameters(location: Location) -> int:
    if location.header is not None:
        return sum(int(tensor.n_elements) for tensor in location.header.tensors)
    return sum(math.prod(tensor.shape) for tensor in stored_tensors(location.folder))


def _lineage(location: Location, original: str) -> dict[str, Any]:
    """Its `lineage.json`; of a variant what it is made of, so that it is no other run of the same recipe."""
    file = location.folder / "lineage.json"
    lineage = read_object(file) if location.gguf is None and file.is_file() else {}
    if not location.precision:
        return lineage
    teacher = {"teacher": lineage["teacher"]} if "teacher" in lineage else {}
    variant_of = {"label": _file_label(location), "weights_id": original}
    return {**teacher, "variant_of": {**variant_of, **location.precision.stated}}


def _label(location: Location) -> str:
    return location.precision.label(_file_label(location))


def _file_label(location: Location) -> str:
    if location.gguf is None:
        return location.source.rstrip("/").rsplit("/", 1)[-1] if location.source != "pocket" else "pocket"
    if found := _QUANTIZED.fullmatch(location.gguf):
        return f"{found['name']} ({found['kind']} dequantized)"
    return f"{location.gguf.removesuffix('.gguf')} (dequantized)"
