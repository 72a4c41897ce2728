#!/usr/bin/env python3
"""What a confidence costs in disk, memory and waiting: this program beside transformers, each in a new process, interleaved.

    benches/footprint.py MODEL_FOLDER [--rounds 5] [--threads 2] [--python VENV/bin/python] [--sizes vllm]

VENV has torch and transformers. `installed`: the program, or the packages' folder. `first token`: from the start of the process to the
first generated token of one short question, greedy, weights in the page cache. `peak`: resident memory after 64 tokens; with
attentions, transformers generates with output_attentions, as the authors' code needs them. --sizes: what pip would download for a package.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUESTION, TOKENS = "A farmer has 17 sheep and buys 25 more. How many sheep does he have?", 64
TRANSFORMERS = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer
folder, threads, attentions, question, tokens = sys.argv[1:]
torch.set_num_threads(int(threads))
class First(BaseStreamer):
    count = 0
    def put(self, value):
        self.count += 1
        if self.count == 2: print("first", flush=True)  # the prompt comes first
    def end(self): pass
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager" if attentions == "1" else "sdpa")
inputs = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
model.generate(**inputs, max_new_tokens=int(tokens), min_new_tokens=int(tokens), do_sample=False, streamer=First(),
               output_attentions=attentions == "1", output_hidden_states=attentions == "1", return_dict_in_generate=True)
"""


def run(command, environment=None):
    """Seconds to the first output, and peak resident bytes."""
    begun = time.monotonic()
    child = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    os.read(child.stdout.fileno(), 1)
    first = time.monotonic() - begun
    while os.read(child.stdout.fileno(), 1 << 16):
        pass
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    assert status == 0, command
    return first, usage.ru_maxrss * 1024


def folder_size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def download_size(package):
    """Bytes of the wheels that pip would fetch into an empty environment."""
    report = subprocess.check_output([sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", package])
    total = 0
    for item in json.loads(report)["install"]:
        request = urllib.request.Request(item["download_info"]["url"], method="HEAD")
        with urllib.request.urlopen(request) as reply:
            total += int(reply.headers["Content-Length"])
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--uqac", type=Path, default=ROOT / "target/release/uqac")
    parser.add_argument("--sizes", nargs="*", default=[])
    args = parser.parse_args()
    packages = Path(subprocess.check_output([args.python, "-c", "import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])"], text=True).strip())
    own = [args.uqac, "-q", "ask", "-m", args.model, "--threads", args.threads, "--max-tokens", TOKENS, QUESTION]
    other = [args.python, "-c", TRANSFORMERS, args.model, args.threads]
    ways = {
        "uqac ask, with chain and confidence": (own, args.uqac.stat().st_size),
        "transformers, bf16, text alone": ([*other, 0, QUESTION, TOKENS], folder_size(packages)),
        "transformers, bf16, with attentions": ([*other, 1, QUESTION, TOKENS], folder_size(packages)),
    }
    found = {name: [] for name in ways}
    for name, (command, _) in ways.items():
        run(command)  # the page cache
    for _ in range(args.rounds):
        for name, (command, _) in ways.items():
            found[name].append(run(command))
    print(f"| {args.model.name}, {args.threads} threads | installed | first token | peak memory |\n| --- | ---: | ---: | ---: |")
    for name, (_, size) in ways.items():
        firsts, peaks = zip(*found[name])
        span = f"{statistics.median(firsts):.2f} s ({min(firsts):.2f} to {max(firsts):.2f})"
        print(f"| {name} | {size / 1e6:,.0f} MB | {span} | {statistics.median(peaks) / 1e6:,.0f} MB |")
    for package in args.sizes:
        print(f"| pip install {package} | {download_size(package) / 1e6:,.0f} MB to download | | |")


if __name__ == "__main__":
    main()
