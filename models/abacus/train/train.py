"""Trains the model on the endless stream of problems. See README.md for the commands."""

import argparse
import csv
import json
import math
import os
import random
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import drills
import generate
from model import CONFIG, Llama
from tokenizer import BEGIN, END, PAD, prompt

POOL = 4096  # problems drawn, sorted by length and cut into batches at a time


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", type=Path, default=Path(__file__).parent.parent, help="folder with tokenizer.json")
    p.add_argument("--out", type=Path, required=True, help="folder for checkpoint.pt and log.csv")
    p.add_argument("--minutes", type=float, default=40, help="wall clock in all, the decay included")
    p.add_argument("--decay", type=float, default=0.3, help="share of the time in which the rate falls to zero")
    p.add_argument("--warmup", type=int, default=60, help="steps")
    p.add_argument("--batch", type=int, default=2048, help="tokens in a step, padding included")
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--optimizer", choices=["adamw", "muon"], default="muon")
    p.add_argument("--muon-rate", type=float, default=0.02)
    p.add_argument("--weight-decay", type=float, default=0.05)
    p.add_argument("--question-loss", type=float, default=0.0, help="weight of the question's tokens in the loss")
    p.add_argument("--drills", type=float, default=0.2, help="share of the rows that are sheets of single sums")
    p.add_argument("--hidden", type=int, default=CONFIG["hidden_size"])
    p.add_argument("--wide", type=int, default=CONFIG["intermediate_size"])
    p.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of the products")
    p.add_argument("--checkpoint-every", type=float, default=60, help="seconds")
    p.add_argument("--resume", type=Path, help="checkpoint to go on from; its time counts")
    return p.parse_args()


def encode_problems(tokenizer, problems):
    """Ids of each problem, and for each id its kind: 1 question, 2 answer."""
    prompts = tokenizer.encode_batch([prompt(p.question) for p in problems], add_special_tokens=False)
    answers = tokenizer.encode_batch([p.solution + END for p in problems], add_special_tokens=False)
    return [(a.ids + b.ids, [1] * len(a.ids) + [2] * len(b.ids)) for a, b in zip(prompts, answers)]


def encode_drills(tokenizer, sheets):
    """Ids and kinds of each sheet: its results are of kind 2."""
    rows = []
    for pieces in sheets:
        encoded = tokenizer.encode_batch([BEGIN] + [text for text, _ in pieces], add_special_tokens=False)
        kinds = [1] + [1 + counts for _, counts in pieces]
        rows.append(([i for e in encoded for i in e.ids], [k for e, k in zip(encoded, kinds) for _ in e.ids]))
    return rows


def batches(tokenizer, seed, size, drill_share):
    """Right-padded batches of rows of like length: ids and kinds (0 padding, 1 question, 2 answer)."""
    pad, stream, rng = tokenizer.token_to_id(PAD), generate.training(seed), random.Random(seed)
    while True:
        sheets = [drills.sheet(rng) for _ in range(int(POOL * drill_share))]
        problems = [next(stream) for _ in range(POOL - len(sheets))]
        rows = encode_problems(tokenizer, problems) + encode_drills(tokenizer, sheets)
        rows.sort(key=lambda row: len(row[0]))
        cut, start = [], 0
        while start < len(rows):
            end = start + 1
            while end < len(rows) and (end + 1 - start) * len(rows[end][0]) <= size:
                end += 1
            cut.append(rows[start:end])
            start = end
        rng.shuffle(cut)
        for chunk in cut:
            length = len(chunk[-1][0])
            ids, kind = torch.full((len(chunk), length), pad), torch.zeros((len(chunk), length))
            for i, (row, kinds) in enumerate(chunk):
                ids[i, :len(row)], kind[i, :len(row)] = torch.tensor(row), torch.tensor(kinds, dtype=torch.float32)
            yield ids, kind


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal by five Newton-Schulz steps (Jordan and others, 2024)."""

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(matrices, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                speed = self.state[p].setdefault("momentum", torch.zeros_like(p))
                speed.lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(speed, group["momentum"])
                wide = x if x.shape[0] <= x.shape[1] else x.T
                wide = wide / (wide.norm() + 1e-7)
                for _ in range(5):
                    square = wide @ wide.T
                    wide = 3.4445 * wide + (-4.7750 * square + 2.0315 * square @ square) @ wide
                x = wide if x.shape[0] <= x.shape[1] else wide.T
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x, alpha=-group["lr"] * max(1.0, x.shape[0] / x.shape[1]) ** 0.5)


def optimizers(model, o):
    """AdamW for all; or Muon for the layers' matrices and AdamW for the rest. Norms do not decay."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    embedding, norms = [model.model.embed_tokens.weight], [p for p in model.parameters() if p.dim() == 1]
    adam = dict(lr=o.rate, betas=(0.9, 0.98), eps=1e-8)
    if o.optimizer == "adamw":
        groups = [{"params": matrices + embedding, "weight_decay": o.weight_decay}, {"params": norms, "weight_decay": 0.0}]
        return [torch.optim.AdamW(groups, **adam)]
    groups = [{"params": embedding + norms, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, **adam), Muon(matrices, o.muon_rate, weight_decay=o.weight_decay)]


