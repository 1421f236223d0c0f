"""What `bench_engine` compares the in-process engine with: lm-eval's HFLM, and vLLM in its own process."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from evalsuite.foundation import MissingDependencyError
from evalsuite.models.checkpoints.load import Checkpoint, describe_checkpoint
from evalsuite.models.inference.vllm.engine import VllmEngine
from evalsuite.protocols.tokenization import Encoder
from tests.performance.engine_workloads import Workload, run_engine


@dataclass(frozen=True, slots=True)
class Peer:
    """Another engine with the same checkpoint."""

    name: str
    run: Callable[[Workload], list[Any]]
    """One result per pair (log-probability, greedy) or per prompt (text)."""
    batch_size: Callable[[], int]
    """Sequences of its last passes, at most."""


@contextmanager
def hflm(checkpoint: Checkpoint, max_length: int) -> Iterator[Peer]:
    """lm-eval's HFLM, in batches of a workload's size, or the largest that fit.

    Raises:
        MissingDependencyError: lm-eval is not installed.
    """
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise MissingDependencyError(f"lm-eval is not installed: {error}") from error
    lm = HFLM(pretrained=checkpoint.model, tokenizer=checkpoint.tokenizer, max_length=max_length)
    fitting: dict[int, int] = {}

    def run(workload: Workload) -> list[Any]:
        lm.batch_size_per_gpu = fitting.get(workload.batch_size, workload.batch_size)
        results = run_hflm(lm, workload)
        fitting[workload.batch_size] = lm.batch_size_per_gpu
        return results

    yield Peer("HFLM", run, lambda: int(lm.batch_size_per_gpu))


@contextmanager
def vllm(checkpoint: Checkpoint, max_length: int) -> Iterator[Peer]:
    """vLLM, which scores with `prompt_logprobs`; the checkpoint is saved to a temporary folder for it.

    Raises:
        MissingDependencyError: no environment that has vLLM.
    """
    arguments: dict[str, Any] = {"max_num_seqs": 256}
    if checkpoint.model.device.type == "cuda":
        # vLLM would take nine tenths of the memory, and the in-process engine needs some.
        arguments["gpu_memory_utilization"] = 0.4
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.model.save_pretrained(folder)
        checkpoint.tokenizer.save_pretrained(folder)
        with VllmEngine(
            describe_checkpoint(folder),
            dtype=str(checkpoint.model.dtype).removeprefix("torch."),
            max_length=max_length,
            arguments=arguments,
        ) as engine:
            encoder = Encoder(checkpoint.tokenizer)
            yield Peer(
                f"vLLM {engine.versions['vllm']}",
                lambda workload: run_engine(engine, encoder, workload),
                lambda: int(arguments["max_num_seqs"]),
            )


PEERS = {"hflm": hflm, "vllm": vllm}


def run_hflm(lm: Any, workload: Workload) -> list[Any]:
    """The same workload in lm-eval's HFLM, in the largest batches that fit."""
    while True:
        try:
            return _run_hflm(lm, workload)
        except torch.OutOfMemoryError:
            if lm.batch_size_per_gpu == 1:
                raise
        # After the handler, which holds the tensors of the failed pass.
        lm.batch_size_per_gpu //= 2
        torch.cuda.empty_cache()


def _run_hflm(lm: Any, workload: Workload) -> list[Any]:
    from lm_eval.api.instance import Instance

    if workload.prompts:
        settings = {"until": [], "max_gen_toks": workload.new_tokens, "do_sample": False}
        instances = [
            Instance("generate_until", {}, (text, settings), i) for i, text in enumerate(workload.prompts)
        ]
        return list(lm.generate_until(instances, disable_tqdm=True))
    instances = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(workload.pairs)]
    return list(lm.loglikelihood(instances, disable_tqdm=True))
