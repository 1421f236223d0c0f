"""Runs in vLLM's own environment, which has nothing of ours: answers requests over pipes, one JSON line each.

    python vllm_worker.py '{"model": …, "dtype": …, "max_length": …}'

Prints {"ready": {versions}} once, then for each line read one line {"answers": […]} or {"error": text}.
"""

import importlib.metadata
import json
import os
import sys
from typing import Any


def main() -> None:
    # vLLM and the processes it starts write logs to standard output; the pipe is kept from them.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    try:
        engine, versions = start(settings)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=pipe, flush=True)
        return
    print(json.dumps({"ready": versions}), file=pipe, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answers = score(engine, request) if request["verb"] == "score" else generate(engine, request)
            print(json.dumps({"answers": answers}), file=pipe, flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=pipe, flush=True)


def start(settings: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    import vllm
    from vllm.platforms import current_platform

    memory = {}
    if current_platform.is_cpu():
        # On a CPU vLLM plans with nearly all of the memory and refuses to start if others use some.
        import psutil

        free = psutil.virtual_memory()
        memory = {"gpu_memory_utilization": round(0.4 * free.available / free.total, 2)}
    engine = vllm.LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["max_length"],
        # Cached prefixes make answers depend on the order of requests (vLLM #42019).
        enable_prefix_caching=False,
        seed=0,
        **memory,
    )
    packages = ("torch", "transformers")
    versions = {package: importlib.metadata.version(package) for package in packages}
    return engine, {"vllm": vllm.__version__, "device": current_platform.device_type, **versions}


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
    """Tokens written after each prompt, those that ended it included."""
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
        )
        for row in request["rows"]
    ]
    prompts = [{"prompt_token_ids": row["tokens"]} for row in request["rows"]]
    outputs = engine.generate(prompts, samplings, use_tqdm=False)
    return [{"tokens": list(output.outputs[0].token_ids)} for output in outputs]


if __name__ == "__main__":
    main()
