"""The shape of the package: who imports whom, what is public, what an import costs, what is documented."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import isolayer

SOURCE = Path(isolayer.__file__).parent


def modules():
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py")


def test_packages_import_downwards_only():
    """The layers of ``pyproject.toml`` hold, imports inside functions included."""
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=SOURCE.parents[1],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


def test_the_architecture_page_draws_the_tree_as_it_is():
    """Its listing names every package and module of the package, no other, in the order of the layers."""
    root = SOURCE.parents[1]
    drawn = (root / "docs" / "architecture.md").read_text().partition("```text\n")[2].partition("```")[0]
    names = [line.split()[0] for line in drawn.splitlines() if line.startswith("  ")]
    present = {
        f"{path.name}/" if path.is_dir() else path.name for path in SOURCE.iterdir() if path.name != "__pycache__"
    }
    assert set(names) == present - {"py.typed"}
    assert len([name for name in names if name.endswith(".py")]) <= 9
    layers = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    rank = {name.strip(" ()"): depth for depth, layer in enumerate(layers) for name in layer.split("|")}
    depths = [rank[name.removesuffix("/").removesuffix(".py")] for name in names if name != "__init__.py"]
    assert depths == sorted(depths)


def test_all_is_sorted_and_is_what_can_be_imported():
    assert isolayer.__all__ == sorted(isolayer.__all__)
    assert set(isolayer.__all__) == set(isolayer._HOME)
    for name in isolayer.__all__:
        assert getattr(isolayer, name).__name__ == name
        assert name in dir(isolayer)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        isolayer.nothing  # noqa: B018


def test_importing_the_package_imports_no_extra():
    heavy = ["ibis", "lightning", "altair", "sklearn", "onnx", "pandas", "polars", "duckdb", "pyspark", "typer"]
    code = f"import isolayer, sys; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", isolayer.__all__)
def test_every_public_name_is_documented_with_an_example_that_runs(name):
    thing = getattr(isolayer, name)
    assert inspect.getdoc(thing)
    assert any(test.examples for test in doctest.DocTestFinder(recurse=False).find(thing, name)), f"{name}: no doctest"


def test_no_module_is_a_drawer_for_odds_and_ends():
    for module in pkgutil.walk_packages(isolayer.__path__, "isolayer."):
        assert module.name.rsplit(".", 1)[1] not in {"utils", "util", "helpers", "common", "config", "misc"}


def test_no_file_is_too_long_to_be_read():
    lines = {path.name: len(path.read_text().splitlines()) for path in Path(isolayer.__file__).parent.rglob("*.py")}
    assert not {name: count for name, count in lines.items() if count > 400}


def test_every_module_says_what_belongs_in_it():
    for path in modules():
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, f"{path.name} has no docstring"


def test_every_command_is_documented():
    reference = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    for command in importlib.import_module("isolayer.cli.app").COMMANDS:
        name = command.__name__
        assert f"## isolayer {name}" in reference, f"docs/cli.md has no section for {name}"
        assert inspect.getdoc(command), f"{name} has no help"


@pytest.mark.parametrize(
    "module", ["isolayer", "isolayer.debias", "isolayer.metrics", "isolayer.report", "isolayer.simulate"]
)
def test_the_reference_names_everything_public(module):
    pages = "".join(page.read_text() for page in (SOURCE.parents[1] / "docs").glob("api*.md"))
    public = importlib.import_module(module)
    for name in public.__all__:
        value = getattr(public, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert f"::: {value.__module__}.{name}\n" in pages, f"{module}.{name} is in no page of the reference"
