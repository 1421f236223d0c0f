"""`evalsuite view`: the report of a run in the browser, up to date while the run goes on."""

import argparse
import sys
from pathlib import Path

from evalsuite.foundation.parser import command

NO_SCORES = "<!doctype html><title>evalsuite</title><p>No scores yet; reload this page later.\n"


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "view",
        help="serve the report of a run, or a report folder, on localhost",
        example="  evalsuite view runs/first\n  evalsuite view report --port 8001",
    )
    parser.add_argument("folder", type=Path, metavar="RUN-or-REPORT")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes any free one (default: 8000)")
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted. A run's report is rebuilt when its page is loaded after new scores."""
    from evalsuite.reports.page.server import make_server

    folder = Path(arguments.folder)
    report = report_folder(folder)
    refresh = Refresh(folder, report)
    refresh()
    server = make_server(report, arguments.port, refresh)
    print(f"http://localhost:{server.server_address[1]}/ serves {report} (stop with Ctrl-C)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


def report_folder(folder: Path) -> Path:
    """Return `RUN/report` for a run folder, or the report folder itself.

    Raises:
        ConfigError: it is neither.
    """
    from evalsuite.foundation import ConfigError
    from evalsuite.reports.run import is_run_folder

    if is_run_folder(folder):
        return folder / "report"
    if (folder / "index.html").is_file():
        return folder
    raise ConfigError(
        f"{folder}: neither a run folder (no run.json) nor a report (no index.html); pass the --out of "
        "`evalsuite run` or `evalsuite compare`"
    )


class Refresh:
    """Rebuilds the report of a run whose scores are newer than the page; leaves report folders alone."""

    def __init__(self, folder: Path, report: Path) -> None:
        self.folder = folder
        self.report = report

    def __call__(self) -> None:
        """Rebuild if needed; a run that cannot be read now, such as one just starting, keeps its old page."""
        from evalsuite.foundation import EvalsuiteError, write_text

        if self.folder == self.report or not self._is_stale():
            return
        try:
            self._build()
        except EvalsuiteError as error:
            print(f"evalsuite view: {error}", file=sys.stderr)
            if not self.page.exists():
                write_text(
                    self.page, "<!doctype html><title>evalsuite</title><p>No scores yet; reload later.\n"
                )

    @property
    def page(self) -> Path:
        """The page."""
        return self.report / "index.html"

    def _is_stale(self) -> bool:
        from evalsuite.reports.run import manifest_path

        if not self.page.exists():
            return True
        built = self.page.stat().st_mtime_ns
        sources = [manifest_path(self.folder), self.folder / "scores", *self.folder.glob("scores/*.parquet")]
        return any(path.exists() and path.stat().st_mtime_ns >= built for path in sources)

    def _build(self) -> None:
        from evalsuite.evaluation.prompts import QuestionTexts
        from evalsuite.reports import compare

        compare([self.folder], self.report, questions=QuestionTexts([self.folder]))
