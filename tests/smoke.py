"""Build the wheel, install it into clean environments, and try what each of them promises: ``make smoke``.

    core                the wheel alone
    torch, data, ...    the wheel with one extra
    all                 the wheel with every extra
    lowest              every extra at the lowest versions that pyproject.toml declares, and there the core of the suite

``python tests/smoke.py core data`` tries only those named. What an environment lacks must say so by name. torch is
always the pinned version: its floor is declared, and not tried here.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("torch", "data", "onnx", "report", "train", "boosting", "integrations", "cli")
ENVIRONMENTS = ("core", *EXTRAS, "all", "lowest")
WITH_TORCH = ("torch", "train", "boosting", "all", "lowest")
LARGEST_WHEEL, LARGEST_CORE, SLOWEST_IMPORT = 400, 450, 1.0  # kB, MB, seconds

# What the suite's core is, and what it needs besides the package.
CORE_TESTS = (
    *("banded", "calibrator", "categories", "core", "curves", "export_onnx", "export_sql", "frames", "functional"),
    *("grid", "hierarchy", "histogram", "histogram_query", "isotonic", "metrics", "metrics_query", "monitor"),
    *("parquet_io", "policy", "shrinkage", "solver", "storage", "training"),
)
TEST_TOOLS = ("hypothesis", "pandas<3", "polars", "pytest")  # Ibis 11 needs an older pandas
# Old versions of others deprecate and warn; the suite makes warnings errors only for the pinned ones.
PATIENCE = [f"-Wignore::{name}" for name in ("DeprecationWarning", "FutureWarning", "pytest.PytestRemovedIn10Warning")]


def main() -> None:
    """Try the environments named on the command line, by default all, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", default=ENVIRONMENTS, metavar="ENVIRONMENT")
    chosen = parser.parse_args().environments
    figures, failed = list[str](), list[str]()
    with tempfile.TemporaryDirectory(prefix="isolayer-smoke-") as folder:
        wheel = build(Path(folder))
        figures.append(figure("wheel", wheel.stat().st_size / 1000, LARGEST_WHEEL, "kB"))
        for name in chosen:
            start = time.monotonic()
            try:
                figures += tried(name, wheel, Path(folder))
            except subprocess.CalledProcessError as error:
                failed.append(name)
                print(error.stdout[-10_000:], error.stderr[-10_000:], sep="\n", file=sys.stderr)
            verdict = "FAILS" if name in failed else "works"
            print(f"{name:8} {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    print(*figures, sep="\n")
    raise SystemExit(f"smoke: {', '.join(failed)} failed" if failed else 0)


def tried(name: str, wheel: Path, folder: Path) -> list[str]:
    """Install one environment and try what it promises; the figures that are taken there."""
    python = install(folder / name, wheel, name)
    run(python, ROOT / "tests" / "smoke_checks.py", name, cwd=folder)
    if name == "lowest":
        tests = [ROOT / "tests" / f"test_{test}.py" for test in CORE_TESTS]
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PATIENCE, *tests, cwd=ROOT)
    if name != "core":
        return []
    seconds = figure("import of IsotonicCalibrator", import_time(python), SLOWEST_IMPORT, "s")
    return [figure("core, installed", size(python), LARGEST_CORE, "MB"), seconds]


def build(folder: Path) -> Path:
    """Build the wheel, and look that it holds the package and nothing else."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("isolayer-*.whl")
    tops = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert tops == {"isolayer", f"isolayer-{PROJECT['version']}.dist-info"}, f"the wheel holds {sorted(tops)}"
    return wheel


def install(folder: Path, wheel: Path, name: str) -> Path:
    """A clean environment with the wheel and the extras of that name; its Python."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    constraints, tools = ROOT / "constraints.txt", []
    if name == "lowest":
        constraints, tools = folder / "lowest.txt", list(TEST_TOOLS)
        constraints.write_text("\n".join(lowest_versions()) + "\n")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", constraints)
    if name in WITH_TORCH:  # first, so that nothing else can ask for another build of it
        run(*pip, f"torch=={pinned('torch')}")
    extra = {"core": "", "lowest": "[all,integrations]"}.get(name, f"[{name}]")
    run(*pip, f"{wheel}{extra}", *tools)
    return python


def lowest_versions() -> list[str]:
    """The floors of ``pyproject.toml`` as exact versions; torch as it is pinned.

    >>> [line for line in lowest_versions() if line.startswith("torch")] == [f"torch=={pinned('torch')}"]
    True
    """
    optional = PROJECT["optional-dependencies"]
    declared = [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]
    floors = dict(re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", line).groups() for line in declared if ">=" in line)
    return [f"{name}=={pinned('torch') if name == 'torch' else floor}" for name, floor in floors.items()]


def pinned(package: str) -> str:
    """The version of a package in ``constraints.txt``."""
    return re.search(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


def size(python: Path) -> float:
    """Megabytes of an environment's packages, without pip and setuptools."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    ours = (path for path in packages.iterdir() if not re.match(r"pip|setuptools|pkg_resources|_distutils", path.name))
    files = (file for path in ours for file in ([path] if path.is_file() else path.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink()) / 1e6


def import_time(python: Path) -> float:
    """Seconds of processor time to import the calibrator, the least of five."""
    code = "import time, isolayer; isolayer.IsotonicCalibrator; print(time.process_time())"
    return min(float(run(python, "-c", code)) for _ in range(5))


def figure(name: str, value: float, most: float, unit: str) -> str:
    verdict = "met" if value <= most else "MISSED"
    return f"{name}: {value:.3g} {unit} (target <= {most:g} {unit}: {verdict})"


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a command quietly, without this repository on its path, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    words = [str(part) for part in command]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
