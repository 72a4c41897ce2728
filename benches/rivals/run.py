#!/usr/bin/env python3
"""Interleaves uqac, llama.cpp, ik_llama.cpp, OpenVINO and transformers and prints a table with the project's targets; see ../rivals.sh.

Within a round, every engine does the same work once, one after the other, so that other load on the machine affects all of them.
Rates are medians over the rounds; targets are checked against the median of the rounds' ratios.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TOKENS, BATCH_TOKENS, ANSWER = 48, 24, 300
WORK = ["decode", "batch", "trace", "answer", "scoring", "start"]
GUESSED = 7

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("models", nargs="+", type=pathlib.Path)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
RIVALS = ["llama.cpp", "ik_llama.cpp", "openvino", "torch"]
numbers = lambda text: [int(number) for number in text.split(",")]
parser.add_argument("--rivals", type=lambda text: text.split(","), default=RIVALS, help=",".join(RIVALS))
parser.add_argument("--prompts", type=numbers, default=[128, 512, 2048, 4096], help="prompts' lengths for prefill and decode")
parser.add_argument("--only", type=lambda text: text.split(","), default=WORK, help=",".join(WORK))
parser.add_argument("--scoring-lengths", type=numbers, default=[500, 1500])
parser.add_argument("--tasks", type=lambda text: text.split(","), default=["gsm8k"], help="tasks of the work `lookup`")
parser.add_argument("--data", type=pathlib.Path, help="folder with the tasks' files")
parser.add_argument("--limit", type=int, default=6, help="questions of each task")
parser.add_argument("--json", type=pathlib.Path)
parser.add_argument("--uqac", type=pathlib.Path, required=True)
parser.add_argument("--cache", type=pathlib.Path, required=True)
options = parser.parse_args()
rows, machine = [], {}


class Worker:
    """A rival process that keeps its model loaded."""

    def __init__(self, *command):
        command = [sys.executable, *map(str, command)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.answer()["ready"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def uqac(model, *arguments, rounds=1):
    command = [options.uqac, "bench", "--model", model, "--device", "cpu", "--threads", options.threads]
    command += ["--rounds", rounds, "--json", *arguments]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    report = json.loads(done.stdout)
    report["by"] = {stage["stage"]: stage for stage in report["stages"]}
    machine.setdefault("device", report["device"])
    for key, unit in (("bandwidth", 1e9), ("arithmetic_peak", 1e9)):
        machine.setdefault(key, []).append(report[key]["median"] / unit)
    return report


def say(text):
    print(text, file=sys.stderr, flush=True)


def row(model, what, unit, ours, rivals, target, ratio=None, met=None):
    """`ratio`: the figure compared with the target, one value per round."""
    median = statistics.median
    value = median(ratio) if ratio else median(ours)
    spread = f"{min(ratio or ours):.3g} to {max(ratio or ours):.3g}"
    rows.append({
        "model": model, "what": what, "unit": unit, "ours": median(ours),
        "rivals": {name: median(values) for name, values in rivals.items()},
        "ratio": median(ratio) if ratio else None, "range": spread, "target": target,
        "met": None if met is None else met(value),
    })
    say("  " + line(rows[-1]))


def line(r):
    rivals = ", ".join(f"{name} {value:.4g}" for name, value in r["rivals"].items())
    ratio = "" if r["ratio"] is None else f"{r['ratio']:.3g}"
    met = {None: "", True: "yes", False: "no"}[r["met"]]
    return f"{r['model']} | {r['what']} | {r['ours']:.4g} {r['unit']} | {rivals} | {ratio} ({r['range']}) | {r['target']} | {met}"


def gguf(model, kind, family=False):
    """`family`: converted by llama.cpp's own converter."""
    target = options.cache / f"{model.name}-{'family-' if family else ''}{kind}.gguf"
    if not target.exists():
        say(f"converting {model.name} to {target}")
        part = target.with_suffix(".part")
        converter = [HERE / "convert_by_llama.py", options.cache / "llama-source"] if family else [HERE / "convert.py"]
        subprocess.run([sys.executable, *converter, model, part, kind], check=True)
        part.rename(target)
    return target


