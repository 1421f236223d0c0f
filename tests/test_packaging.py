"""The three ways in: a wheel, an editable install, and a checkout that is not installed."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("models", "tasks", "distill", "reports")


def test_a_checkout_that_is_not_installed_finds_its_rooms(tmp_path: Path) -> None:
    # -I and an explicit path: nothing of this environment's own install helps.
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import evalsuite\n"
    script += "".join(f"import evalsuite.{room}; print(evalsuite.{room}.__file__)\n" for room in ROOMS)
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.split()) == len(ROOMS)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    # A copy of what git tracks, so that a build leaves nothing behind in the checkout.
    source = tmp_path_factory.mktemp("source")
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split("\n")
    if len(names) < 10:
        pytest.skip("not a git checkout: the list of source files comes from git")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, source],
        check=True,
        capture_output=True,
    )
    return zipfile.ZipFile(next(out.glob("evalsuite-*.whl")))


@pytest.mark.slow
def test_a_wheel_puts_nothing_but_evalsuite_into_site_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"evalsuite"}


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_every_room(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    assert "evalsuite/py.typed" in held
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            unshipped = {"__pycache__", "results", "studies"} & set(path.parts)
            if path.is_file() and not unshipped and not path.name.startswith("."):
                assert f"evalsuite/{room}/{path.relative_to(ROOT / room)}" in held


@pytest.mark.slow
def test_a_wheel_holds_no_results_no_studies_and_no_tests(wheel: zipfile.ZipFile) -> None:
    for name in wheel.namelist():
        assert not {"results", "studies", "tests", "docs"} & set(Path(name).parts), name


HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "datasets", "lm_eval", "evalscope")
BLOCK = f"""
import sys
from importlib.abc import MetaPathFinder

class Block(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
from evalsuite.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the base install does: none of the packages of the extras can be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("run", "pocket", "--checkpoint", "pocket", "--out", "OUT"), "eval"),
        (("distill", "pocket", "--out", "OUT"), "distill"),
    ],
)
def test_a_missing_package_names_the_extra(arguments: tuple[str, ...], extra: str, tmp_path: Path) -> None:
    done = without_torch(*(str(tmp_path / "out") if word == "OUT" else word for word in arguments))
    assert done.returncode == 69
    assert f"evalsuite[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
