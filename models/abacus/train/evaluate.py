"""Greedy answers of the exported weights to the test set, computed in float32.

    python evaluate.py FOLDER [--limit N] [--save FILE.jsonl]
"""

import argparse
import collections
import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from model import Llama
from tokenizer import END, PAD, prompt

MAX_NEW_TOKENS, BATCH = 256, 200


def load(folder):
    """The model with its weights widened to float32, and the tokenizer."""
    model = Llama(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    weights = {name: t.float() for name, t in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(weights)
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


@torch.no_grad()
def answers(model, tokenizer, questions):
    """For each question the new token ids up to and with the end token, and the smallest gap between the best logit and
    the second on the way."""
    rows = [tokenizer.encode(prompt(q), add_special_tokens=False).ids for q in questions]
    pad, end, longest = tokenizer.token_to_id(PAD), tokenizer.token_to_id(END), max(map(len, rows))
    # Padded on the left: all rows go on at the same place.
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    real = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    caches = [[] for _ in model.model.layers]
    # A padded query sees only itself, which keeps the softmax finite; nobody sees it.
    mask = (real[:, None, :] & torch.ones(longest, longest, dtype=torch.bool).tril()) | torch.eye(longest, dtype=torch.bool)
    new, gaps, open_ = [[] for _ in rows], [float("inf")] * len(rows), [True] * len(rows)
    hidden = model.hidden(ids, caches, positions, mask[:, None])[:, -1:]
    position = positions[:, -1:]
    for _ in range(MAX_NEW_TOKENS):
        best = model.logits(hidden[:, 0]).topk(2, -1)
        token = best.indices[:, :1]
        for i, (t, gap) in enumerate(zip(token[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist())):
            if open_[i]:
                new[i].append(t)
                gaps[i], open_[i] = min(gaps[i], gap), t != end
        if not any(open_):
            break
        real = torch.cat([real, torch.ones_like(real[:, :1])], 1)
        position = position + 1
        hidden = model.hidden(token, caches, position, real[:, None, None])
    return new, gaps


def final_number(text):
    """The number in the last \\boxed{...}, or none."""
    found = re.findall(r"\\boxed\{(-?[0-9]+)\}", text)
    return int(found[-1]) if found else None


def table(title, groups):
    print(f"\n{title:<20} items  right")
    for key, right in sorted(groups.items()):
        print(f"{key!s:<20} {len(right):5}  {sum(right) / len(right):.3f}")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder", type=Path)
    p.add_argument("--limit", type=int)
    p.add_argument("--test", type=Path, default=Path(__file__).parent.parent / "test.jsonl")
    p.add_argument("--save", type=Path, help="file for the answers")
    p.add_argument("--threads", type=int, default=2)
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    model, tokenizer = load(o.folder)
    items = [json.loads(line) for line in o.test.read_text(encoding="utf-8").splitlines()][:o.limit]
    order = sorted(range(len(items)), key=lambda i: len(items[i]["question"]))
    for start in range(0, len(items), BATCH):
        chunk = [items[i] for i in order[start:start + BATCH]]
        for item, ids, gap in zip(chunk, *answers(model, tokenizer, [item["question"] for item in chunk])):
            item["text"] = tokenizer.decode(ids)
            item["right"], item["gap"] = final_number(item["text"]) == item["answer"], gap
            item["finished"] = ids[-1] == tokenizer.token_to_id(END)
    by = lambda key, of: {k: [i["right"] for i in of if i[key] == k] for k in {i[key] for i in of}}
    seen, unseen = [i for i in items if not i["held_out"]], [i for i in items if i["held_out"]]
    table("steps", by("steps", items))
    table("template", by("template", seen))
    table("unseen template", by("template", unseen))
    table("all", {"trained templates": [i["right"] for i in seen], "unseen templates": [i["right"] for i in unseen],
                  "all": [i["right"] for i in items]})
    print("never finished:", sum(not i["finished"] for i in items))
    if o.save:
        o.save.write_text("".join(json.dumps(i) + "\n" for i in items), encoding="utf-8")


if __name__ == "__main__":
    main()
