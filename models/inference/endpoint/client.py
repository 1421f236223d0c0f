"""Calls of a server with OpenAI's completions API, repeated while it is busy or unreachable."""

import json
import os
import random
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from evalsuite.foundation import ConfigError, EvalsuiteError

KEY_ENV = "OPENAI_API_KEY"
"""Variable with the server's key; it is sent, and written nowhere."""
MAX_BYTES = 64 << 20
"""Longest body that is read; an answer that does not end is no answer."""
MAX_WAIT = 30.0
"""Longest pause between two attempts, in seconds."""


class RefusedError(EvalsuiteError):
    """The server refuses one request, e.g. because it is too long for it."""


class ServerError(EvalsuiteError):
    """The server gives no usable answer, however often it is called."""

    exit_code = 69


class Client:
    """Calls one server, from any number of threads.

    Args:
        url: of the API, e.g. http://localhost:8000/v1. Certificates are those of the system or of
            SSL_CERT_FILE, the key is that of OPENAI_API_KEY.
        timeout: seconds until a whole answer must have come.
        retries: further attempts when the server is busy (429), fails (5xx), is unreachable or breaks off.
        connections: that are open at once.

    Raises:
        ConfigError: not an http address, or one that holds a password.
    """

    def __init__(self, url: str, *, timeout: float, retries: int, connections: int) -> None:
        parts = urlsplit(url)
        try:
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise ConfigError("url: expected the address of an API, e.g. http://localhost:8000/v1")
        if parts.username or parts.password or parts.query:
            raise ConfigError(f"url: leave out user, password and query; a key is read from {KEY_ENV}")
        self.url = url.rstrip("/")
        self._timeout, self._retries = timeout, retries
        key = os.environ.get(KEY_ENV)
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    def get(self, path: str) -> Any:
        """Return the JSON value at a path below the URL. Raises as `post`."""
        return self._call("GET", f"{self.url}/{path}", None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON body and return the JSON value that comes back.

        Raises:
            RefusedError: the server says that this request is wrong (400, 413, 422).
            ConfigError: it asks for a key, or has no such path.
            ServerError: no usable answer in all attempts.
        """
        return self._call("POST", f"{self.url}/{path}", body)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _call(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        reason = ""
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(_pause(attempt))
            try:
                status, text, after = self._once(method, url, body)
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                continue
            except _UnendingError as error:
                reason = str(error)
                continue
            if status in (400, 413, 422):
                raise RefusedError(f"the server refuses the request: {_message(text)}")
            if status in (401, 403):
                raise ConfigError(f"{url}: the server asks for a key ({status}); set {KEY_ENV}")
            if status == 404:
                raise ConfigError(f"{url}: not found (404): {_message(text)}; the URL ends in /v1 as a rule")
            if status == 200:
                try:
                    return json.loads(text)
                except ValueError:
                    reason = f"no JSON but {_excerpt(text)}"
                    continue
            reason = f"status {status}: {_message(text)}"
            if after is not None:
                time.sleep(min(after, MAX_WAIT))
        raise ServerError(
            f"{url}: no answer in {self._retries + 1} attempts; the last one: {reason}. Responses so far are "
            "kept"
        )

    def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> tuple[int, str, float | None]:
        """Return status, body and the seconds that the server asks to wait."""
        end = time.monotonic() + self._timeout
        with self._http.stream(method, url, json=body) as response:
            parts, size = [], 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MAX_BYTES or time.monotonic() > end:
                    raise _UnendingError(f"an answer that had not ended after {size:,} bytes")
            after = response.headers.get("Retry-After", "")
            text = b"".join(parts).decode("utf-8", "replace")
            return response.status_code, text, float(after) if after.isdigit() else None


def _pause(attempt: int) -> float:
    """Seconds before an attempt; drawn, so that the threads of a run do not come back together."""
    return float(min(MAX_WAIT, 0.25 * 2**attempt) * random.uniform(0.5, 1.0))


class _UnendingError(Exception):
    pass


def _message(text: str) -> str:
    """What an error says, in the forms of OpenAI's API and of FastAPI."""
    try:
        value = json.loads(text)
    except ValueError:
        return _excerpt(text)
    for name in ("error", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    if isinstance(value, dict):
        value = value.get("message", value)
    return _excerpt(str(value))


def _excerpt(text: str) -> str:
    words = " ".join(text.split())
    return repr(words[:150]) if words else "an empty body"
