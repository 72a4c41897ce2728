"""Shared by the tests: the model inside the package, and the program next to it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import uqac

ROOT = Path(__file__).resolve().parents[2]

PENCILS = "Tom has 3 boxes with 12 pencils each. He gives away 7. How many are left?"
APPLES = "Ann has 5 apples and buys 8 more. How many apples does she have?"


@pytest.fixture(scope="session")
def model() -> uqac.Model:
    return uqac.load("abacus", device="cpu")


@pytest.fixture(scope="session")
def program():
    """Runs the command line: $UQAC_BIN, else cargo's build, else the installed program."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / "uqac" for profile in ("release", "debug")]
    found = os.environ.get("UQAC_BIN") or next((path for path in built if path.is_file()), shutil.which("uqac"))
    if not found:
        pytest.skip("SKIPPED: there is no uqac program to compare with; cargo build, or set UQAC_BIN")

    def run(*arguments: str, given: str | None = None) -> str:
        done = subprocess.run([found, *arguments], input=given, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    return run
