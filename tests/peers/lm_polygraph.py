#!/usr/bin/env python3
"""Compares our scores with those of LM-Polygraph's own classes and of deepconf's own functions.

Responses are written greedily by transformers in float32; `uqac score --wide-trace` scores them, and the peers compute
theirs from transformers' forward pass over the same tokens.

    python3 -m venv VENV && VENV/bin/pip install torch transformers scipy boostedprob
    VENV/bin/pip install --no-deps lm-polygraph deepconf
    VENV/bin/python tests/peers/lm_polygraph.py --uqac target/release/uqac --model FOLDER [--responses 60] [--tokens 96]

Each side's float32 pass is within 1e-4 of float64, relative to the largest logit (tests/it/common/families.rs), so
log-probabilities differ by at most 2e-4 of that, and with them every mean, divergence, distance and probability here.
"""

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = [
    "What is {a} + {b}?",
    "A shop sells {a} apples and {b} pears a day. How many pieces of fruit is that in a week?",
    "Tom is {a} years old. How old will he be in {b} years?",
    "Write two sentences about the number {a} and the city of {city}.",
    "Is {a} times {b} more than 500? Explain.",
]
CITIES = ["Lima", "Oslo", "Cairo", "Kyoto", "Quito", "Accra", "Turin"]


def own(module, name):
    """A class or function of an installed package, without its packages' __init__, which import all its dependencies."""
    package, *path = module.split(".")
    folder = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    for depth in range(len(path)):
        parent = types.ModuleType(".".join([package, *path[:depth]]))
        parent.__path__ = [str(folder.joinpath(*path[:depth]))]
        sys.modules.setdefault(parent.__name__, parent)
    return getattr(importlib.import_module(module), name)


def peers(config):
    """(our key, the peer's name, its value for a response); a value is turned where the peer's is an uncertainty."""
    own("lm_polygraph.utils.common", "polygraph_module_init")

    def polygraph(module, name, sign, **options):
        estimator = own(f"lm_polygraph.estimators.{module}", name)(**options)
        return f"LM-Polygraph {name}", lambda stats: sign * float(estimator(stats)[0])

    def deepconf(name, **options):
        function = own("deepconf.utils", name)
        return f"deepconf {name} {options or ''}", lambda stats: float(function(stats["trace"], **options))

    lowest = "calculate_bottom_window_confidence"
    return {
        "response_logprob": polygraph("max_probability", "MaximumSequenceProbability", -1),
        "response_mean_logprob": polygraph("perplexity", "Perplexity", -1),
        "self_certainty": polygraph("self_certainty", "SelfCertainty", -1),
        # these two return the distance itself as the uncertainty: the sign is wrong there (issues 459 and 465)
        "renyi": polygraph("renyi_neg", "RenyiNeg", 1),
        "fisher_rao": polygraph("fisher_rao", "FisherRao", 1),
        "boosted_prob": polygraph("boostedprob_score", "BoostedProbSequence", -1),
        "rauq": polygraph("rauq", "RAUQ", -1, n_layers=config.num_hidden_layers, n_heads=config.num_attention_heads),
        "attention_score": polygraph("attention_score", "AttentionScore", -1, layer=config.num_hidden_layers // 2,
                                     gen_only=True),
        "deepconf": deepconf("calculate_mean_confidence"),
        "deepconf_tail": deepconf("calculate_tail_confidence"),
        "deepconf_bottom": deepconf(lowest),
        "deepconf_lowest": deepconf(lowest, bottom_percent=-1),
        "deepconf_tail_64": deepconf("calculate_tail_confidence", tail_tokens=64),
        "deepconf_bottom_64": deepconf(lowest, window_size=64),
        "deepconf_lowest_64": deepconf(lowest, window_size=64, bottom_percent=-1),
    }


def written(model, tokenizer, arguments):
    """Prompts with greedy responses: token ids and the prompt's length."""
    for i in range(arguments.responses):
        question = QUESTIONS[i % len(QUESTIONS)].format(a=7 + 3 * i, b=5 + i, city=CITIES[i % len(CITIES)])
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                max_new_tokens=arguments.tokens, min_new_tokens=8)
        yield tokens[0].tolist(), prompt.shape[1]


def statistics(model, tokens, prompt_len):
    """What the peers read, of a batch of one."""
    with torch.no_grad():
        output = model(torch.tensor([tokens]), output_attentions=True)
    logprobs = output.logits[0, prompt_len - 1:-1].float().log_softmax(-1).numpy()
    response = tokens[prompt_len:]
    attention = torch.cat(output.attentions).numpy()  # [layers, heads, positions, positions]
    # of the step that predicts token j: its weights of the response's tokens before j
    steps = np.zeros((attention.shape[0] * attention.shape[1], len(response), len(response)))
    for j in range(1, len(response)):
        row = attention[:, :, prompt_len + j - 1, prompt_len:prompt_len + j]
        steps[:, j, :j] = row.reshape(len(steps), j)
    top = np.sort(logprobs, axis=-1)[:, -20:].astype(np.float64)
    return {
        "greedy_log_probs": [logprobs],
        "greedy_tokens": [response],
        "greedy_log_likelihoods": [logprobs[np.arange(len(response)), response]],
        "attention_all": [steps],
        "forwardpass_attention_weights": [attention],
        "trace": {"confs": [round(-mean, 3) for mean in top.mean(-1)]},
    }


def scored(items, arguments):
    """Our scores of every item."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "items.jsonl"), Path(folder, "scores.jsonl")
        lines = [
            {"id": i, "input_ids": tokens, "n_instr": n, "answer_span": [len(tokens) - 2, len(tokens)]}
            for i, (tokens, n) in enumerate(items)
        ]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        subprocess.run(
            [arguments.uqac, "score", "--model", arguments.model, "--device", arguments.device, "--input", source,
             "--output", target, "--wide-trace"], check=True)
        return [json.loads(line)["scores"] for line in target.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uqac", default="target/release/uqac", help="the program")
    parser.add_argument("--model", required=True, help="a Hugging Face folder, such as SmolLM2-135M-Instruct's")
    parser.add_argument("--device", default="cpu", help="of uqac")
    parser.add_argument("--responses", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=96, help="max tokens of a response")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="eager")
    items = list(written(model, tokenizer, arguments))
    ours = scored(items, arguments)
    table = peers(model.config)
    worst = dict.fromkeys(table, (0.0, 0.0))
    for (tokens, prompt_len), scores in zip(items, ours, strict=True):
        stats = statistics(model, tokens, prompt_len)
        size = len(tokens) - prompt_len
        for key, (name, value) in table.items():
            # a sum's error is its terms'; deepconf rounds a token's confidence to three digits
            bound = 2e-4 * max(1.0, abs(scores[key])) * (size if key in ("response_logprob", "attention_score") else 1)
            bound += 5e-4 if key.startswith("deepconf") else 0
            worst[key] = max(worst[key], (abs(value(stats) - scores[key]) / bound, abs(value(stats) - scores[key])))
    print(f"{len(items)} responses, {sum(len(t) - n for t, n in items)} tokens")
    for key, (name, _) in table.items():
        of_bound, distance = worst[key]
        print(f"{'ok  ' if of_bound <= 1 else 'FAIL'} {key:24} {distance:9.2e} ({of_bound:6.1%} of the bound)  {name}")
    sys.exit(any(of_bound > 1 for of_bound, _ in worst.values()))


if __name__ == "__main__":
    main()
