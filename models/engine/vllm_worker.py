"""Runs in vLLM's own environment: loads models and answers requests over pipes, one JSON line each.

Prints {"vllm": version} once. Then for each line read it prints one: to {"verb": "start", "model": …} it
answers {"ready": {versions}}, to {"verb": "score" | "generate", "rows": […]} {"answers": […]}, and
{"error": text} if that failed; {"error": text, "unknown": name, "known": names} for an argument that vLLM
does not have.
"""

import dataclasses
import gc
import importlib.metadata
import inspect
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    # vLLM and the processes it starts write logs to standard output; the pipe is kept from them.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=pipe, flush=True)

    try:
        import vllm
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"vllm": vllm.__version__})
    engine = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["verb"] == "start":
                # The old model goes first: two might not fit.
                engine = None
                gc.collect()
                engine, versions = start(request)
                say({"ready": versions})
            else:
                answer = score if request["verb"] == "score" else generate
                say({"answers": answer(engine, request)})
        except UnknownArgumentError as error:
            say({"error": f"no argument {error.name}", "unknown": error.name, "known": error.known})
        except Exception as error:
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})


class UnknownArgumentError(Exception):
    """vLLM has no such argument."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(name)
        self.name, self.known = name, known


def arguments_known() -> set[str]:
    """What `vllm.LLM` of this version can be given by name."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    own = {name for name in inspect.signature(vllm.LLM.__init__).parameters if name not in {"self", "kwargs"}}
    return own | {field.name for field in dataclasses.fields(EngineArgs)}


def start(settings: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    import vllm
    from vllm.platforms import current_platform

    arguments = {
        # Cached prefixes make answers depend on the order of requests (vLLM #42019).
        "enable_prefix_caching": False,
        "seed": 0,
        **settings["arguments"],
    }
    if current_platform.is_cpu() and "kv_cache_memory_bytes" not in arguments:
        # On a CPU vLLM plans with nearly all of the memory and refuses to start if others use some.
        import psutil

        free = psutil.virtual_memory()
        arguments["gpu_memory_utilization"] = round(0.4 * free.available / free.total, 2)
    if current_platform.is_cuda() and not arguments.keys() & {
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
    }:
        # Likewise on a GPU, where the doctor holds the same model a second time.
        import torch

        free, total = torch.cuda.mem_get_info()
        arguments["gpu_memory_utilization"] = round(0.9 * free / total, 2)
    if current_platform.is_cpu() and arguments.get("tensor_parallel_size", 1) == 1:
        # This process does nothing else: two more, each importing vLLM again, would only start slowly.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if current_platform.is_cpu():
        # Compiling takes minutes, longer than what it saves in most evaluations on a CPU.
        arguments.setdefault("enforce_eager", True)
    known = arguments_known()
    if unknown := [name for name in arguments if name not in known]:
        raise UnknownArgumentError(unknown[0], sorted(known))
    engine = vllm.LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["max_length"],
        **arguments,
    )
    packages = ("torch", "transformers")
    versions = {package: importlib.metadata.version(package) for package in packages}
    versions["graph"] = "eager" if arguments.get("enforce_eager") else "compiled"
    if settings["student"]:
        versions["recurrence"] = recurrence(current_platform.is_cuda())
    return engine, {"vllm": vllm.__version__, "device": current_platform.device_type, **versions}


def recurrence(on_gpu: bool) -> str:
    """What computes a student's recurrences, as the in-process engine names it in its fingerprint."""
    from evalsuite.models.recurrence import fla_backend

    return fla_backend.version() if on_gpu and not fla_backend.why_missing() else "torch"


def score(engine: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Log-probability and greedy flag of every token of `tokens` from number `start` on."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    prompts = [{"prompt_token_ids": row["tokens"]} for row in request["rows"]]
    answers = []
    for row, output in zip(request["rows"], engine.generate(prompts, sampling, use_tqdm=False), strict=True):
        tokens, start = row["tokens"], row["start"]
        found = [
            logprobs[token]
            for token, logprobs in zip(tokens[start:], output.prompt_logprobs[start:], strict=True)
        ]
        answers.append(
            {
                "logprob": sum(entry.logprob for entry in found),
                "greedy": all(entry.rank == 1 for entry in found),
            }
        )
    return answers


def generate(engine: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens written after each prompt, those that ended it included; and how many were not read again."""
    from vllm import SamplingParams

    samplings = [
        SamplingParams(
            max_tokens=row["limit"],
            temperature=row["temperature"],
            top_p=row["top_p"],
            top_k=row["top_k"],
            seed=row["seed"],
            stop=row["stop"],
            stop_token_ids=row["stop_tokens"],
            # Which tokens end an answer is said above; vLLM would add those of the folder's own settings.
            ignore_eos=True,
            # Text is made of the tokens in process; vLLM needs it to look for words that end an answer.
            detokenize=bool(row["stop"]),
        )
        for row in request["rows"]
    ]
    prompts = [{"prompt_token_ids": row["tokens"]} for row in request["rows"]]
    outputs = engine.generate(prompts, samplings, use_tqdm=False)
    return [
        {"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens or 0}
        for output in outputs
    ]


if __name__ == "__main__":
    main()