def start_rivals(model):
    """The rivals by name; each keeps its model loaded."""
    workers, context = {}, max(options.prompts) + TOKENS + 64
    for rival, module in (("llama.cpp", "llama_cpp"), ("ik_llama.cpp", "ik_llama_cpp")):
        for kind in ("bf16", "f16") if rival in options.rivals else ():
            workers[f"{rival} {kind}"] = Worker(HERE / "llama.py", module, gguf(model, kind), options.threads, context)
    for precision in ("f32", "default") if "openvino" in options.rivals else ():
        workers[f"OpenVINO {precision}"] = Worker(HERE / "openvino_worker.py", gguf(model, "f16"), options.threads, precision)
    for kind in ("bf16", "f32") if "torch" in options.rivals else ():
        workers[f"torch {kind}"] = Worker(HERE / "torch_worker.py", model, kind, "sdpa", options.threads)
    return workers


def decode(model):
    """Decoding and prefill against all rivals."""
    rivals = start_rivals(model)
    for rival, worker in rivals.items():
        say(f"{rival}: {worker.about}")
    for prompt in options.prompts:
        ours, found = [], {rival: [] for rival in rivals}
        for i in range(options.rounds):
            say(f"{model.name}, {prompt} tokens, round {i + 1} of {options.rounds}")
            ours.append(uqac(model, "--prompt-tokens", prompt, "--gen-tokens", TOKENS, "--samples", 1, "--variants", 1))
            for rival, worker in rivals.items():
                found[rival].append(worker.ask(work="decode", prompt=prompt, tokens=TOKENS))
        say(f"first tokens: { {rival: values[0]['chosen'] for rival, values in found.items()} }")
        against(model, f"decode after {prompt}", ours, "decode", {r: [1 / f["step"] for f in v] for r, v in found.items()}, 1.3)
        against(model, f"prefill {prompt}", ours, "prefill", {r: [prompt / f["prefill"] for f in v] for r, v in found.items()}, 1.1)
        for stage, share, target in (("decode", "share_of_bandwidth", 0.8), ("prefill", "share_of_arithmetic", None)):
            values = [o["by"][stage][share] for o in ours]
            met = (lambda x: x >= target) if target else None
            row(model.name, f"{stage} {prompt}, {share.replace('_', ' ')}", "", values, {}, f">= {target}" if target else "", met=met)
    for worker in rivals.values():
        worker.close()


def against(model, what, ours, stage, rivals, least):
    rates = [o["by"][stage]["tokens_per_second"] for o in ours]
    best = [max(values) for values in zip(*rivals.values())]
    ratio = [a / b for a, b in zip(rates, best)] or None
    row(model.name, what, "tokens/s", rates, rivals, f">= {least} x the best", ratio, (lambda x: x >= least) if ratio else None)


def batch(model):
    common = ["--prompt-tokens", 64, "--gen-tokens", BATCH_TOKENS, "--samples", 1, "--variants", 1]
    one, eight = [], []
    for i in range(options.rounds):
        say(f"{model.name}, batch 8, round {i + 1} of {options.rounds}")
        one.append(uqac(model, *common)["by"]["decode"]["tokens_per_second"])
        eight.append(uqac(model, *common, "--batch", 8)["by"]["decode"]["tokens_per_second"])
    row(model.name, "decode, batch 8", "tokens/s", eight, {"batch 1": one}, ">= 4 x batch 1", [a / b for a, b in zip(eight, one)], lambda x: x >= 4)


def trace(model):
    say(f"{model.name}, trace on and off")
    common = ["--prompt-tokens", 64, "--gen-tokens", 8, "--samples", 1, "--variants", 1]
    report = uqac(model, *common, "--sweep", "512,4096", rounds=4 * options.rounds + 1)
    for context in report["sweep"]:
        overhead = context["trace_overhead_percent"]
        values = [overhead["least"], overhead["median"], overhead["most"]]
        row(model.name, f"trace on against off at {context['context']}", "%", values, {}, "<= 2 %", met=lambda x: x <= 2)


