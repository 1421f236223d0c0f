"""A web server for one report folder on this computer."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from evalsuite.foundation import ConfigError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost", "::1")
"""Names of this computer in a browser."""


def _host_name(host: str) -> str | None:
    """The name in a `Host` header, which has a port unless it is 80; None if it is no host."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class _Handler(SimpleHTTPRequestHandler):
    """Serves the files of one folder; refuses listings, links out of it and requests of other sites."""

    timeout = 30
    """Seconds that a connection may be idle."""

    def __init__(self, *args: object, root: Path, refresh: Callable[[], None], **kwargs: object) -> None:
        self.root = root
        self.refresh = refresh
        super().__init__(*args, directory=str(root), **kwargs)  # type: ignore[arg-type]

    def send_head(self):  # type: ignore[no-untyped-def]  # the type of the base class is private
        """Answer GET and HEAD."""
        if _host_name(self.headers.get("Host", "")) not in NAMES:
            # A name that another site resolves to this computer would let it read the report.
            self.send_error(HTTPStatus.FORBIDDEN, "Only localhost is served")
            return None
        if self.path.partition("?")[0] in ("/", "/index.html"):
            self.refresh()
            self.path = "/index.html"
        try:
            path = Path(self.translate_path(self.path))
            found = path.is_file() and path.resolve().is_relative_to(self.root)
        except (OSError, ValueError):  # A name that no file can have.
            found = False
        if not found:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def handle(self) -> None:
        """Handle the requests of one connection, whose browser may close it at any time."""
        with suppress(ConnectionError):
            super().handle()

    def finish(self) -> None:
        """Close the connection."""
        with suppress(ConnectionError):
            super().finish()

    def end_headers(self) -> None:
        """Let no browser keep a page of a run that goes on."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def make_server(folder: Path, port: int, refresh: Callable[[], None]) -> ThreadingHTTPServer:
    """Bind a server to a port of localhost; `serve_forever` starts it.

    Args:
        folder: the only folder whose files are served.
        port: 0 takes any free one.
        refresh: called before index.html is sent, never by two requests at once.

    Raises:
        ConfigError: the port cannot be used.
    """
    lock = threading.Lock()

    def one_at_a_time() -> None:
        with lock:
            refresh()

    handler = partial(_Handler, root=Path(folder).resolve(), refresh=one_at_a_time)
    try:
        return ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: {error}; choose another port, or 0 for any") from error
