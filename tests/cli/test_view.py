"""`evalsuite view`: only the report folder, only localhost, rebuilt when scores change."""

import http.client
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalsuite.cli import main
from evalsuite.cli.commands.view import Refresh, report_folder
from evalsuite.foundation import ConfigError
from evalsuite.reports.page.server import make_server

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


def get(port: int, path: str, host: str = "localhost") -> tuple[int, bytes]:
    """Status and body of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", f"{host}:{port}")
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
    (report / "outside.txt").symlink_to(run / "plan.yaml")
    (report / "outside").symlink_to(run, target_is_directory=True)
    assert get(port, "/inside.txt")[0] == 200
    for path in (
        "/outside.txt", "/outside/plan.yaml", "/../plan.yaml", "/%2e%2e/plan.yaml", "/samples/", "/samples",
        "//etc/passwd", "/missing",
    ):  # fmt: skip
        assert get(port, path)[0] == 404, path
    assert get(port, "/", host="example.org")[0] == 403


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
