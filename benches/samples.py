#!/usr/bin/env python3
"""What a sample beside a response costs: requests to `uqac serve` with and without one, interleaved.

    benches/samples.py MODEL GSM8K.jsonl [--uqac PROGRAM] [--questions 5] [--rounds 3]

Ratios of each pair's seconds, of the server's CPU time and of the tokens generated: median and range.
"""
import argparse
import json
import os
import statistics
import subprocess
import threading
import time
import urllib.request


class Server:
    def __init__(self, program, model):
        self.process = subprocess.Popen([program, "serve", "-m", model, "--port", "0"], stderr=subprocess.PIPE, text=True)
        self.address = next(line for line in self.process.stderr if ": http://" in line).rsplit("http://", 1)[1].strip()
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, question, samples):
        """Seconds, CPU seconds and tokens of a greedy response with so many samples."""
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "seed": 0, "max_tokens": 400,
                "uqac": {"samples": samples}}
        request = urllib.request.Request(f"http://{self.address}/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        cpu, begun = self.cpu_seconds(), time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            tokens = json.load(answer)["usage"]["completion_tokens"]
        return time.perf_counter() - begun, self.cpu_seconds() - cpu, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("questions_file")
    parser.add_argument("--uqac", default="target/release/uqac")
    parser.add_argument("--questions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with open(options.questions_file) as file:
        questions = [json.loads(line)["question"] for line in file][: options.questions]
    server, ratios = Server(options.uqac, options.model), []
    try:
        for place in range(options.questions * options.rounds):
            question = questions[place % len(questions)] + "\nPut the final answer in \\boxed{}."
            order = (0, 1) if place % 2 else (1, 0)
            found = {samples: server.ask(question, samples) for samples in order}
            ratios.append([one / none for one, none in zip(found[1], found[0])])
    finally:
        server.process.kill()
    for name, values in zip(("seconds", "CPU seconds", "tokens"), zip(*ratios)):
        print(f"{name}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) × of the response alone")


if __name__ == "__main__":
    main()
