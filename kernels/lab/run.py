#!/usr/bin/env python3
"""Checks and counts the versions of a kernel, and prints one table.

  run.py [options] [JOB..]     JOB: see JOBS; default: all

  checked   on the CPU (tests/cuda_host): whether the bits are those of the kernel in use
  counted   in the machine code that nvcc makes for sm_90a: instructions of the hot loop for each KiB of weights that it multiplies,
            registers, spilled bytes, and shared memory

`benches/gpu.sh --stages decide` times them on a device. Needs Python 3 and g++; nvcc and nvdisasm come from PyPI (--no-count does
without). Exits with 1 if a version fails its check or its budget.
"""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

LAB = Path(__file__).resolve().parent
ROOT = LAB.parent.parent
HOST = ROOT / "tests" / "cuda_host"
sys.dont_write_bytecode = True  # no __pycache__ among the sources
sys.path.insert(0, str(HOST))
import build  # noqa: E402  the host-run kernels' builder
import sass  # noqa: E402  what nvcc makes of them

REGISTERS, SPILLED = 168, 16  # nine warps allow so many registers; spills are outside the loop


class Rows:
    """A version of gemv_rows.cu, and the most instructions it may issue per KiB of weights (those of a wait's slow path count)."""

    def __init__(self, rows, tiles, most):
        self.names = [f"lab_gemv{part}_rows_r{rows}_t{tiles}" for part in ("", "_qkv", "_gated") if part != "_qkv" or tiles < 7]
        self.most = most
        self.kib_of_product = 1 / 8 if rows > 8 else 1 / 4  # of one tensor core instruction


# job: (source, check, versions)
JOBS = {
    "gemv_rows": ("gemv_rows.cu", "gemv_rows", [
        Rows(1, 2, 44), Rows(1, 3, 39), Rows(1, 7, 32), Rows(8, 2, 47), Rows(8, 3, 43), Rows(8, 7, 33),
        Rows(16, 2, 61), Rows(16, 3, 55), Rows(16, 7, 50),
    ]),
}


def check(name, options):
    """{version: what it says}, and whether the check passed; its lines `lab VERSION key value ..` are the cells."""
    builder = build.Builder(SimpleNamespace(root=ROOT, kernels=None, out=None, sanitize=options.sanitize, jobs=None))
    [program] = builder.build_tests([name], builder.lab)
    status, said = builder.run_program(program)
    shown = {}
    for line in said.splitlines():
        if line.startswith("lab "):
            _, version, *words = line.split()
            shown[version] = dict(zip(words[::2], words[1::2]))
        elif status != 0 or options.verbose:
            print(line)
    return shown, status == 0


def count(source, versions):
    """{kernel: (instructions per KiB, loop, HMMA, registers, spilled)} and what is over its budget, in words."""
    nvdisasm = sass.tool("nvdisasm.sh")
    image, report = sass.cubin(LAB / source, "sm_90a", sass.tool("nvcc.sh"), sass.target() / "kernel_lab")
    kernels, rows, over = sass.instructions(nvdisasm, image), {}, []
    for version in versions:
        for name in version.names:
            registers, spilled, _ = sass.ptxas(report, name)
            body = sass.hot_loop(kernels[name])
            each = len(body) / (sass.hmma(body) * version.kib_of_product)
            rows[name] = (f"{each:.1f}", len(body), sass.hmma(body), registers, spilled)
            in_loop = any(sass.kind(text) in ("LDL", "STL") for text in body)
            for what, n, most in (("instructions per KiB", each, version.most), ("registers", registers, REGISTERS),
                                  ("spilled bytes", spilled, SPILLED), ("spills in its loop", in_loop, 0)):
                over += [f"{name}: {what} {n:.4g}, at most {most}"] if n > most else []
    return rows, over


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"valid names: {', '.join(JOBS)}")
    parser.add_argument("--no-count", action="store_true", help="the check alone")
    parser.add_argument("--sanitize", action="store_true", help="checks under the sanitizers")
    parser.add_argument("--verbose", action="store_true", help="prints what the checks say")
    options = parser.parse_args()
    if unknown := set(options.jobs) - set(JOBS):
        parser.error(f"unknown job {min(unknown)}; valid names: {', '.join(JOBS)}")
    failed = False
    for source, checked, versions in (JOBS[name] for name in options.jobs or JOBS):
        try:
            shown, passed = check(checked, options)
        except build.BuildError as error:
            sys.exit(f"run.py: {error}")
        rows, over = ({}, []) if options.no_count else count(source, versions)
        table = []
        for name in (name for version in versions for name in version.names):
            says = shown.get(name, {})
            bits = {"1": "equal", "0": "differ"}.get(says.get("bits_equal"), "-")
            table.append([name, "yes" if passed else "FAILED", bits, says.get("shared", "-"), *map(str, rows.get(name, "-----"))])
        print(source)
        sass.table(["version", "checked", "bits", "shared", "SASS/KiB", "loop", "HMMA", "registers", "spilled"], table)
        print(*over, sep="\n", file=sys.stderr)
        failed |= not passed or bool(over)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
