"""Worker script in vLLM's environment: loads models and runs requests over pipes, one JSON object a line.

It prints {"vllm": version} once, then one reply per input line: {"ready": {versions}} to {"verb": "start",
"model": …}, {"results": […]} to {"verb": "score" | "generate", "requests": […]}, {"error": text, "traceback":
text} on failure, and {"error": text, "unknown": name, "known": names} for an unknown argument of vLLM.
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
    # vLLM and its child processes log to standard output, which is redirected away from the pipe.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=pipe, flush=True)

    try:
        import vllm
    except Exception as error:
        send({"error": f"{type(error).__name__}: {error}"})
        return
    send({"vllm": vllm.__version__})
    engine = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["verb"] == "start":
                # Free the previous model first; two may not fit.
                engine = None
                gc.collect()
                engine, versions = start(request)
                send({"ready": versions})
            else:
                run = score if request["verb"] == "score" else generate
                send({"results": run(engine, request)})
        except UnknownArgumentError as error:
            name, known = error.args
            send({"error": f"no argument {name}", "unknown": name, "known": known})
        except Exception as error:
            send({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})


class UnknownArgumentError(Exception):
    """An argument that vLLM does not have, and those that it has."""


def known_arguments() -> set[str]:
    """Keyword arguments of `vllm.LLM` in this version."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    own = {name for name in inspect.signature(vllm.LLM.__init__).parameters if name not in {"self", "kwargs"}}
    return own | {field.name for field in dataclasses.fields(EngineArgs)}


def start(settings: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    import vllm
    from vllm.platforms import current_platform

    arguments = {
        # With prefix caching, responses depend on the order of requests (vLLM #42019).
        "enable_prefix_caching": False,
        "seed": 0,
        **settings["arguments"],
    }
    if current_platform.is_cpu() and "kv_cache_memory_bytes" not in arguments:
        # On a CPU vLLM reserves nearly all memory by default and fails if other processes use some.
        import psutil

        free = psutil.virtual_memory()
        arguments["gpu_memory_utilization"] = round(0.4 * free.available / free.total, 2)
    if current_platform.is_cuda() and "gpu_memory_utilization" not in arguments:
        if "kv_cache_memory_bytes" in arguments:
            # vLLM ignores this share then, but starts only if it is free: by default 92 % of the memory.
            arguments["gpu_memory_utilization"] = 0.1
        else:
            # Likewise on a GPU, where `evalsuite doctor` has the same model loaded a second time.
            import torch

            free, total = torch.cuda.mem_get_info()
            arguments["gpu_memory_utilization"] = round(0.9 * free / total, 2)
    if current_platform.is_cpu() and arguments.get("tensor_parallel_size", 1) == 1:
        # This process is already dedicated to vLLM; two more imports of vLLM would only delay the start.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if current_platform.is_cpu():
        # Compilation takes minutes, more than it saves in most evaluations on a CPU.
        arguments.setdefault("enforce_eager", True)
    known = known_arguments()
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
    """Backend of a student's recurrences, named as in the in-process engine's fingerprint."""
    from evalsuite.models.ops import packages

    return packages.version() if on_gpu and not packages.unavailable_reason() else "torch"


def score(engine: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Log-probability and greedy flag of each request's `tokens` from index `start` on."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1, detokenize=False)
    prompts = [{"prompt_token_ids": row["tokens"]} for row in request["requests"]]
    results = []
    for row, output in zip(
        request["requests"], engine.generate(prompts, sampling, use_tqdm=False), strict=True
    ):
        tokens, start = row["tokens"], row["start"]
        found = [
            logprobs[token]
            for token, logprobs in zip(tokens[start:], output.prompt_logprobs[start:], strict=True)
        ]
        results.append(
            {
                "logprob": sum(entry.logprob for entry in found),
                "greedy": all(entry.rank == 1 for entry in found),
            }
        )
    return results


def generate(engine: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Generated tokens of each prompt, stop tokens included, and the number of cached prompt tokens."""
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
            # Stop tokens are given above; vLLM would add those of the generation config.
            ignore_eos=True,
            # The client detokenizes; vLLM needs text only to match stop strings.
            detokenize=bool(row["stop"]),
        )
        for row in request["requests"]
    ]
    prompts = [{"prompt_token_ids": row["tokens"]} for row in request["requests"]]
    outputs = engine.generate(prompts, samplings, use_tqdm=False)
    return [
        {"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens or 0}
        for output in outputs
    ]


if __name__ == "__main__":
    main()
