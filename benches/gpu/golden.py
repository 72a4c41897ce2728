#!/usr/bin/env python3
"""Checks Abacus' golden answers on a device, and its chains and scores against the CPU's.

usage: benches/gpu/golden.py UQAC [DEVICE] [ITEMS]

Exit code 1 if a text differs from the golden one (float32, another implementation), a chain differs from the CPU's, or a
kernel was replaced. Each answer runs in a separate process, so that one fault does not hide others.
"""

import json
import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "models/abacus/golden.jsonl"
LIMIT = 30  # seconds per answer


def ask(uqac, question, device):
    command = [uqac, "ask", "--device", device, "--json", question]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    return json.loads(done.stdout), [line for line in done.stderr.splitlines() if line.startswith("warning")]


def chain(answer):
    return [link["row"] for link in answer["chain"]], answer["kept"]


def difference(a, b):
    numbers = (int, float)
    return max((abs(a[k] - b[k]) for k in a if isinstance(a[k], numbers) and isinstance(b.get(k), numbers)), default=0.0)


def main():
    uqac, device, items = sys.argv[1], (sys.argv[2:] or ["cuda"])[0], int((sys.argv[3:] or [8])[0])
    problems, largest = [], 0.0
    golden = [json.loads(line) for line in GOLDEN.read_text().splitlines()][:items]
    for i, item in enumerate(golden):
        try:
            found, warnings = ask(uqac, item["question"], device)
            cpu, _ = ask(uqac, item["question"], "cpu")
        except (subprocess.SubprocessError, ValueError) as error:
            problems.append(f"item {i}: {getattr(error, 'stderr', '') or error}")
            continue
        problems += [f"item {i}: {warning}" for warning in warnings]
        if found["response"].strip() != item["text"].strip():
            problems.append(f"item {i}: {found['response']!r}, expected {item['text']!r}")
        elif chain(found) != chain(cpu):
            problems.append(f"item {i}: the chain differs from the CPU's")
        largest = max(largest, difference(cpu["scores"], found["scores"]))
    print(*problems, sep="\n")
    print(f"{device}: {len(golden)} golden answers, {len(problems)} problems, scores within {largest:.1e} of the CPU's")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
