#!/usr/bin/env python3
"""How many log-probabilities depend on how a response was computed: expected 0.

    benches/determinism.py [--model abacus] [--uqac target/release/uqac] [--logprobs 32768]

The same greedy responses to Abacus's questions one at a time, on one thread, without speculation; then in batches, on more threads, with
speculation, with samples beside them that share their cache, and served: one by one, 32 at once, and in pairs of which the second
takes its prompt from the first's cache, with and without the trace. Compares every token's id and log-probability bit by bit; a token that one
side lacks differs. Exits with 1 if any differs, or if the control, 8-bit weights, does not. Other engines' published figures: RESULTS.md, Determinism.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests/peers"))
from serving import Server  # noqa: E402

# Name and arguments of `uqac eval`; the first is what the others are compared with.
RUNS = [
    ("batches of 1, 1 thread, no speculation", ["--batch-size", "1", "--threads", "1", "--speculate", "off"]),
    ("batches of 7", ["--batch-size", "7", "--threads", "1", "--speculate", "off"]),
    ("batches of 32", ["--batch-size", "32", "--threads", "1", "--speculate", "off"]),
    ("batches of 32, 2 threads", ["--batch-size", "32", "--threads", "2", "--speculate", "off"]),
    ("batches of 7, 3 threads", ["--batch-size", "7", "--threads", "3", "--speculate", "off"]),
    ("speculation, 4 tokens", ["--batch-size", "1", "--threads", "1", "--speculate", "4"]),
    ("speculation as it pays, batches of 7", ["--batch-size", "7", "--threads", "2", "--speculate", "auto"]),
    ("two samples beside each, which take its cache", ["--batch-size", "32", "--threads", "2", "--methods", "self-consistency",
                                                       "--samples", "2"]),
]
# Must differ, which shows that the comparison can tell.
CONTROL = ("a control: 8-bit weights", [*RUNS[0][1], "--weights", "q8"])


def evaluated(options, items, extra, folder):
    """Each item's prompt, and ids and log-probabilities of its response."""
    command = [options.uqac, "eval", "--model", options.model, "--tasks", "abacus", "--limit", str(items), "--draws", "0", "--quiet",
               "--max-tokens", str(options.max_tokens), "--output", folder, *extra]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = {}
    for line in (Path(folder) / "samples_abacus.jsonl").read_text().splitlines():
        sample = json.loads(line)
        tokens = sample["uq"]["tokens"]
        found[sample["doc_id"]] = sample["arguments"][0][0], list(zip(tokens["ids"], tokens["logprobs"]))
    return dict(sorted(found.items()))


def completion(url, prompts, options, uqac):
    """Ids are not in the reply; the texts of tokens stand for them."""
    body = {"model": options.model, "prompt": prompts, "temperature": 0, "max_tokens": options.max_tokens, "logprobs": 0,
            "add_special_tokens": False, "uqac": uqac}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        choices = sorted(json.load(reply)["choices"], key=lambda choice: choice["index"])
    return [choice["logprobs"]["token_logprobs"] for choice in choices]


def served(options, reference, at_once, pairs, uqac):
    with Server(options.uqac, options.model, "--max-batch", str(max(2, at_once)), "--queue", "4096") as server:
        def one(item):
            doc_id, (prompt, _) = item
            return doc_id, completion(server.url, [prompt] * (2 if pairs else 1), options, uqac)[-1]
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            return dict(pool.map(one, reference.items()))


def differing(reference, found, size):
    """Of the first `size` positions of the reference, how many the other side has otherwise."""
    differ = seen = 0
    for doc_id, expected in reference.items():
        other = found.get(doc_id, [])
        expected = expected[:size - seen]
        seen += len(expected)
        differ += sum(i >= len(other) or other[i] != one for i, one in enumerate(expected))
    return seen, differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="abacus")
    parser.add_argument("--uqac", default=str(ROOT / "target/release/uqac"))
    parser.add_argument("--logprobs", type=int, default=32_768)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--items", type=int, default=700, help="questions at most")
    options = parser.parse_args()
    worst = 0

    def row(name, seen, differ):
        nonlocal worst
        worst = max(worst, differ if name != CONTROL[0] else not differ)
        print(f"| {name} | {seen:,} | {differ:,} |", flush=True)
    with tempfile.TemporaryDirectory() as place:
        (name, extra), *others = RUNS
        first = evaluated(options, options.items, extra, os.path.join(place, "0"))
        # as many whole items as the log-probabilities need
        needed, total = 0, 0
        while total < options.logprobs and needed < len(first):
            total += len(first[needed][1])
            needed += 1
        reference = {doc_id: first[doc_id] for doc_id in range(needed)}
        exact = {doc_id: tokens for doc_id, (_, tokens) in reference.items()}
        values = {doc_id: [logprob for _, logprob in tokens] for doc_id, tokens in exact.items()}
        print(f"{options.model}: {needed} responses; compared with {name}\n\n| computed | log-probabilities | differ |\n| --- | ---: | ---: |")
        for i, (name, extra) in enumerate([*others, CONTROL]):
            found = evaluated(options, needed, extra, os.path.join(place, str(i + 1)))
            row(name, *differing(exact, {doc_id: tokens for doc_id, (_, tokens) in found.items()}, options.logprobs))
        for name, at_once, pairs, uqac in [("served one by one", 1, False, False), ("served, 32 at once", 32, False, False),
                                           ("served in pairs, 7 at once: the second takes the first's prefix", 7, True, False),
                                           ("served with the trace, 32 at once", 32, False, {})]:
            row(name, *differing(values, served(options, reference, at_once, pairs, uqac), options.logprobs))
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
