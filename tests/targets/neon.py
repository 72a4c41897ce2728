#!/usr/bin/env python3
"""Checks the machine code of the NEON kernels in the program built for 64-bit Arm against a committed budget.

    tests/targets/neon.py [--update] [--show] PROGRAM     PROGRAM: with its symbols, as emulated.py builds it

The instructions of every innermost loop that multiplies and adds, by kernel, type of the stored numbers and multiply-adds (fmla, four
lanes each: 4 for every row and output of a tile). Kernels are functions named `run_neon`, and the type follows from the instructions
that widen it. All are counted in the machine code; none is measured.

Exit code 1 if a loop is more than SLACK longer than in neon_budget.tsv, calls a function, or is not in it; --update writes the
current values; --show prints the loops' instructions by kind. Needs aarch64-linux-gnu-objdump (binutils-aarch64-linux-gnu).
"""

import argparse
import collections
import re
import shutil
import subprocess
import sys
from pathlib import Path

BUDGET = Path(__file__).resolve().parent / "neon_budget.tsv"
HEAD = ["kernel", "numbers", "fmla", "instructions"]
# The products of a few rows and of many, attention's scores and outputs, and what `uqac bench` calls the CPU's peak.
KERNELS = {"Narrow", "Wide", "Scores", "Values", "MultiplyAdds"}
SLACK = 0.05  # a newer compiler orders loads and address arithmetic differently
OBJDUMP = "aarch64-linux-gnu-objdump"

FUNCTION = re.compile(r"[0-9a-f]+ <.*\brun_neon::<.*, (?:\w+::)*(\w+)(?:<.*)?>>:$")
ANY_FUNCTION = re.compile(r"[0-9a-f]+ <.*>:$")
INSTRUCTION = re.compile(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)$")
BRANCHES = {"b", "cbz", "cbnz", "tbz", "tbnz"}
ENDS = {"b", "br", "ret", "udf", "brk"}  # nothing follows
# an instruction that only loops over this type need
WIDENS = {"fcvtl": "f16", "shll": "bf16", "sxtl": "i8"}


def kernels(program):
    """{kernel: [its instructions as (address, name, operands), for each instance]}"""
    listing = subprocess.Popen([OBJDUMP, "-d", "--no-show-raw-insn", "-C", program], stdout=subprocess.PIPE, text=True)
    found, code = collections.defaultdict(list), None
    for line in listing.stdout:
        if name := FUNCTION.match(line):
            code = [] if name[1] in KERNELS else None
            found[name[1]] += [code] if code is not None else []
        elif ANY_FUNCTION.match(line):
            code = None
        elif code is not None and (instruction := INSTRUCTION.match(line)):
            code.append((int(instruction[1], 16), instruction[2], instruction[3]))
    if listing.wait():
        sys.exit(f"neon.py: {OBJDUMP} failed")
    return found


def blocks(code):
    """Basic blocks: {address: (its instructions' names, the addresses that it goes on to)}"""
    addresses, branches = {address for address, _, _ in code}, {}
    for address, name, operands in code:
        if name in BRANCHES or name.startswith("b."):
            branches[address] = int(re.search(r"\b([0-9a-f]+) <", operands)[1], 16)
    starts = {code[0][0], *branches.values(), *(address + 4 for address in branches)} & addresses
    found = {}
    for address, name, _ in code:
        if address in starts:
            names, after = found[address] = [], set()
        names.append(name)
        if address in branches:
            after.add(branches[address])
        if (address in branches or address + 4 in starts) and name not in ENDS:
            after.add(address + 4)
    return found


def innermost(code):
    """The names of the instructions of every loop without a loop inside."""
    graph, loops = blocks(code), {}
    before = collections.defaultdict(set)
    for block, (_, after) in graph.items():
        for target in after:
            before[target].add(block)
    for block, (_, after) in graph.items():
        for head in after & graph.keys():
            # what leads to the block without the head: all of the loop, if the head is on every path from the function's start
            body, left = {head}, [block]
            while left:
                if (at := left.pop()) not in body:
                    body.add(at)
                    left += before[at]
            if code[0][0] not in body - {head}:
                loops.setdefault(head, set()).update(body)
    for head, body in loops.items():
        if not loops.keys() & body - {head}:
            yield [name for block in sorted(body) for name in graph[block][0]]


def count(program):
    """{(kernel, numbers, multiply-adds): the instructions' names of its loops, short ones first}"""
    loops = collections.defaultdict(list)
    for kernel, instances in kernels(program).items():
        for body in (body for code in instances for body in innermost(code) if "fmla" in body):
            numbers = next((numbers for name, numbers in WIDENS.items() if name in body), "f32")
            loops[kernel, numbers, body.count("fmla")].append(body)
    return {key: sorted(loops[key], key=len) for key in sorted(loops)}


def lengths(bodies):
    return [len(body) for body in bodies]


def budget():
    lines = [line.split("\t") for line in BUDGET.read_text().splitlines()[1:]] if BUDGET.exists() else []
    return {(kernel, numbers, int(fmla)): [int(n) for n in loops.split()] for kernel, numbers, fmla, loops in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the budget")
    parser.add_argument("--show", action="store_true", help="the loops' instructions by kind")
    parser.add_argument("program")
    options = parser.parse_args()
    if not shutil.which(OBJDUMP):
        print(f"SKIPPED: instructions of the NEON kernels: no {OBJDUMP}")
        return 0
    found = count(options.program)
    if not found:
        sys.exit(f"neon.py: {options.program}: no function run_neon::<..> has a loop; are its symbols stripped, or without types?")
    for (kernel, numbers, fmla), bodies in found.items():
        print(f"{kernel:12} {numbers:5} {fmla:3} fmla in {', '.join(map(str, lengths(bodies)))} instructions")
        for body in bodies if options.show else []:
            print("    " + ", ".join(f"{n} {name}" for name, n in collections.Counter(body).most_common()))
    if options.update:
        rows = [HEAD, *([*map(str, key), " ".join(map(str, lengths(bodies)))] for key, bodies in found.items())]
        BUDGET.write_text("".join("\t".join(row) + "\n" for row in rows))
        return 0
    allowed, defects = budget(), []
    for key in sorted({*found, *allowed}):
        bodies, name = found.get(key, []), f"{key[0]}, {key[1]}, {key[2]} fmla"
        now, most = lengths(bodies), allowed.get(key, [])
        if len(now) != len(most):
            defects.append(f"{name}: {len(now)} loops, budget {len(most)}")
        defects += [f"{name}: {n} instructions, budget {m}" for n, m in zip(now, most) if n > m * (1 + SLACK)]
        defects += [f"{name}: {len(body)} instructions call a function" for body in bodies if {"bl", "blr"} & {*body}]
    for defect in defects:
        print(defect, file=sys.stderr)
    if defects:
        print("if that is meant: neon.py --update, and commit", file=sys.stderr)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
