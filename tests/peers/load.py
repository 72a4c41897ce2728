#!/usr/bin/env python3
"""`uqac serve` under load: many concurrent clients, with requests of mixed lengths, and the same requests one by one.

    tests/peers/load.py --uqac target/release/uqac [--model abacus] [--clients 64] [--seconds 600]

Prints answers by status, throughput, and the server's memory. Fails if an answer is an error other than 429, if greedy text or
confidence differs from that of the same request alone, or if the server does not exit with code 0."""

import argparse
import collections
import http.client
import itertools
import json
import random
import sys
import threading
import time
from urllib.parse import urlsplit

from serving import Server

THINGS = ["apples", "pencils", "coins", "books", "stamps"]


def request(number):
    """The number-th request: short and long questions, answers of few and of many tokens, some sampled, streamed or scored."""
    draw = random.Random(number)
    thing, count = draw.choice(THINGS), draw.choice([1, 1, 2, 6, 20])
    parts = [f"A box has {draw.randrange(3, 99)} {thing} and another one has {draw.randrange(3, 99)} more." for _ in range(count)]
    body = {
        "messages": [{"role": "user", "content": " ".join(parts) + f" How many {thing} are there in the first two?"}],
        "max_tokens": draw.choice([1, 8, 32, 128, 400]),
        "temperature": draw.choice([0, 0, 1]),
        "seed": number,
        "n": draw.choice([1, 1, 1, 3]),
        "uqac": draw.choice([False, {}, {"scores": "all", "explain": True}, {"stop_below": 10, "window": 8}]),
    }
    if draw.random() < 0.3:
        body["logprobs"] = True
    if draw.random() < 0.3:
        body.update(stream=True, stream_options={"include_usage": True})
    return body


def answer(connection, body):
    """(status, the part that must not depend on the load, tokens generated)"""
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    if reply.status != 200:
        return reply.status, text, 0
    if not body.get("stream"):
        found = json.loads(text)
        choices = [(choice["index"], choice["message"]["content"], (choice.get("uqac") or {}).get("scores")) for choice in found["choices"]]
        return 200, choices, found["usage"]["completion_tokens"]
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    if events.pop() != "[DONE]":
        return "stream cut off", text, 0
    texts, confidences, tokens = collections.defaultdict(str), {}, 0
    for event in map(json.loads, events):
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            if "uqac" in choice:
                confidences[choice["index"]] = choice["uqac"]["scores"]
    return 200, [(index, texts[index], confidences.get(index)) for index in sorted(texts)], tokens


def memory(process):
    """Resident KiB."""
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


class Load:
    """Clients that take turns at a list of requests until time runs out."""

    def __init__(self, address, seconds, kinds):
        self.address, self.until, self.kinds = address, time.monotonic() + seconds, kinds
        self.numbers = itertools.count()
        self.lock = threading.Lock()
        self.statuses, self.tokens, self.answers = collections.Counter(), 0, {}

    def client(self):
        connection = http.client.HTTPConnection(*self.address, timeout=300)
        while time.monotonic() < self.until:
            number = next(self.numbers) % self.kinds
            try:
                status, found, tokens = answer(connection, request(number))
            except (OSError, http.client.HTTPException) as error:
                status, found, tokens = type(error).__name__, str(error), 0
                connection.close()
            with self.lock:
                self.statuses[status] += 1
                self.tokens += tokens
                if status == 200:
                    self.answers.setdefault(number, []).append(found)
                elif status != 429:
                    print(f"request {number}: {status} {found[:200]}")
            if status == 429:
                time.sleep(0.2)

    def run(self, clients):
        begun = time.monotonic()
        threads = [threading.Thread(target=self.client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.tokens / (time.monotonic() - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uqac", default="target/release/uqac")
    parser.add_argument("--model", default="abacus")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--kinds", type=int, default=500, help="requests that differ; they come again and again")
    parser.add_argument("--alone", type=float, default=60, help="seconds of requests one by one")
    arguments = parser.parse_args()
    with Server(arguments.uqac, arguments.model) as server:
        address = (urlsplit(server.url).hostname, urlsplit(server.url).port)
        alone = Load(address, arguments.alone, arguments.kinds)
        speed_alone = alone.run(1)
        crowd = Load(address, arguments.seconds, arguments.kinds)
        measured, over = [], threading.Event()

        def watch():
            while not over.wait(max(0.5, arguments.seconds / 200)):
                measured.append(memory(server.process))

        watcher = threading.Thread(target=watch)
        watcher.start()
        speed = crowd.run(arguments.clients)
        over.set()
        watcher.join()
    repeated = [answers for answers in crowd.answers.values() if len(answers) > 1]
    differing = sum(any(found != answers[0] for found in answers) for answers in repeated)
    both = crowd.answers.keys() & alone.answers.keys()
    otherwise = sum(crowd.answers[number][0] != alone.answers[number][0] for number in both)
    print(f"{arguments.model}, {arguments.clients} clients, {arguments.seconds:.0f} s: {sum(crowd.statuses.values())} requests")
    print("by status: " + ", ".join(f"{status}: {n}" for status, n in sorted(crowd.statuses.items(), key=str)))
    print(f"{len(repeated)} requests were answered more than once, {differing} of them not always alike; "
          f"{len(both)} were answered alone, too, {otherwise} of them otherwise")
    print(f"tokens/s: {speed:.0f}, one by one {speed_alone:.0f}: {speed / speed_alone:.2f} times")
    tenth = max(1, len(measured) // 10)
    parts = [measured[:tenth], measured[len(measured) // 2:][:tenth], measured[-tenth:]]
    start, middle, end = [max(part) / 1024 for part in parts]
    print(f"memory in MiB: {start:.0f} in the first tenth, {middle:.0f} in the middle, {end:.0f} in the last tenth, at most {max(measured) / 1024:.0f}")
    allowed = {200, 429}
    sys.exit(bool(set(crowd.statuses) - allowed or set(alone.statuses) - {200} or differing or otherwise))


if __name__ == "__main__":
    main()
