"""What a process that runs models does before it knows which: it imports, hashes, and starts CUDA meanwhile.

Importing this module is cheap.
"""

import threading
from contextlib import suppress
from functools import partial
from typing import Any

from evalsuite.config import RunConfig
from evalsuite.executors import Executor
from evalsuite.foundation.garbage_collection import collection_paused

IN_PROCESS = ("torch", "transformers")
"""Engines that compute in the process that opens them. Another one may need the whole memory of a GPU for a
process of its own, and states how many GPUs it takes only once it is imported."""


def serves_any(config: RunConfig) -> bool:
    """Whether no engine refuses this run before it loads a checkpoint, as `check_servable` may."""
    return "infer" not in config.phases or (config.engine in IN_PROCESS and not config.engine_args)


def prepare_workers(config: RunConfig, executor: Executor) -> None:
    """Start the workers of a run's infer phase, if it is known what they will need."""
    if config.engine in IN_PROCESS:
        gpus = 0 if config.device == "cpu" else None
        executor.prepare(partial(warm_up, config.engine, config.device), gpus)


def warm_up(engine: str, device: str) -> None:
    """Import an engine; a thread starts CUDA as soon as torch is imported."""
    with collection_paused():
        _import(engine, device)


def _import(engine: str, device: str) -> None:
    import torch

    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        threading.Thread(
            target=_start_cuda, args=("cuda" if device == "auto" else device,), name="cuda", daemon=True
        ).start()
    from evalsuite.models.checkpoints.fingerprint import STUDENT_SOURCE, source_hash
    from evalsuite.models.engines import engine_type

    kind: Any = engine_type(engine, {})
    if on_gpu:
        from evalsuite.models.ops.packages import hash_triton_ahead

        hash_triton_ahead()
    # Parsing what the fingerprint of every decoder of ours covers takes a second.
    source_hash(*kind.source, *STUDENT_SOURCE)


def _start_cuda(device: str) -> None:
    import torch

    # What fails here fails again where it is needed, which reports it.
    with suppress(Exception):
        torch.zeros(1, device=device)
