"""Documentation, types and the notebook."""

import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import uqac

ROOT = Path(__file__).resolve().parents[2]


def test_everything_public_is_documented():
    for name in uqac.__all__:
        member = getattr(uqac, name)
        assert inspect.getdoc(member), name
        if inspect.isclass(member) and member.__module__ == "uqac._model":
            for method, function in inspect.getmembers(member, inspect.isfunction):
                assert method.startswith("_") or inspect.getdoc(function), f"{name}.{method}"
    for name in uqac.metrics.__all__:
        assert inspect.getdoc(getattr(uqac.metrics, name)), name


def test_the_example_in_the_docstring():
    assert doctest.testmod(uqac).failed == 0 and doctest.testmod(uqac).attempted >= 3


def test_types_and_stubs():
    pytest.importorskip("mypy", reason="SKIPPED: mypy is not installed")
    for command in (["mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "uqac"], ["mypy.stubtest", "uqac._uqac"]):
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_notebook_runs(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="SKIPPED: nbclient is not installed")
    pytest.importorskip("ipykernel", reason="SKIPPED: ipykernel is not installed")
    import nbformat

    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=tmp_path)
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert not any(output.output_type == "error" for output in shown)
