#!/usr/bin/env python3
"""uqlm's white-box scorers on the log-probabilities of `uqac serve`, compared with the same scorers on transformers' and with our
own scores of the same names.

    python3 -m venv VENV && VENV/bin/pip install torch transformers scipy openai && VENV/bin/pip install --no-deps uqlm
    VENV/bin/python tests/peers/uqlm_scorers.py --uqac target/release/uqac --model FOLDER [--responses 60]

uqlm reads the output of its chat model: OpenAI's list of tokens with their log-probabilities. Ours comes from the server through
the openai client, greedy; transformers' from its float32 forward pass over the same tokens.

Each side's float32 pass is within 1e-4 of float64, relative to the largest logit (tests/unit/families.rs), so
log-probabilities differ by at most 2e-4 max(1, |ln p|), probabilities and their means by at most 2e-4. A negentropy is 1 - H / ln 5
of five renormalized probabilities, and moves by at most sum p (1 + |ln p|)^2 / ln 5 times that: 8.5e-4 where they are equal.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from packages import own  # noqa: E402
from serving import Server  # noqa: E402

sys.path.pop(0)

import numpy as np  # noqa: E402
import openai  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

QUESTIONS = [
    "What is {a} + {b}?",
    "A shop sells {a} apples and {b} pears a day. How many pieces of fruit is that in a week?",
    "Name a city with more than {a} bridges.",
    "Is {a} times {b} more than 500? Compute it.",
]

# Number of alternatives that the server lists for every token.
TOP = 5


def transformers_logprobs(model, tokens, prompt_len):
    """The response's tokens in OpenAI's format."""
    with torch.no_grad():
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)[prompt_len - 1:-1]
    listed = []
    for row, token in zip(logprobs, tokens[prompt_len:], strict=True):
        top = [{"logprob": float(p)} for p in row.topk(TOP).values]
        listed.append({"logprob": float(row[token]), "top_logprobs": top})
    return listed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uqac", default="target/release/uqac")
    parser.add_argument("--model", required=True, help="a Hugging Face folder, such as SmolLM2-135M-Instruct's")
    parser.add_argument("--responses", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    try:
        scorers = [own("uqlm.white_box.single_logprobs", "SingleLogprobsScorer")(),
                   own("uqlm.white_box.top_logprobs", "TopLogprobsScorer")(top_k_logprobs=TOP)]
    except ImportError as error:
        print(f"SKIPPED: {error}")
        return
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    ours, theirs, own_scores = [], [], []
    with Server(arguments.uqac, arguments.model, "--v-cache", "f32") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="-")
        for i in range(arguments.responses):
            question = QUESTIONS[i % len(QUESTIONS)].format(a=7 + 3 * i, b=5 + i)
            reply = client.chat.completions.create(
                model=Path(arguments.model).resolve().name, messages=[{"role": "user", "content": question}], temperature=0,
                max_tokens=arguments.tokens, logprobs=True, top_logprobs=TOP, extra_body={"uqac": {"explain": True}})
            choice = reply.choices[0]
            content = [token.model_dump() for token in choice.logprobs.content]
            uqac = choice.uqac
            ids = uqac["tokens"]["ids"][:len(content)]  # without the end token, which has no text
            prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                                   return_dict=True)["input_ids"]
            assert len(prompt) == uqac["n_instr"], "the prompt is encoded to other tokens"
            ours.append(content)
            theirs.append(transformers_logprobs(model, [*prompt, *ids], len(prompt)))
            logprobs = np.array(uqac["tokens"]["logprobs"][:len(content)])
            own_scores.append({"min_probability": np.exp(logprobs.min()), "sequence_probability": np.exp(logprobs.mean())})
    print(f"{len(ours)} responses, {sum(map(len, ours))} tokens\n")
    print("| uqlm's scorer | n | max difference to transformers | to the `uqac` object's | |\n| --- | --: | --: | --: | --- |")
    failed = False
    for scorer in scorers:
        over_ours, over_theirs = scorer.evaluate(ours), scorer.evaluate(theirs)
        for name in over_ours:
            distance = np.abs(np.array(over_ours[name]) - np.array(over_theirs[name])).max()
            own_distance = max((abs(own[name] - value) for own, value in zip(own_scores, over_ours[name]) if name in own), default=None)
            good = distance <= (8.5e-4 if "negentropy" in name else 2e-4) and (own_distance or 0) <= 1e-12
            failed |= not good
            shown = "–" if own_distance is None else f"{own_distance:.0e}"
            print(f"| {name} | {len(ours)} | {distance:.1e} | {shown} | {'ok' if good else 'FAIL'} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
