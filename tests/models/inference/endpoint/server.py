"""A small server of OpenAI's completions API on loopback, which misbehaves on request."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

Fault = Callable[[int, dict[str, Any]], str]
"""From the number of a request and its body to what goes wrong; an empty text: nothing."""
Altered = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes the choice of a body before it is sent."""


class Server:
    """Serves one checkpoint; `fault` and the attributes below are read for every request."""

    def __init__(self, checkpoint: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        # vLLM stops at these.
        self.ends = {self.tokenizer.eos_token_id, self.model.generation_config.eos_token_id}
        self.fault: Fault = lambda number, body: ""
        self.altered: Altered = lambda body, choice: None
        self.rows: dict[tuple[int, ...], torch.Tensor] = {}
        """Log-probabilities [T, V] of known texts; to be cleared with a change of the weights."""
        self.names_ids = True
        """Whether it names tokens by their ids if it is told to."""
        self.scores = True
        """Whether it returns log-probabilities of a prompt."""
        self.noise = 0.0
        """Nats by which log-probabilities are rounded, at random, at most."""
        positions = self.model.config.max_position_embeddings
        self.models: list[dict[str, Any]] = [{"id": "tiny", "max_model_len": positions}]
        self.version: str | None = "1.2.3"
        self.keys: list[str | None] = []
        self.bodies: list[dict[str, Any]] = []
        self.answered: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0
        self.url = ""
        self._lock = threading.Lock()

    @contextmanager
    def counted(self, body: dict[str, Any]) -> Iterator[int]:
        """Count a request while it runs; yields its number."""
        with self._lock:
            self.bodies.append(body)
            number = len(self.bodies)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            yield number
        finally:
            with self._lock:
                self.in_flight -= 1

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities [T, V] after each token."""
        rows = self.rows.get(key := tuple(tokens))
        if rows is None:
            rows = self.rows[key] = self.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return rows + self.noise * (2 * torch.rand_like(rows) - 1)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One choice, as vLLM returns it."""
        prompt = body["prompt"]
        tokens = list(prompt)
        reason, stopped = "length", None
        for _ in range(body["max_tokens"]):
            tokens.append(int(self.logprobs(tokens)[-1].argmax()))
            text = self.tokenizer.decode(tokens[len(prompt) :], skip_special_tokens=True)
            if tokens[-1] in self.ends:
                reason = "stop"
                break
            if found := [stop for stop in body.get("stop", []) if stop in text]:
                reason, stopped = "stop", found[0]
                text = text[: text.index(stopped)]
                break
        new = tokens[len(prompt) :]
        if reason == "stop" and stopped is None:
            text = self.tokenizer.decode(new[:-1], skip_special_tokens=True)
        choice = {"text": text, "finish_reason": reason, "stop_reason": stopped}
        if body.get("return_token_ids"):
            choice["token_ids"] = new[:-1] if reason == "stop" and stopped is None else new
        if body.get("echo") and self.scores:
            rows = self.logprobs(tokens)[:-1]
            picked = [None] + [float(row[token]) for row, token in zip(rows, tokens[1:], strict=True)]
            name = (
                "token_id:{}".format
                if body.get("return_tokens_as_token_ids") and self.names_ids
                else lambda token: self.tokenizer.decode([token])
            )
            values, ids = (each.tolist() for each in rows.topk(body["logprobs"]))
            best = [None] + [
                dict(zip(map(name, row), logprobs, strict=True))
                for row, logprobs in zip(ids, values, strict=True)
            ]
            texts = list(map(name, tokens))
            choice["logprobs"] = {"tokens": texts, "token_logprobs": picked, "top_logprobs": best}
        self.altered(body, choice)
        return {"choices": [choice]}


@contextmanager
def serving(checkpoint: Path) -> Iterator[Server]:
    """Serve a checkpoint in threads of this process until the end of the block."""
    server = Server(checkpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body are two packets, between which a kept connection would wait for 40 ms.
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, text: str, kind: str = "application/json", **headers: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", headers.pop("length", str(len(data))))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            server.keys.append(self.headers.get("Authorization"))
            if self.path == "/v1/models":
                self.reply(200, json.dumps({"data": server.models}))
            elif self.path == "/version" and server.version is not None:
                self.reply(200, json.dumps({"version": server.version}))
            else:
                self.reply(404, json.dumps({"detail": "Not Found"}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.counted(body) as number:
                self.answer(number, body)

        def answer(self, number: int, body: dict[str, Any]) -> None:
            fault = server.fault(number, body)
            if fault == "500":
                return self.reply(500, "oops")
            if fault == "429":
                return self.reply(429, json.dumps({"error": {"message": "busy"}}), Retry_After="0")
            if fault == "400":
                return self.reply(400, json.dumps({"error": {"message": "too long"}}))
            if fault == "401":
                return self.reply(401, json.dumps({"error": {"message": "no key"}}))
            if fault == "html":
                return self.reply(200, "<html>Bad gateway</html>", "text/html")
            if fault == "nothing":
                return self.reply(200, "")
            if fault == "drip":
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for _ in range(100):
                    self.wfile.write(b"1\r\n \r\n")
                    time.sleep(0.05)
                return None
            value = server.complete(body)
            choice = value["choices"][0]
            if fault == "fewer":
                choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:-3]
            if fault == "no echo":
                choice.pop("logprobs", None)
            if fault == "no tops":
                choice["logprobs"]["top_logprobs"] = None
            if fault == "other texts":
                choice["logprobs"]["tokens"] = ["x" + text for text in choice["logprobs"]["tokens"]]
            if fault == "bare":
                choice.pop("token_ids", None)
                choice.pop("stop_reason", None)
            text = json.dumps(value)
            server.answered += [] if fault == "half" else [body]
            if fault == "half":
                self.close_connection = True
                return self.reply(200, text[: len(text) // 2], length=str(len(text)))
            return self.reply(200, text)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
