"""What identifies an imported checkpoint: all that its log states about it, but what changes no number."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from evalsuite.foundation import canonical_json
from evalsuite.reports.imports.importer import ImportedLog

NEUTRAL = frozenset(
    {
        # How many requests at once, and where.
        *("batch_size", "max_batch_size", "eval_batch_size", "num_concurrent", "max_connections"),
        *("device", "devices", "gpus", "device_map", "device_map_option", "parallelize"),
        *("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization"),
        *("max_memory_per_gpu", "max_cpu_memory", "offload_folder", "swap_space", "cpu_offload_gb"),
        *("low_cpu_mem_usage", "max_num_seqs", "max_num_batched_tokens", "disable_log_stats"),
        # How a connection is kept.
        *("max_retries", "retries", "retry_interval", "timeout", "attempt_timeout", "stream", "batch"),
        *("stream_idle_timeout", "adaptive_connections"),
        *("cache", "cache_dir", "download_dir", "cache_prompt", "local_files_only", "force_download"),
        # Permission to load, not what is loaded.
        "trust_remote_code",
    }
)
"""Settings of a model or a generation that change no number."""

_SECRET = re.compile(
    r"(.*[_-])?(api[_-]?key|access[_-]?key|secret([_-]?key)?|password|passwd|authorization|credentials?"
    r"|headers?|(hf|hub|auth|access|api|bearer)[_-]token)|token",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"\b(Bearer\s+\S+|(sk|hf|ghp|xox[a-z])[-_][A-Za-z0-9_-]{16,})")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of an object in memory: differs by process."""
_SHOWN = 40


def without_secrets(value: Any) -> Any:
    """Copy a JSON value without keys and tokens, which are never stored."""
    if isinstance(value, Mapping):
        return {str(k): without_secrets(v) for k, v in value.items() if not _SECRET.fullmatch(str(k))}
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in value]
    if isinstance(value, str):
        text = _SECRET_VALUE.sub("…", value)
        return _without_login(text) if "://" in text else text
    return value


def _without_login(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.netloc.rsplit("@", 1)[-1]
    except ValueError:
        return url
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def identity_of(harness: str, /, **stated: Any) -> dict[str, str]:
    """Flatten what a log states about a model into texts, without secrets and what is neutral or empty.

    Args:
        harness: whose log it is; its names of models are its own.
        stated: fields of the log; nested objects give keys such as `model_args.dtype`.
    """
    found: dict[str, str] = {"harness": harness}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, each in value.items():
                if str(key) not in NEUTRAL:
                    collect(f"{name}.{key}" if name else str(key), each)
        elif value not in (None, "", [], "None"):
            found[name] = _text(value)

    collect("", without_secrets(stated))
    return dict(sorted(found.items()))


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else canonical_json(value)
    text = {"true": "True", "false": "False"}.get(text, text)
    return _ADDRESS.sub("", text).removeprefix("torch.")


def labels_of(logs: Sequence[ImportedLog]) -> list[str]:
    """Labels that tell the checkpoints of one harness apart; another may have evaluated the same model.

    Equal labels of different checkpoints get the parts of their paths that differ, such as `teacher/final`,
    else the settings that differ, such as `base (model_args.dtype=float16)`.
    """
    found = [log.label for log in logs]
    for name in {(log.harness, log.label) for log in logs}:
        label = name[1]
        members = [i for i, log in enumerate(logs) if (log.harness, log.label) == name]
        different = {canonical_json(dict(logs[i].identity)): logs[i] for i in members}
        if len(different) > 1:
            names = dict(zip(different, _told_apart(label, list(different.values())), strict=True))
            for i in members:
                found[i] = names[canonical_json(dict(logs[i].identity))]
    return found


def _told_apart(label: str, logs: Sequence[ImportedLog]) -> list[str]:
    labels = _with_folders([log.path or label for log in logs], label)
    keys = sorted({key for log in logs for key in log.identity} - {"model", "harness"}, key=_depth)
    chosen: list[str] = []

    def labelled(keys: Sequence[str]) -> list[str]:
        settings = [_shown(keys, log.identity) for log in logs]
        return [f"{name} ({text})" if text else name for name, text in zip(labels, settings, strict=True)]

    for key in keys:
        if len(set(labelled([*chosen, key]))) > len(set(labelled(chosen))):
            chosen.append(key)
    return labelled(chosen)


def _depth(key: str) -> tuple[int, str]:
    return key.count("."), key


def _shown(keys: Iterable[str], identity: Mapping[str, Any]) -> str:
    stated = {key: str(identity[key]) for key in keys if key in identity}
    return ", ".join(
        f"{key.rsplit('.', 1)[-1]}={text if len(text) <= _SHOWN else '…' + text[-_SHOWN:]}"
        for key, text in stated.items()
    )


def _with_folders(paths: Sequence[str], label: str) -> list[str]:
    """The label with as many folders before it as tell the paths apart; alike for equal paths."""
    parts = [path.rstrip("/").split("/") for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(each[-depth:]) for each in parts]
        if len(set(tails)) == len(set(map(tuple, parts))):
            break
    return [label if depth == 1 else tail for tail in tails]
