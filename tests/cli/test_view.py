"""`evalsuite view`: only the report folder, only localhost, rebuilt when scores change."""

import http.client
import os
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalsuite.cli import main
from evalsuite.cli.commands.view import Refresh, report_folder
from evalsuite.foundation import ConfigError
from evalsuite.reports.page.server import _Handler, make_server

FIXTURES = Path(__file__).parents[1] / "reports" / "fixtures"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with scores."""
    return Path(shutil.copytree(FIXTURES / "passing", tmp_path / "run"))


@pytest.fixture
def port(run: Path) -> Iterator[int]:
    """A server of the run's report."""
    refresh = Refresh(run, report_folder(run))
    refresh()
    server = make_server(refresh.report, 0, refresh)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def get(port: int, path: str, host: str = "localhost", *, state_port: bool = True) -> tuple[int, bytes]:
    """Status and body of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", f"{host}:{port}" if state_port else host)
    connection.endheaders()
    response = connection.getresponse()
    return response.status, response.read()


def test_published_samples_are_viewed_like_a_run(run: Path, tmp_path: Path) -> None:
    assert main(["compare", str(run), "--redact", "--export-samples", "--out", str(tmp_path / "page")]) == 0
    folder = tmp_path / "page" / "samples"
    refresh = Refresh(folder, report_folder(folder))
    refresh()
    assert refresh.page == folder / "report" / "index.html"
    assert "student" in refresh.page.read_text()


def test_page_and_samples_are_served(run: Path, port: int) -> None:
    status, page = get(port, "/")
    assert status == 200
    assert b'id="sample-open"' in page
    name = next((run / "report" / "samples").iterdir()).name
    assert get(port, f"/samples/{name}")[1].startswith(b"evalsuiteSamples(")


def test_nothing_outside_the_report_is_served(run: Path, port: int) -> None:
    report = run / "report"
    (report / "inside.txt").symlink_to(report / "report.md")
    (report / "outside.txt").symlink_to(run / "run.json")
    (report / "outside").symlink_to(run, target_is_directory=True)
    assert get(port, "/inside.txt")[0] == 200
    for path in (
        "/outside.txt", "/outside/run.json", "/../run.json", "/%2e%2e/run.json", "/samples/", "/samples",
        "//etc/passwd", "/missing", "/" + 5000 * "a", "/" + 300 * "a/", "/%00",
    ):  # fmt: skip
        assert get(port, path)[0] == 404, path
    assert get(port, "/", host="example.org")[0] == 403


def test_only_this_host_is_served_and_browsers_leave_port_80_out(port: int) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
        assert get(port, "/", host, state_port=False)[0] == 200, host
        assert get(port, "/", host)[0] == 200, host
    for host in ("", "example.org", "localhost.example.org", "[::1", "::1", "[::2]", "a@b"):
        assert get(port, "/", host, state_port=False)[0] == 403, host


def test_a_browser_that_closes_early_or_says_nothing_is_no_error(
    port: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    for request in (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(request)
    with socket.create_connection(("127.0.0.1", port)) as idle:
        idle.settimeout(10)
        assert idle.recv(1) == b""
    assert get(port, "/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_page_is_rebuilt_when_scores_change(run: Path, port: int) -> None:
    page = run / "report" / "index.html"
    built = page.stat().st_mtime_ns
    get(port, "/")
    assert page.stat().st_mtime_ns == built
    score = next((run / "scores").iterdir())
    os.utime(score, ns=(built + 10**9, built + 10**9))
    get(port, "/")
    assert page.stat().st_mtime_ns > built


def test_a_report_folder_is_served_as_it_is(run: Path, port: int) -> None:
    report = run / "report"
    before = {path: path.stat().st_mtime_ns for path in report.rglob("*")}
    Refresh(report, report_folder(report))()
    assert {path: path.stat().st_mtime_ns for path in report.rglob("*")} == before


def test_a_run_without_scores_has_a_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "scores")
    Refresh(run, report_folder(run))()
    assert (run / "report" / "index.html").is_file()


def test_other_folders_and_ports_in_use_are_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(ConfigError, match=r"neither a run folder .* nor a report"):
        report_folder(tmp_path)
    with pytest.raises(ConfigError, match=f"--port {port}: .*choose another port"):
        make_server(tmp_path, port, lambda: None)
    with pytest.raises(ConfigError, match="--port 70000"):
        make_server(tmp_path, 70000, lambda: None)
