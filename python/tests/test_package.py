"""Documentation, types and the notebook."""

import doctest
import inspect
import os
import shutil
import signal
import subprocess
import sys
import time
import types
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


def test_load_downloads_a_model_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(uqac.Error, match=r"hf download org/tiny --revision v1; or pip install uqac\[hub\]"):
        uqac.load("org/tiny@v1")
    downloads = []

    def snapshot_download(repository, *, revision, allow_patterns, ignore_patterns):
        downloads.append((repository, revision))
        assert "*.safetensors" in allow_patterns and ignore_patterns == ["*/*"]
        folder = tmp_path / "models--org--tiny"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / revision).write_text("0123abcd")
        shutil.copytree(ROOT / "models" / "abacus", folder / "snapshots" / "0123abcd", ignore=shutil.ignore_patterns("*.jsonl", "train"))

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    for _ in range(2):
        model = uqac.load("org/tiny@v1", device="cpu")
        assert model.info["name"] == "org/tiny@v1" and model.ask("What is 17 + 25?").answer == "42"
    assert downloads == [("org/tiny", "v1")]


def command(*arguments, **options):
    """The installed command, run the way its script does."""
    script = "import sys; from uqac._cli import main; sys.argv[0] = 'uqac'; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=-1, stderr=-1, text=True, **options)


def test_the_command_is_the_programs(program):
    process = command("inspect", "abacus", "--json", "--device", "cpu")
    assert process.communicate()[0] == program("inspect", "abacus", "--json", "--device", "cpu")
    assert process.returncode == 0
    process = command("ask", "--model", "/no/such/folder", "1 + 1?")
    assert process.communicate()[1] == "error: no such folder: /no/such/folder\n"
    assert process.returncode == 2
    process = command("--version")
    assert process.communicate()[0].startswith(f"uqac {uqac.__version__}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="SKIPPED: signals are tested on Linux")
def test_the_command_ends_by_the_signal(tmp_path):
    os.mkfifo(tmp_path / "items.jsonl")
    arguments = ["-m", "abacus", "--device", "cpu", "--input", str(tmp_path / "items.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    # a shell's background jobs ignore SIGINT
    process = command("score", *arguments, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    with open(tmp_path / "items.jsonl", "w"):  # the open returns once the command reads it
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
    process.communicate()


def test_the_notebook_runs(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="SKIPPED: nbclient is not installed")
    pytest.importorskip("ipykernel", reason="SKIPPED: ipykernel is not installed")
    import nbformat

    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=tmp_path)
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in shown)
    assert not any(output.output_type == "error" for output in shown)