def answer(model):
    for variants, like in (2, "as a real answer's median"), (8, "many"):
        shares, parts = [], []
        for i in range(options.rounds):
            say(f"{model.name}, after an answer of {ANSWER} tokens, {variants} variants, round {i + 1} of {options.rounds}")
            by = uqac(model, "--prompt-tokens", 128, "--gen-tokens", ANSWER, "--samples", 1, "--variants", variants)["by"]
            parts.append({stage: by[stage]["seconds"]["median"] for stage in ("chain", "similarity", "ensemble")})
            generation = by["prefill"]["seconds"]["median"] + by["decode"]["seconds"]["median"]
            shares.append(100 * sum(parts[-1].values()) / generation)
        rivals = {stage: [p[stage] for p in parts] for stage in parts[0]}
        what = f"chain + similarity + ensemble, {ANSWER} tokens, {variants} variants ({like})"
        row(model.name, what, "% of generation", shares, rivals, "<= 10 %", met=lambda x: x <= 10)


def scoring(model):
    """Traced pass, chain and similarity of an existing response, with the model loaded on both sides."""
    common = ["--prompt-tokens", 64, "--gen-tokens", 8, "--samples", 1, "--variants", 1]
    for tokens in options.scoring_lengths:
        ours, theirs, our_memory, their_memory = [], [], [], []
        for i in range(max(options.rounds // 2, 1)):
            say(f"{model.name}, scoring {tokens} tokens, round {i + 1}")
            found = uqac(model, *common, "--sweep", tokens)["sweep"][0]["score"]
            ours.append(found["seconds"]["median"])
            our_memory.append(found["extra_bytes"] / 1e6)
            # a separate process: a peak never goes down
            worker = Worker(HERE / "torch_worker.py", model, "f32", "eager", options.threads)
            found = worker.ask(work="attentions", tokens=tokens)
            worker.close()
            theirs.append(found["seconds"])
            their_memory.append(found["extra"] / 1e6)
        least = 10 if tokens < 1000 else 15
        ratio = [b / a for a, b in zip(ours, theirs)]
        row(model.name, f"score {tokens} tokens, without the ensemble", "s", ours, {"eager f32": theirs}, f">= {least} x faster", ratio, lambda x: x >= least)
        ratio = [b / a for a, b in zip(our_memory, their_memory)]
        target, met = (">= 20 x less", lambda x: x >= 20) if tokens >= 1000 else ("", None)
        row(model.name, f"memory above the model, {tokens} tokens", "MB", our_memory, {"eager f32": their_memory}, target, ratio, met)


def family(model):
    """Decoding and prefill compared with llama.cpp's own benchmark, on weights converted by its converter."""
    files = {kind: gguf(model, kind, family=True) for kind in ("bf16", "f16")}
    for prompt in options.prompts:
        ours, theirs = [], {test: {f"llama.cpp {kind}": [] for kind in files} for test in ("pp", "tg")}
        for i in range(options.rounds):
            say(f"{model.name}, {prompt} tokens, round {i + 1} of {options.rounds}")
            ours.append(uqac(model, "--prompt-tokens", prompt, "--gen-tokens", TOKENS, "--samples", 1, "--variants", 1))
            for kind, target in files.items():
                command = [options.cache / "llama-build/bin/llama-bench", "-m", target, "-p", prompt, "-n", TOKENS]
                command += ["-r", 1, "-t", options.threads, "-o", "json"]
                done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
                for test in json.loads(done.stdout):
                    theirs["tg" if test["n_gen"] else "pp"][f"llama.cpp {kind}"].append(test["avg_ts"])
        against(model, f"decode, {TOKENS} tokens", ours, "decode", theirs["tg"], 1)
        against(model, f"prefill {prompt}", ours, "prefill", theirs["pp"], 1)


def start(model):
    values = []
    for _ in range(2 * options.rounds):
        command = [options.uqac, "ask", "--model", model, "--device", "cpu", "--threads", options.threads, "--max-tokens", "1", "--no-chat-template", "--json", "Hi"]
        begin = time.perf_counter()
        subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        values.append(time.perf_counter() - begin)
    # a pass of one token reads the weights once, as a decode step does
    report = uqac(model, "--prompt-tokens", 16, "--gen-tokens", 8, "--samples", 1, "--variants", 1)
    step = 1 / report["by"]["decode"]["tokens_per_second"]
    values = [value - step for value in values]
    row(model.name, "start of the program to its end, less the pass of one token", "s", values, {}, "<= 0.3 s", met=lambda x: x <= 0.3)


def lookup(model):
    """Speculative decoding of a task's questions, here and with llama.cpp's own lookup decoding of the same prompts."""
    for task in options.tasks:
        run = ["--threads", options.threads, "--data", options.data.resolve()]
        ours, plain, theirs, theirs_plain = [], [], [], []
        for i in range(options.rounds):
            say(f"{model.name}, {task}, round {i + 1} of {options.rounds}")
            command = ["cargo", "bench", "--quiet", "--bench", "speculation", "--", model.resolve(), task, "--limit", options.limit, "--json", *run]
            report = json.loads(subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True, cwd=HERE).stdout)
            machine.setdefault("device", report["device"])
            ours += [response["tokens_per_second"] for response in report["responses"]]
            plain += [response["plain_tokens_per_second"] for response in report["responses"]]
            for prompt, limit in prompts(task, ["--model", model, "--device", "cpu", *run]):
                for guessed, speeds in ((GUESSED, theirs), (0, theirs_plain)):
                    speeds.append(llama_lookup(model, prompt, limit, guessed))
        ratio = lambda a, b: [x / y for x, y in zip(a, b)]
        row(model.name, f"{task}, guessed tokens", "tokens/s", ours, {"one a pass": plain}, ">= 1.3 x", ratio(ours, plain), lambda x: x >= 1.3)
        rivals = {"llama.cpp guessed": theirs, "llama.cpp one a pass": theirs_plain}
        row(model.name, f"{task}, guessed tokens", "tokens/s", ours, rivals, ">= llama.cpp's", ratio(ours, theirs), lambda x: x >= 1)
        row(model.name, f"{task}, llama.cpp's guessed tokens", "tokens/s", theirs, {"one a pass": theirs_plain}, "", ratio(theirs, theirs_plain))


def prompts(task, run):
    """Texts of the prompts that the benchmark `speculation` runs, and the maximum tokens of each response."""
    with tempfile.TemporaryDirectory() as folder:
        command = [options.uqac, "eval", "-t", task, "-n", options.limit, *run, "-o", folder]
        subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        samples = [json.loads(line) for file in sorted(pathlib.Path(folder).glob("samples_*.jsonl")) for line in open(file)]
    samples.sort(key=lambda sample: (sample["task"], sample["doc_id"]))
    return [sample["arguments"][0] for sample in samples]


def llama_lookup(model, prompt, limits, guessed):
    """Decoded tokens per second in f16, its faster type here. Without repacking: the example crashes with AMX's."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        command = [options.cache / "llama-build/bin/llama-lookup", "-m", gguf(model, "f16"), "-f", file.name, "-c", 4096, "--temp", 0]
        command += ["-n", limits["max_gen_toks"], "-t", options.threads, "--spec-draft-n-max", guessed, "--no-repack"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    found = re.search(r"decoded +\d+ tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", done.stdout)
    return float(found[1]) if found else sys.exit(done.stdout[-2000:])


for model in options.models:
    for work in options.only:
        if work not in WORK + ["lookup", "family"]:
            sys.exit(f"--only: expected {', '.join(WORK)}, lookup or family; found {work}")
        globals()[work](model)
load = os.getloadavg()
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "an unnamed CPU")
rates = {key: statistics.median(machine[key]) for key in ("bandwidth", "arithmetic_peak") if key in machine}
print(f"{cpu}; {machine.get('device', '')}; " + ", ".join(f"{key.replace('_', ' ')} {rate:.4g} G/s" for key, rate in rates.items()))
print(f"threads {options.threads}, rounds {options.rounds}, load average at the end {load[0]:.1f}\n")
print("| model | what | uqac | rivals | ratio (range) | must reach | met |")
print("| --- | --- | --- | --- | --- | --- | --- |")
for r in rows:
    print(f"| {line(r)} |")
if options.json:
    options.json.write_text(json.dumps({"rows": rows, "threads": options.threads, "rounds": options.rounds}, indent=1) + "\n")
