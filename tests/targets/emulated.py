#!/usr/bin/env python3
"""Runs the program built for 64-bit Arm under qemu and compares every value with this machine's program.

    tests/targets/emulated.py [PROGRAM]     PROGRAM: this machine's, with AVX2 or AVX-512 [default: target/release/uqac]

Needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user 10 or newer (older ones hang with two threads), Debian's names; the
compiler is that of rustc.sh. Times, the name of the device and a server's random ids may differ, and nothing else. Then neon.py counts
instructions.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = "aarch64-unknown-linux-gnu"
LINKER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# keys whose values name the run, not a result
OF_THE_RUN = {"seconds", "seconds_per_item", "relative_to_generate", "tokens_per_second", "created", "command", "device"}


def build(rustc):
    """The command that runs the program, which keeps its symbols for neon.py."""
    folder = Path(rustc).parent / "target"
    environment = {**os.environ, "RUSTC": rustc, "NVCC": "", "CARGO_TARGET_DIR": str(folder),
                   "CARGO_PROFILE_RELEASE_STRIP": "none", "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": LINKER,
                   "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS": "-Csymbol-mangling-version=v0"}  # names with their types
    subprocess.run(["cargo", "build", "--release", "--locked", "--target", TARGET, "--bin", "uqac"], cwd=ROOT, env=environment, check=True)
    return [EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(folder / TARGET / "release/uqac")]


def leaves(value, path=""):
    """The values of a JSON text by their paths."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in OF_THE_RUN:
                yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, f"{path}[{index}]")
    else:
        yield path, value


def ask(*options):
    def run(program, folder):
        out = subprocess.run([*program, "-q", "ask", "-m", "abacus", "--json", *options, "Tom has 3 boxes with 12 pencils. How many pencils are there?"],
                             stdout=subprocess.PIPE, check=True).stdout
        return json.loads(out)
    return run


def score(threads):
    def run(program, folder):
        lines = map(json.loads, (ROOT / "models/abacus/golden.jsonl").read_text().splitlines())
        (folder / "in.jsonl").write_text("".join(json.dumps({"id": n, "prompt": x["question"], "response": x["text"]}) + "\n" for n, x in enumerate(lines)))
        subprocess.run([*program, "-q", "score", "-m", "abacus", "--threads", str(threads), "--trace", "wide,heads,layers", "--explain", "--overwrite",
                        "-i", folder / "in.jsonl", "-o", folder / "out.jsonl"], check=True)
        return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return run


def evaluate(program, folder):
    subprocess.run([*program, "-q", "eval", "-m", "abacus", "-t", "abacus", "--data", ROOT / "models/abacus", "-n", "20", "-o", folder / "run"],
                   check=True, stdout=subprocess.DEVNULL)
    # in the order in which responses end
    lines = [json.loads(line) for file in sorted((folder / "run").glob("samples*.jsonl")) for line in file.read_text().splitlines()]
    return [*sorted(lines, key=lambda line: line["doc_id"]), json.loads((folder / "run/results.json").read_text())]


def serve(program, folder):
    server = subprocess.Popen([*program, "serve", "-m", "abacus", "--port", "8917"], stderr=subprocess.PIPE, text=True)
    body = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "logprobs": True, "top_logprobs": 3, "temperature": 0.7, "seed": 5}
    request = urllib.request.Request("http://127.0.0.1:8917/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    for attempt in range(240):
        try:
            answer = json.load(urllib.request.urlopen(request, timeout=600))
            break
        except OSError:
            time.sleep(0.5)
    else:
        server.kill()
        sys.exit(f"emulated.py: {program[-1]} serve does not answer")
    server.send_signal(signal.SIGTERM)
    answer["exit_code"] = server.wait(60)
    del answer["id"]  # random
    return answer


RUNS = {
    "ask": ask(),
    "ask, every optional part of the trace": ask("--trace", "wide,heads,layers"),
    "ask, one thread": ask("--threads", "1"),
    "ask, 8-bit weights": ask("--weights", "q8"),
    "ask, f16 caches": ask("--k-cache", "f16", "--v-cache", "f16"),
    "ask, bf16 caches": ask("--k-cache", "bf16", "--v-cache", "bf16"),
    "ask, 8-bit values": ask("--v-cache", "q8"),
    "ask, sampled": ask("--temperature", "0.8", "--seed", "3"),
    "ask, profile reference": ask("--profile", "reference"),
    "ask, profile paper": ask("--profile", "paper"),
    "ask, guessed tokens": ask("--speculate", "4"),
    "ask, scalar reference": ask("--device", "reference"),
    "score, 12 responses, 2 threads": score(2),
    "eval, 20 questions": evaluate,
    "serve, a chat with log-probabilities": serve,
}


def main():
    own = [sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/release/uqac")]
    if missing := [tool for tool in (LINKER, EMULATOR) if not shutil.which(tool)]:
        print(f"SKIPPED: the program on 64-bit Arm: no {', no '.join(missing)}")
        return 0
    if (compiler := subprocess.run([ROOT / "tests/targets/rustc.sh"], stdout=subprocess.PIPE, text=True)).returncode:
        print("SKIPPED: the program on 64-bit Arm: Debian's packages cannot be had")
        return 0
    arm, bad = build(compiler.stdout.strip()), 0
    versions = [subprocess.check_output([*program, "--version"], text=True).strip() for program in (own, arm)]
    if len(set(versions)) > 1:
        sys.exit(f"emulated.py: {own[0]} is of another commit: {' and '.join(versions)}")
    print(f"{'run':40} {'values':>8} {'differ':>7} {'seconds':>8}")
    for name, run in RUNS.items():
        found = []
        for program in (own, arm):
            with tempfile.TemporaryDirectory() as folder:
                start = time.time()
                found.append(dict(leaves(run(program, Path(folder)))))
                seconds = time.time() - start
        here, there = found
        differ = [path for path in here.keys() | there.keys() if here.get(path, "none") != there.get(path, "none")]
        bad += bool(differ)
        print(f"{name:40} {len(here):8} {len(differ):7} {seconds:8.0f}", flush=True)
        for path in sorted(differ)[:5]:
            print(f"    {path}: {here.get(path)} here, {there.get(path)} there")
    print("instructions:")
    return subprocess.run([ROOT / "tests/targets/neon.py", arm[-1]]).returncode or int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
