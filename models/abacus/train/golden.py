"""Picks test questions and writes the greedy tokens of the exported weights, computed in float32, one item at a time.

    python golden.py FOLDER        reads FOLDER/test.jsonl, writes FOLDER/golden.jsonl
    python golden.py FOLDER --transformers     also checks the tokens against transformers' LlamaForCausalLM
"""

import json
import sys
from pathlib import Path

import torch

from evaluate import answers, load
from tokenizer import END, prompt

COUNT, LEAST_GAP = 12, 0.05


def pick(model, tokenizer, items):
    """COUNT items, two of each number of steps, whose every token leads by LEAST_GAP; of each pair one from a template
    that was trained on and one that was not, where there is one."""
    left = {(steps, held_out): 1 for steps in range(1, 7) for held_out in (False, True)}
    chosen = []
    for item in items:
        key = (item["steps"], item["held_out"])
        if left.get(key):
            record = greedy(model, tokenizer, item["question"])
            if record["min_gap"] >= LEAST_GAP:
                left[key] -= 1
                chosen.append(record)
    for item in items:
        if len(chosen) >= COUNT:
            break
        record = greedy(model, tokenizer, item["question"])
        if record["min_gap"] >= LEAST_GAP and record not in chosen:
            chosen.append(record)
    return chosen


def greedy(model, tokenizer, question):
    ids, gap = answers(model, tokenizer, [question])
    text = tokenizer.decode(ids[0])
    tokens = [tokenizer.decode([t], skip_special_tokens=False) for t in ids[0]]
    return {"question": question, "prompt": prompt(question), "text": text, "tokens": tokens, "ids": ids[0],
            "min_gap": round(gap[0], 4)}


def check(folder, tokenizer, records):
    """The same tokens from another implementation."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for record in records:
        ids = torch.tensor([tokenizer.encode(record["prompt"], add_special_tokens=False).ids])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=256, do_sample=False)
        assert out[0, ids.shape[1]:].tolist() == record["ids"], record["question"]
    print(f"transformers gives the same {len(records)} answers")


def main(arguments):
    folder = Path(arguments[0])
    model, tokenizer = load(folder)
    items = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    records = pick(model, tokenizer, items)
    if "--transformers" in arguments:
        check(folder, tokenizer, records)
    with open(folder / "golden.jsonl", "w", encoding="utf-8") as file:
        for record in records:
            assert record["tokens"][-1] == END
            file.write(json.dumps(record) + "\n")
    print(f"{len(records)} items, smallest gap {min(r['min_gap'] for r in records)}")


if __name__ == "__main__":
    main(sys.argv[1:])
