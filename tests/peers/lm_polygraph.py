#!/usr/bin/env python3
"""Compares our scores with those of LM-Polygraph's own estimator classes and of deepconf's own functions.

transformers generates the responses greedily, and `uqac score` scores them; a few more are generated and scored by `uqac eval`,
which supports PMI and CSL. The peers compute theirs from transformers' float32 forward pass over the same tokens.

    python3 -m venv VENV && VENV/bin/pip install torch transformers scipy boostedprob pillow
    VENV/bin/pip install --no-deps lm-polygraph deepconf
    VENV/bin/python tests/peers/lm_polygraph.py --uqac target/release/uqac --model FOLDER [--responses 60]

Each side's float32 pass is within 1e-4 of float64, relative to the largest logit (tests/unit/families.rs), so
log-probabilities differ by at most 2e-4 of that, and with them every mean, divergence, distance and probability here.

No package contains the chain of embeddings: its formulas, as in github.com/Alsace08/Chain-of-Embedding, are reimplemented here and
use transformers' hidden states. A move from layer to layer is a difference of them, so its bound is larger by the ratio of the
largest of them to the whole path.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from packages import own

sys.path.pop(0)  # this file's folder: this file would be taken for the package of the same name

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = [
    "What is {a} + {b}?",
    "A shop sells {a} apples and {b} pears a day. How many pieces of fruit is that in a week?",
    "Tom is {a} years old. How old will he be in {b} years?",
    "How many letters does the name of the city {city} have? Spell it first.",
    "Is {a} times {b} more than 500? Compute it.",
]
CITIES = ["Lima", "Oslo", "Cairo", "Kyoto", "Quito", "Accra", "Turin"]

# The question of P(True) (src/eval/run/methods/p_true.rs).
JUDGEMENT = (
    "Is your final answer:\n (A) True\n (B) False\nReply with the letter alone, A or B. The final answer is:"
)

# Sums over tokens: their errors add up.
SUMS = ("response_logprob", "predictive_entropy", "attention_score")


def peers(config):
    """(our key, the peer's name, its value for a response); the value is negated if the peer's is an uncertainty."""
    own("lm_polygraph.utils.common", "polygraph_module_init")

    def polygraph(module, name, sign, plus=0.0, **options):
        estimator = own(f"lm_polygraph.estimators.{module}", name)(**options)
        return f"LM-Polygraph {name}", lambda stats: sign * float(estimator(stats)[0]) + plus

    def deepconf(name, **options):
        function = own("deepconf.utils", name)
        shown = ", ".join(f"{key}={value}" for key, value in options.items())
        return f"deepconf {name}({shown})", lambda stats: float(function(stats["trace"], **options))

    layers, heads = config.num_hidden_layers, config.num_attention_heads
    lowest = "calculate_bottom_window_confidence"
    return {
        "response_logprob": polygraph("max_probability", "MaximumSequenceProbability", -1),
        "response_mean_logprob": polygraph("perplexity", "Perplexity", -1),
        "ln_predictive_entropy": polygraph("token_entropy", "MeanTokenEntropy", -1, plus=1.0),
        "self_certainty": polygraph("self_certainty", "SelfCertainty", -1),
        # these two return the distance itself as the uncertainty, which has the wrong sign (its issues 459 and 465); so does
        # RenyiNeg's ln V, which shifts it by a constant
        "renyi": polygraph("renyi_neg", "RenyiNeg", 1, plus=2 * np.log(config.vocab_size)),
        "fisher_rao": polygraph("fisher_rao", "FisherRao", 1),
        "boosted_prob": polygraph("boostedprob_score", "BoostedProbSequence", -1),
        "rauq": polygraph("rauq", "RAUQ", -1, n_layers=layers, n_heads=heads),
        "attention_score": polygraph("attention_score", "AttentionScore", -1, layer=layers // 2, gen_only=True),
        "csl": polygraph("csl", "CSL", -1),
        "pmi": polygraph("pointwise_mutual_information", "MeanPointwiseMutualInformation", -1),
        "coe_r": ("CoE-R, by its formula", coe_r),
        "coe_c": ("CoE-C, by its formula", coe_c),
        "deepconf": deepconf("calculate_mean_confidence"),
        "deepconf_tail": deepconf("calculate_tail_confidence"),
        "deepconf_bottom": deepconf(lowest),
        "deepconf_lowest": deepconf(lowest, bottom_percent=-1),
        "deepconf_tail_64": deepconf("calculate_tail_confidence", tail_tokens=64),
        "deepconf_bottom_64": deepconf(lowest, window_size=64),
        "deepconf_lowest_64": deepconf(lowest, window_size=64, bottom_percent=-1),
    }


def chain_of_embeddings(stats):
    """Moves and turns from layer to layer, as shares of the total path and turn."""
    h = stats["hidden"]

    def turn(a, b):
        return np.arccos(np.clip(a @ b / np.linalg.norm(a) / np.linalg.norm(b), -1, 1))

    moves = np.linalg.norm(np.diff(h, axis=0), axis=-1) / np.linalg.norm(h[-1] - h[0])
    return moves, np.array([turn(a, b) for a, b in zip(h, h[1:])]) / turn(h[-1], h[0])


def coe_r(stats):
    moves, turns = chain_of_embeddings(stats)
    return moves.mean() - turns.mean()


def coe_c(stats):
    moves, turns = chain_of_embeddings(stats)
    return abs((moves * np.exp(1j * turns)).mean())


def questions(count):
    return [QUESTIONS[i % len(QUESTIONS)].format(a=7 + 3 * i, b=5 + i, city=CITIES[i % len(CITIES)])
            for i in range(count)]


def uqac(arguments, command, source, target, *options):
    subprocess.run(
        [arguments.uqac, command, "--model", arguments.model, "--device", arguments.device, "--v-cache", "f32",
         "--trace", "wide,heads,layers", "--output", target, *source, *options],
        check=True, stdout=subprocess.DEVNULL)


def scored(model, tokenizer, arguments):
    """Greedy responses from transformers, scored as if all of them were the answer: (tokens, prompt length, scores)."""
    items = []
    for text in questions(arguments.responses):
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                               return_tensors="pt", return_dict=True)
        tokens = model.generate(**prompt, do_sample=False, max_new_tokens=arguments.tokens, min_new_tokens=8)
        items.append((tokens[0].tolist(), prompt.input_ids.shape[1]))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "items.jsonl"), Path(folder, "scores.jsonl")
        lines = [{"id": i, "input_ids": tokens, "n_instr": n, "answer_span": [n, len(tokens)]}
                 for i, (tokens, n) in enumerate(items)]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        uqac(arguments, "score", ["--input", source], target)
        found = [json.loads(line) for line in target.read_text().splitlines()]
    return [(tokens, n, record["scores"], None) for (tokens, n), record in zip(items, found, strict=True)]


def evaluated(tokenizer, arguments):
    """The same for an evaluation, which also has PMI and CSL, with the question of the latter: uqac's responses, up to the answer's
    last token."""
    with tempfile.TemporaryDirectory() as folder:
        tasks, run = Path(folder, "questions.jsonl"), Path(folder, "run")
        lines = [json.dumps({"question": text, "answer": "0", "grader": "number"})
                 for text in questions(arguments.evaluated)]
        tasks.write_text("\n".join(lines) + "\n")
        uqac(arguments, "eval", ["--tasks", tasks], run, "--methods", "pmi,csl", "--max-tokens", str(arguments.tokens))
        samples = [json.loads(line) for path in run.glob("samples_*.jsonl") for line in path.read_text().splitlines()]
    for sample in samples:
        found = sample["uq"]
        if found["status"] == "ok":
            prompt = tokenizer(sample["arguments"][0][0], add_special_tokens=False).input_ids
            assert len(prompt) == found["n_instr"], "the prompt is encoded to other tokens"
            # embeddings cover the whole response
            scores = {key: score for key, score in found["scores"].items() if not key.startswith("coe")}
            tokens = prompt + found["tokens"]["ids"]
            yield tokens[:found["answer"]["tokens"][1]], len(prompt), scores, asked(tokenizer, sample, tokens)


def asked(tokenizer, sample, tokens):
    """A response, with P(True)'s question in a further turn."""
    prompt, text = sample["arguments"][0][0], sample["resps"][0][0]
    contents = {"user": sample["doc"]["question"]}, {"assistant": text}, {"user": JUDGEMENT}
    turns = [{"role": role, "content": content} for turn in contents for role, content in turn.items()]
    whole = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert whole.startswith(prompt + text), "the template keeps the response"
    after = tokenizer(whole[len(prompt + text):], add_special_tokens=False).input_ids
    return tokens + after[tokens[-1] == tokenizer.eos_token_id == after[0]:]


def log_softmax(model, tokens, **options):
    with torch.no_grad():
        output = model(torch.tensor([tokens]), **options)
    return output.logits[0].log_softmax(-1).numpy(), output


def eliciting(model, asked, response):
    """The last token's attention to the response, `[heads of all layers, tokens]`."""
    _, output = log_softmax(model, asked, output_attentions=True)
    return torch.cat(output.attentions)[:, :, -1, response].flatten(0, 1).double().numpy()


def statistics(model, tokens, prompt_len, asked):
    """The statistics that the peers read, for a batch of one."""
    logprobs, output = log_softmax(model, tokens, output_attentions=True, output_hidden_states=True)
    logprobs = logprobs[prompt_len - 1:-1]
    response = tokens[prompt_len:]
    indices = np.arange(len(response))
    alone, _ = log_softmax(model, response)
    attention = torch.cat(output.attentions).numpy()  # [layers, heads, positions, positions]
    # for the step that predicts token j: its weights on the response's tokens before j
    steps = np.zeros((attention.shape[0] * attention.shape[1], len(response), len(response)))
    for j in range(1, len(response)):
        row = attention[:, :, prompt_len + j - 1, prompt_len:prompt_len + j]
        steps[:, j, :j] = row.reshape(len(steps), j)
    exact = logprobs.astype(np.float64)
    # [layers + 1, hidden size]: means over the rows that predict the response
    hidden = torch.cat(output.hidden_states)[:, prompt_len - 1:-1].double().mean(1).numpy()
    return {
        "greedy_log_probs": [logprobs],
        "greedy_tokens": [response],
        "greedy_log_likelihoods": [exact[indices, response]],
        # token j given those before it; the first has none, and is not read
        "greedy_lm_log_likelihoods": [[0.0, *alone[indices[:-1], response[1:]].astype(np.float64)]],
        "hidden": hidden,
        "entropy": [-(np.exp(exact) * exact).sum(-1)],
        "attention_all": [steps],
        "attention_weights_eliciting_prompt": asked and [eliciting(model, asked, slice(prompt_len, len(tokens)))],
        "forwardpass_attention_weights": [attention.astype(np.float64)],
        "trace": {"confs": [round(-mean, 3) for mean in np.sort(exact, axis=-1)[:, -20:].mean(-1)]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uqac", default="target/release/uqac", help="the program")
    parser.add_argument("--model", required=True, help="a Hugging Face folder, such as SmolLM2-135M-Instruct's")
    parser.add_argument("--device", default="cpu", help="of uqac")
    parser.add_argument("--responses", type=int, default=60)
    parser.add_argument("--evaluated", type=int, default=10, help="responses of an evaluation, beside those")
    parser.add_argument("--tokens", type=int, default=96, help="max tokens of a response")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="eager")
    table = peers(model.config)
    worst = dict.fromkeys(table, (0.0, 0.0))
    largest = dict.fromkeys(table, 0.0)
    counts, tokens_in_all = dict.fromkeys(table, 0), 0
    items = [*scored(model, tokenizer, arguments), *evaluated(tokenizer, arguments)]
    for tokens, prompt_len, scores, asked in items:
        stats, size = statistics(model, tokens, prompt_len, asked), len(tokens) - prompt_len
        tokens_in_all += size
        for key, (name, value) in table.items():
            if key not in scores:
                continue
            # deepconf rounds a token's confidence to three digits
            bound = 2e-4 * max(1.0, abs(scores[key])) * (size if key in SUMS else 1)
            bound += 5e-4 if key.startswith("deepconf") else 0
            h = stats["hidden"]
            bound *= np.linalg.norm(h, axis=-1).max() / np.linalg.norm(h[-1] - h[0]) if key.startswith("coe") else 1
            distance = abs(value(stats) - scores[key])
            counts[key] += 1
            worst[key] = max(worst[key], (distance / bound, distance))
            largest[key] = max(largest[key], distance)
    print(f"{len(items)} responses, {tokens_in_all} tokens\n")
    print("| score | peer | n | max difference | of the bound | |\n| --- | --- | --: | --: | --: | --- |")
    for key, (name, _) in table.items():
        of_bound = worst[key][0]
        verdict = "ok" if counts[key] and of_bound <= 1 else "FAIL"
        print(f"| `{key}` | {name} | {counts[key]} | {largest[key]:.1e} | {of_bound:.1%} | {verdict} |")
    sys.exit(not all(counts.values()) or any(of_bound > 1 for of_bound, _ in worst.values()))


if __name__ == "__main__":
    main()