def rate_factor(step, share, o):
    """Warm-up by steps, then stable, then down to zero in the last part of the time (1 - sqrt)."""
    up = min(1.0, (step + 1) / o.warmup)
    return up if share < 1 - o.decay else up * max(0.0, 1 - math.sqrt((share - 1 + o.decay) / o.decay))


def save(path, **what):
    """All or nothing."""
    part = path.with_suffix(".part")
    torch.save(what, part)
    os.replace(part, path)


def loss_of(model, ids, kind, question_weight, half=False):
    """Mean loss of the answer's tokens (and of the question's, by weight), and the share of answer tokens right."""
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        hidden = model.hidden(ids[:, :-1])
        target, of = ids[:, 1:], kind[:, 1:]
        keep = of == 2 if question_weight == 0 else of > 0
        logits = model.logits(hidden[keep])
    losses = F.cross_entropy(logits.float(), target[keep], reduction="none")
    answer = of[keep] == 2
    weight = torch.where(answer, 1.0, question_weight)
    right = (logits.argmax(-1) == target[keep])[answer].float().mean()
    return (losses * weight).sum() / weight.sum(), losses[answer].mean().item(), right.item()


def main():
    o = options()
    o.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(o.seed)
    torch.set_num_threads(o.threads)
    tokenizer = Tokenizer.from_file(str(o.model / "tokenizer.json"))
    config = {**CONFIG, "hidden_size": o.hidden, "intermediate_size": o.wide, "num_hidden_layers": o.layers}
    config["vocab_size"] = tokenizer.get_vocab_size()
    model = Llama(config)
    parts = optimizers(model, o)
    # A running mean of the weights: about as good as a short decay, for looking at a run that goes on.
    mean = [p.detach().clone() for p in model.parameters()]
    step, tokens, before, run = 0, 0, 0.0, 0
    if o.resume:
        state = torch.load(o.resume, weights_only=False)
        model.load_state_dict(state["model"])
        for part, saved in zip(parts, state["optimizers"]):
            part.load_state_dict(saved)
        mean = state["mean"]
        step, tokens, before, run = state["step"], state["tokens"], state["seconds"], state["run"] + 1
    for part in parts:
        for group in part.param_groups:
            group.setdefault("top", group["lr"])
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; {json.dumps(vars(o), default=str)}", flush=True)
    # A resumed run draws other problems than those it has seen.
    data = batches(tokenizer, o.seed + 1000 * run, o.batch, o.drills)
    stop = []
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: stop.append(True))
    begin = saved_at = time.time()
    log = open(o.out / "log.csv", "a" if o.resume else "w", newline="")
    writer = csv.writer(log)
    if not o.resume:
        writer.writerow(["step", "tokens", "seconds", "rate_factor", "loss", "token_accuracy", "gradient_norm"])
    sums, last = [], (tokens, begin)
    checkpoint = lambda: save(o.out / "checkpoint.pt", model=model.state_dict(), mean=mean, step=step, tokens=tokens,
                              config=config, optimizers=[part.state_dict() for part in parts], seconds=before + time.time() - begin,
                              run=run, options={k: str(v) for k, v in vars(o).items()})
    while True:
        seconds = before + time.time() - begin
        share = seconds / (o.minutes * 60)
        if share >= 1 or stop:
            break
        factor = rate_factor(step, share, o)
        for part in parts:
            for group in part.param_groups:
                group["lr"] = group["top"] * factor
        ids, kind = next(data)
        loss, answer_loss, right = loss_of(model, ids, kind, o.question_loss, o.precision == "bfloat16")
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in parts:
            part.step()
            part.zero_grad(set_to_none=True)
        torch._foreach_lerp_(mean, [p.detach() for p in model.parameters()], 0.02)
        step, tokens = step + 1, tokens + int((kind > 0).sum())
        sums.append((answer_loss, right, norm.item()))
        if step % 25 == 0:
            means = [sum(column) / len(sums) for column in zip(*sums)]
            writer.writerow([step, tokens, round(seconds, 1), round(factor, 4), *(round(m, 4) for m in means)])
            log.flush()
            now = time.time()
            print(f"step {step} tokens {tokens:,} {seconds:.0f} s loss {means[0]:.4f} accuracy {means[1]:.4f} "
                  f"norm {means[2]:.2f} {(tokens - last[0]) / (now - last[1]):,.0f} tokens/s", flush=True)
            sums, last = [], (tokens, now)
        if time.time() - saved_at > o.checkpoint_every:
            saved_at = time.time()
            checkpoint()
    checkpoint()
    print("stopped" if stop else "done", flush=True)


if __name__ == "__main__":
    main()
