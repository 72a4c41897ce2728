#!/usr/bin/env python3
"""Cost of the Python package and of the server per decode step, interleaved in one run.

    pip install . && benches/overhead.py MODEL_FOLDER [--rounds 9] [--tokens 128] [--json FILE]

The same greedy, traced response three ways per round, in rotating order:

    engine  `uqac ask --json`, by its own rate from the first token to the last
    python  `model.generate` in this process, from the iterator's first token to its last
    server  `uqac serve`, streaming, from the first piece of text to the last

The overhead is relative to the engine in the same round; the result is the median. The texts must be equal.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests/peers"))
from serving import Server  # noqa: E402

QUESTION = "Write a long story about a train that crosses a continent, and describe every station."
# Limits, as a share of a step.
TARGETS = {"python": 0.01, "server": 0.03}


def engine(arguments):
    """(text, tokens per second)"""
    command = [arguments.uqac, "ask", "--json", "--model", arguments.model, "--max-tokens", str(arguments.tokens), QUESTION]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if found["finish_reason"] != "length":
        sys.exit(f"the response ends after {found['response_tokens']} tokens: give fewer --tokens")
    return found["response"], found["tokens_per_second"]


def python(model, arguments):
    times, generation = [], model.generate(QUESTION, max_tokens=arguments.tokens)
    for _ in generation:
        times.append(time.perf_counter())
    return generation.result().response, (len(times) - 1) / (times[-1] - times[0])


def server(address, name, arguments):
    body = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": arguments.tokens,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(*address)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        sys.exit(f"the server answered {reply.status}: {reply.read().decode()}")
    text, times, tokens = "", [], 0
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: "):])
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        pieces = [choice["delta"].get("content") for choice in event["choices"]]
        if any(pieces):
            text += "".join(pieces)
            times.append(time.perf_counter())
    connection.close()
    # a piece is one token, or several if a character spans several
    return text, (tokens - 1) / (times[-1] - times[0])


def median_and_range(values, form):
    return f"{form(statistics.median(values))} [{form(min(values))}, {form(max(values))}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a Hugging Face folder, such as SmolLM2-135M-Instruct's")
    parser.add_argument("--uqac", default="target/release/uqac")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128, help="max tokens of the response")
    parser.add_argument("--json", metavar="FILE", help="every round's figures")
    arguments = parser.parse_args()
    try:
        import uqac
    except ImportError:
        sys.exit("the package uqac is missing: pip install .")
    model = uqac.load(arguments.model)
    rounds = []
    with Server(arguments.uqac, arguments.model) as served:
        address = (urlsplit(served.url).hostname, urlsplit(served.url).port)
        clients = {"engine": lambda: engine(arguments), "python": lambda: python(model, arguments),
                   "server": lambda: server(address, Path(arguments.model).resolve().name, arguments)}
        names = list(clients)
        for client in clients.values():  # the first pass reads the weights
            client()
        for number in range(arguments.rounds):
            turn = number % len(names)
            found = {name: clients[name]() for name in names[turn:] + names[:turn]}
            texts = {text for text, _ in found.values()}
            if len(texts) > 1:
                sys.exit("the responses differ:\n" + "\n".join(f"{name}: {text!r}" for name, (text, _) in found.items()))
            rounds.append({name: rate for name, (_, rate) in found.items()})
    rows, failed = [], False
    for name in names:
        rates = [figures[name] for figures in rounds]
        row = {"client": name, "tokens_per_second": rates}
        if name in TARGETS:
            row["overhead"] = [figures["engine"] / figures[name] - 1 for figures in rounds]
            row["target"] = TARGETS[name]
            failed |= statistics.median(row["overhead"]) > TARGETS[name]
        rows.append(row)
    print(f"{Path(arguments.model).resolve().name}, {arguments.tokens} tokens, {arguments.rounds} rounds, {os.cpu_count()} cores; medians [range]\n")
    print("| client | tokens/s | added to a step | at most |\n| --- | --: | --: | --: |")
    for row in rows:
        added = median_and_range(row["overhead"], "{:+.1%}".format) if "overhead" in row else ""
        target = f"{row['target']:.0%}" if "target" in row else ""
        print(f"| {row['client']} | {median_and_range(row['tokens_per_second'], '{:.1f}'.format)} | {added} | {target} |")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"model": str(arguments.model), "tokens": arguments.tokens, "rows": rows}, indent=1) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
