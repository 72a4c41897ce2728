#!/usr/bin/env python3
"""Attacks `uqac score` and `uqac eval` with the built-in model, and counts the outcomes.

    tests/attack/lines.py [--uqac target/release/uqac] [--lines 2000] [--kills 200] [--seed 1]

* lines:  input lines of `score` that are mutated at random: bytes, JSON values, sizes. Each must produce one record, with
          or without an error, and the good lines around it must produce their usual records.
* files:  whole input files, mutated: cut, repeated, packed, packed and cut, not text at all.
* kills:  `score --resume` and `eval`, killed at random moments until they finish. Nothing may be lost, repeated or changed.

A line that takes two seconds longer than the program's startup, or a run that needs more than 2 GiB of address space, ends with a
signal or a panic, or writes unexpected records, is a failure: it is printed, its input is kept, and the exit code is 1.
"""

import argparse
import collections
import gzip
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HANG_SECONDS = 2.0
MEMORY_BYTES = 2 << 30  # of address space: each thread reserves some that it does not use
BATCH = 25  # changed lines in one run

QUESTIONS = [
    ("Tom has 3 boxes with 12 pencils each. How many pencils are there?", "3 * 12 = 36. The answer is 36."),
    ("What is 17 + 25?", "17 + 25 = 42.\nThe answer is \\boxed{42}."),
    ("Ann had 20 apples and gave 7 away. How many are left?", "20 - 7 = 13\n#### 13"),
    ("Is the sky blue?", "So the answer is yes."),
]


def good_lines():
    """Lines in every form, with distinct ids."""
    lines = []
    for i, (prompt, response) in enumerate(QUESTIONS):
        lines.append({"id": f"p{i}", "prompt": prompt, "response": response})
        lines.append({"id": i, "messages": [{"role": "user", "content": prompt}], "response": response, "dataset": "gsm8k"})
        ids = [5 + (7 * i + k) % 300 for k in range(24)]
        lines.append({"id": f"t{i}", "input_ids": ids, "n_instr": 9, "answer_span": [20, 22]})
    return [json.dumps(line) for line in lines]


class Mutator:
    """Mutates a line, using its own random numbers."""

    VALUES = [
        None, True, -1, 0, 1, 2**31, 2**32, 2**63, 2**64, 1e308, -1e-308, 0.5, "", "\u0000", "\u202e\u001b[31m", "é" * 50, "🙂",
        "\\boxed{", "{" * 200, [], {}, [[]], [None], {"a": {"b": {}}}, [0, 1], [1, 0], [2**64, 2**64], ["x"], "x" * 70_000,
        list(range(3000)), [1] * 100_000, "word " * 40_000, "<s></s><|im_end|>", "1" * 5000, "9" * 400 + ".5", "ا" * 300,
    ]

    def __init__(self, rng):
        self.rng = rng

    def line(self, line):
        kind = self.rng.choice([self.bytes, self.bytes, self.value, self.value, self.value, self.keys, self.nest, self.text])
        return kind(line).replace(b"\n", b" ").replace(b"\r", b" ")

    def bytes(self, line):
        data = bytearray(line.encode())
        for _ in range(self.rng.choice([1, 1, 2, 8, 40])):
            at = self.rng.randrange(len(data) + 1)
            match self.rng.randrange(5):
                case 0 if at < len(data):
                    data[at] ^= 1 << self.rng.randrange(8)
                case 1:
                    data[at:at] = self.rng.randbytes(self.rng.choice([1, 3, 30]))
                case 2:
                    del data[at : at + self.rng.choice([1, 2, 10])]
                case 3:
                    other = self.rng.randrange(len(data) + 1)
                    data[at:at] = data[min(at, other) : max(at, other)][:500]
                case _:
                    del data[at:]
            if not data:
                data = bytearray(b"x")
        return bytes(data)

    def paths(self, value, path=()):
        yield path
        if isinstance(value, dict):
            for key in value:
                yield from self.paths(value[key], path + (key,))
        elif isinstance(value, list):
            for i in self.rng.sample(range(len(value)), min(3, len(value))):
                yield from self.paths(value[i], path + (i,))

    def value(self, line):
        tree = json.loads(line)
        for _ in range(self.rng.choice([1, 1, 2])):
            path = self.rng.choice(list(self.paths(tree)))
            value = self.rng.choice(self.VALUES)
            if not path:
                return json.dumps(value).encode()
            place = tree
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
        return json.dumps(tree, ensure_ascii=self.rng.random() < 0.5).encode("utf-8", "surrogatepass")

    def keys(self, line):
        tree = json.loads(line)
        key = self.rng.choice(list(tree))
        match self.rng.randrange(3):
            case 0:
                del tree[key]
            case 1:
                other = json.loads(self.rng.choice(good_lines()))
                tree.update({k: v for k, v in other.items() if k != "id"})
            case _:
                text = json.dumps(tree)
                return (text[:-1] + f', "{key}": ' + json.dumps(self.rng.choice(self.VALUES)) + "}").encode()
        return json.dumps(tree).encode()

    def nest(self, line):
        tree = json.loads(line)
        key, depth = self.rng.choice(list(tree)), self.rng.choice([10, 127, 129, 5000, 200_000])
        deep = self.rng.choice(["[", '{"a":']) * depth
        close = "" if self.rng.random() < 0.3 else ("]" if deep[0] == "[" else "}") * depth
        tree[key] = "@"
        return json.dumps(tree).replace('"@"', deep + ("0" if deep[0] == "{" and close else "") + close).encode()

    def text(self, line):
        tree = json.loads(line)
        pieces = ["The answer is ", "\\boxed{", "}", "####", "$", "\\frac{", "1", ".", ",", "-", "\n", "(A)", "%", "\u00a0", "</s>", "="]
        text = "".join(self.rng.choice(pieces) for _ in range(self.rng.choice([1, 5, 50, 2000])))
        tree["response"] = text
        tree.pop("input_ids", None)
        tree.setdefault("prompt", "x") if "messages" not in tree else None
        return json.dumps(tree).encode()


