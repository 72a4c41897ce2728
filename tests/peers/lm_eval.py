#!/usr/bin/env python3
"""lm-evaluation-harness as a client of `uqac serve`: log-likelihoods with `local-completions`, generation with
`local-chat-completions`, compared with its `hf` model on the same items.

    python3 -m venv VENV && VENV/bin/pip install 'lm-eval[api,hf]'
    VENV/bin/python tests/peers/lm_eval.py --uqac target/release/uqac --model FOLDER [--items 40] [--gsm8k FILE]

The model's folder is in Hugging Face layout; `hf` runs it in float32. Items are generated here; --gsm8k uses questions from that
benchmark (its publisher's JSON lines) for the generations.

Each side's float32 pass is within 1e-4 of float64, relative to the largest logit (tests/unit/families.rs), so a
log-likelihood of n tokens differs by at most n * 2e-4 of that. If `hf` cannot be loaded, its comparisons are skipped with
SKIPPED; the other checks are still made.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import packages  # noqa: E402, F401  torch's threads
from serving import Server  # noqa: E402

sys.path.pop(0)  # this folder, from which lm_eval would import this file

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

NAMES = ["Tom", "Ann", "Lena", "Omar", "Mei"]
THINGS = ["apples", "pencils", "coins", "books", "stamps"]


def questions(count):
    one = lambda i: f"{NAMES[i % 5]} has {7 + i} {THINGS[i % 4]} and buys {3 * i + 2} more. How many {THINGS[i % 4]} are there now?"
    return [one(i) for i in range(count)]


def choices(count):
    """Contexts with correct and incorrect continuations, of one token and of several."""
    pairs = []
    for i, question in enumerate(questions(count)):
        pairs += [(f"Question: {question}\nAnswer:", f" {7 + i + 3 * i + 2}"), (f"Question: {question}\nAnswer:", " I do not know, sorry.")]
    return pairs


def likelihoods(model, pairs):
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    return model.loglikelihood(requests, disable_tqdm=True)


def compare(ours, theirs, pairs, largest):
    """The number of agreements, and the largest difference in units of its bound."""
    agree, worst = 0, 0.0
    for (own, own_greedy), (other, other_greedy), (_, continuation) in zip(ours, theirs, pairs):
        bound = max(1, len(continuation)) * 2e-4 * largest  # a token has at least one character
        worst = max(worst, abs(own - other) / bound)
        agree += own_greedy == other_greedy
    return agree, worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uqac", default="target/release/uqac")
    parser.add_argument("--model", required=True)
    parser.add_argument("--items", type=int, default=40)
    parser.add_argument("--gsm8k")
    arguments = parser.parse_args()
    name, pairs, failed = Path(arguments.model).resolve().name, choices(arguments.items), 0
    with Server(arguments.uqac, arguments.model, "--max-batch", "8") as server:
        shared = {"model": name, "tokenizer": arguments.model, "max_length": 2048}
        local = get_model("local-completions")(base_url=server.url + "/v1/completions", num_concurrent=1, **shared)
        ours = likelihoods(local, pairs)
        crowd = get_model("local-completions")(base_url=server.url + "/v1/completions", num_concurrent=8, **shared)
        same = sum(a == b for a, b in zip(ours, likelihoods(crowd, pairs)))
        print(f"local-completions: {len(pairs)} log-likelihoods; with 8 at once {same} equal")
        failed += same != len(pairs)

        chat = get_model("local-chat-completions")(base_url=server.url + "/v1/chat/completions", num_concurrent=4, **shared)
        if arguments.gsm8k:
            lines = Path(arguments.gsm8k).read_text().splitlines()[: arguments.items]
            asked, source = [json.loads(line)["question"] for line in lines], "GSM8K"
        else:
            asked, source = questions(arguments.items), "made"
        options = {"until": ["\n\n\n"], "max_gen_toks": 96, "temperature": 0}
        render = chat.apply_chat_template
        requests = [Instance("generate_until", {}, (render([{"role": "user", "content": q}]), dict(options)), i) for i, q in enumerate(asked)]
        texts = chat.generate_until(requests, disable_tqdm=True)
        equal = 0
        for question, text in zip(asked, texts):
            command = [arguments.uqac, "ask", "-m", arguments.model, "--json", "--max-tokens", "96", question]
            printed = subprocess.run(command, capture_output=True, check=True)
            equal += json.loads(printed.stdout)["response"].split("\n\n\n")[0] == text
        print(f"local-chat-completions: {len(asked)} {source} items, {equal} responses equal to ask's")
        failed += equal != len(asked)

    try:
        # without a token to begin the sequence, since the other side sends its ids
        hf = get_model("hf")(pretrained=arguments.model, device="cpu", dtype="float32", batch_size=1, add_bos_token=False)
    except (ImportError, ModuleNotFoundError, KeyError) as error:
        print(f"SKIPPED: hf cannot be loaded ({error})")
    else:
        import torch

        with torch.no_grad():
            ids = hf.tokenizer(pairs[0][0], return_tensors="pt").input_ids
            largest = hf.model(ids).logits.abs().max().item()
        agree, worst = compare(ours, likelihoods(hf, pairs), pairs, largest)
        print(f"hf: {len(pairs)} log-likelihoods, the largest difference is {worst:.3f} of its bound; greedy or not: {agree} agree")
        failed += worst > 1 or agree != len(pairs)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
