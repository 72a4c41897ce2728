#!/usr/bin/env python3
"""examples/ray_eval.py with two Ray workers on this machine: the merged report must be byte-identical to that of a run without
shards, except for timings.

    pip install ray
    tests/cluster/ray_eval.py [--uqac target/release/uqac]
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from slurm import ROOT, lines, reports


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uqac", default=ROOT / "target/release/uqac", type=Path)
    parser.add_argument("--items", type=int, default=60)
    arguments = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        print("SKIPPED: ray is not installed")
        return
    uqac = arguments.uqac.resolve()
    options = ["--tasks", "abacus", "--threads", "1", "--limit", str(arguments.items), "--methods", "self-consistency"]
    with tempfile.TemporaryDirectory(prefix="uqac-ray-") as name:
        whole, sharded = Path(name, "whole"), Path(name, "sharded")
        subprocess.run([uqac, "eval", *options, "--output", whole, "--quiet", "--json"], check=True, stdout=subprocess.DEVNULL)
        example = [sys.executable, ROOT / "examples/ray_eval.py", "--shards", "6", "--uqac", uqac]
        subprocess.run([*example, "--", *options, "--output", sharded], check=True)
        manifest = (whole / "manifest.json").read_bytes()
        equal = reports(uqac, sharded, manifest) == reports(uqac, whole, manifest)
        files = len(list(sharded.glob("samples_*")))
        print(f"{files} shards, {lines(sharded)} samples of {arguments.items} items: reports {'equal' if equal else 'DIFFER'}")
    sys.exit(not equal)


if __name__ == "__main__":
    main()