class Attack:
    def __init__(self, uqac, seed, folder):
        self.uqac, self.seed, self.folder = str(Path(uqac).resolve()), seed, Path(folder)
        self.rng = random.Random(seed)
        self.table = collections.defaultdict(collections.Counter)
        self.failures = []
        self.environment = {"UQAC_CACHE": str(self.folder / "cache"), "PATH": os.environ["PATH"]}

    def run(self, arguments, timeout, stdin=None):
        """Exit code (negative: a signal; None: a hang), stderr, and CPU seconds, which `timeout` limits."""

        def limit():
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(timeout), math.ceil(timeout)))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        def on_cpu():
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime

        begun = on_cpu()
        try:
            done = subprocess.run([self.uqac, *arguments], env=self.environment, cwd=self.folder, preexec_fn=limit,
                                  stdin=stdin or subprocess.DEVNULL, capture_output=True, timeout=30 * timeout)
            out_of_time = done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
            return None if out_of_time else done.returncode, done.stderr.decode(errors="replace"), on_cpu() - begun
        except subprocess.TimeoutExpired:  # it waits for something
            return None, "", on_cpu() - begun

    def score(self, input_name, output, timeout, *more):
        arguments = ["score", "--model", "abacus", "--device", "cpu", "--threads", "1", "--input", input_name]
        return self.run([*arguments, "--output", output, *more], timeout)

    def count(self, kind, code, said):
        """Counts an outcome; returns whether it is acceptable."""
        row = self.table[kind]
        row["runs"] += 1
        if code is None:
            outcome = "hang"
        elif "panicked" in said or code == 101:
            outcome = "panic"
        elif "memory allocation" in said or code == -signal.SIGKILL:
            outcome = "memory"
        elif code < 0 or code > 2:
            outcome = "signal"
        else:
            outcome = f"exit {code}"
        row[outcome] += 1
        return outcome.startswith("exit")

    def fail(self, kind, what, keep=None):
        self.table[kind]["wrong"] += 1
        if keep is not None:
            kept = self.folder / f"failure-{len(self.failures)}"
            kept.write_bytes(keep)
            what = f"{what} (input kept as {kept})"
        self.failures.append(f"{kind}: {what}")
        print(f"FAILURE {self.failures[-1]}", flush=True)

    def prepare(self):
        """Records the results of the good lines, and the time of a run over them."""
        self.good = good_lines()
        (self.folder / "good.jsonl").write_text("\n".join(self.good) + "\n")
        code, said, _ = self.score("good.jsonl", "good.out", 60)
        if code not in (0, 1):
            sys.exit(f"{self.uqac} does not score good lines: {said}")
        _, _, self.start = self.score("good.jsonl", "good.out", 60, "--overwrite")
        self.expected = (self.folder / "good.out").read_text().splitlines()

    def changed_lines(self, count):
        mutator = Mutator(self.rng)
        while count > 0:
            batch = [mutator.line(self.rng.choice(self.good)) for _ in range(min(BATCH, count))]
            count -= len(batch)
            if not self.lines_of(batch):
                for line in batch:  # find out which one
                    self.lines_of([line], single=True)

    def lines_of(self, batch, single=False):
        """Scores mutated lines with good ones before and after them; returns whether all was well."""
        blank = sum(1 for line in batch if not line.strip(b" \t\n\r\f"))
        content = b"\n".join([self.good[0].encode(), *batch, self.good[1].encode()]) + b"\n"
        (self.folder / "in.jsonl").write_bytes(content)
        timeout = self.start + HANG_SECONDS * (1 if single else len(batch))
        code, said, _ = self.score("in.jsonl", "out.jsonl", timeout, "--overwrite")
        if not single:
            self.table["lines"]["lines"] += len(batch)
        fine = self.count("lines", code, said)
        if fine:
            records = (self.folder / "out.jsonl").read_text().splitlines()
            fine = len(records) == len(batch) - blank + 2 and records[0] == self.expected[0] and records[-1] == self.expected[1]
            fine = fine and all(json.loads(record)["status"] in ("ok", "no_answer", "error") for record in records)
        if single and not fine:
            self.fail("lines", f"exit code {code}: {said[-300:]}", content)
        return fine

    def changed_files(self, count):
        for _ in range(count):
            text = ("\n".join(self.rng.sample(self.good, 6)) + "\n").encode()
            match self.rng.randrange(8):
                case 0:
                    content = text[: self.rng.randrange(len(text))]
                case 1:
                    content = gzip.compress(text)
                case 2:
                    packed = gzip.compress(text)
                    content = packed[: self.rng.randrange(len(packed))]
                case 3:
                    packed = bytearray(gzip.compress(text))
                    packed[self.rng.randrange(len(packed))] ^= 1 << self.rng.randrange(8)
                    content = bytes(packed)
                case 4:
                    content = self.rng.randbytes(self.rng.choice([0, 1, 100, 100_000]))
                case 5:
                    content = gzip.compress(self.rng.choice([b" ", b"\n", b"[", b"1,", b'{"id":']) * (20 << 20)) + gzip.compress(text)
                case 6:
                    content = b"\xef\xbb\xbf" + text.replace(b"\n", self.rng.choice([b"\r\n", b"\n\n", b"\r"]))
                case _:
                    content = text.decode().encode(self.rng.choice(["utf-16", "utf-32", "utf-16-le"]))
            (self.folder / "in.jsonl").write_bytes(content)
            code, said, _ = self.score("in.jsonl", "out.jsonl", self.start + HANG_SECONDS, "--overwrite")
            if not self.count("files", code, said):
                self.fail("files", f"exit code {code}: {said[-300:]}", content)

    def kills(self, count):
        lines = [json.dumps({**json.loads(line), "id": i}) for i, line in enumerate(self.good * 12)]
        (self.folder / "long.jsonl").write_text("\n".join(lines) + "\n")
        fixed = ["--model", "abacus", "--device", "cpu", "--threads", "1"]
        runs = []
        for name in ["killed.jsonl", "killed.jsonl.gz"]:
            whole = "whole-" + name
            code, said, seconds = self.score("long.jsonl", whole, 600)
            if code not in (0, 1):
                sys.exit(f"a whole run fails: {said}")
            command = ["score", *fixed, "--input", "long.jsonl", "--output", name, "--resume"]
            runs.append((command, seconds, name, lambda name=name, whole=whole: self.text(name) == self.text(whole),
                         lambda name=name: self.forget(name, name + ".manifest.json")))
        evaluate = ["eval", *fixed, "--tasks", "abacus", "--limit", "24", "--max-tokens", "160", "--output"]
        code, said, seconds = self.run([*evaluate, "whole-run"], 600)
        if code not in (0, 1):
            sys.exit(f"a whole run fails: {said}")
        runs.append(([*evaluate, "killed-run"], seconds, "killed-run",
                     lambda: self.samples("killed-run") == self.samples("whole-run"), lambda: self.forget("killed-run")))
        done = 0
        while done < count:
            command, seconds, name, same, forget = runs[self.rng.randrange(len(runs))]
            forget()
            kills, ended = 0, False
            while done < count and kills < 6 and not ended:
                child = subprocess.Popen([self.uqac, *command], env=self.environment, cwd=self.folder,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(self.rng.uniform(0, 0.6 * seconds))
                how = self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
                child.send_signal(how)
                code = child.wait()
                ended = code >= 0  # it finished first
                self.table["kills"]["runs"] += 1
                if not ended:
                    done, kills = done + 1, kills + 1
                    self.table["kills"]["killed"] += 1
                if code not in (0, 1, -how):
                    self.fail("kills", f"{name}: exit code {code} after {how.name}")
            code, said, _ = self.run(command, 600)
            if not self.count("kills", code, said) or code == 2 or not same():
                self.fail("kills", f"{name} after {kills} kills: exit code {code}, not what a whole run writes: {said[-300:]}")

    def text(self, name):
        data = (self.folder / name).read_bytes()
        return gzip.decompress(data) if name.endswith(".gz") else data

    def samples(self, name):
        lines = (self.folder / name / "samples_abacus.jsonl").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
        for sample in samples:
            sample["uq"].pop("seconds", None)
        return sorted(samples, key=lambda sample: sample["doc_id"])

    def forget(self, *names):
        for name in names:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def report(self):
        columns = ["lines", "runs", "exit 0", "exit 1", "exit 2", "killed", "panic", "hang", "memory", "signal", "wrong"]
        print("| seed", self.seed, "| " + " | ".join(columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        for kind, row in self.table.items():
            print("| " + " | ".join([kind, *(str(row[column] or "") for column in columns)]) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uqac", default=Path(__file__).parents[2] / "target/release/uqac")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="uqac-attack-")
    attack = Attack(arguments.uqac, arguments.seed, folder)
    attack.prepare()
    attack.changed_lines(arguments.lines)
    attack.changed_files(arguments.files)
    attack.kills(arguments.kills)
    attack.report()
    if attack.failures:
        print(f"{len(attack.failures)} failures, in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
