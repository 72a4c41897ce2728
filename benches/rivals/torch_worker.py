#!/usr/bin/env python3
"""Runs transformers: reads one JSON request per line, answers with one JSON line.

usage: torch_worker.py MODEL_FOLDER bf16|f32 sdpa|eager THREADS
requests: {"work": "decode", "prompt": P, "tokens": G}: seconds of the prefill, and of a decode step
          {"work": "attentions", "tokens": T}: an existing sequence through eager attention with output_attentions, and
          from that tensor what the method needs of it: reweighted attention, its entropy by head, the K lowest heads of
          each row, their maximum. Seconds, and bytes above the loaded model at the peak.
"""
import json
import resource
import sys
import time

import torch
import transformers

folder, kind, attention, threads = sys.argv[1:5]
torch.set_num_threads(int(threads))
transformers.logging.set_verbosity_error()
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype={"bf16": torch.bfloat16, "f32": torch.float32}[kind], attn_implementation=attention
).eval()
GAMMA = [0.16644488, 0.20938152, 0.32959151, 0.46061748, 0.59304059, 0.67549127, 0.73914525, 0.81274293, 0.87378443,
         0.93925344]
HEADS = 16


def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024


def ids(count):
    return torch.tensor([[100 + (i * 7919) % 5000 for i in range(count)]])


@torch.inference_mode()
def decode(prompt, tokens):
    start = time.perf_counter()
    out = model(ids(prompt), use_cache=True, logits_to_keep=1)
    token = out.logits[0, -1].argmax()
    first = time.perf_counter()
    chosen, cache = [int(token)], out.past_key_values
    for _ in range(tokens - 1):
        out = model(token.view(1, 1), past_key_values=cache, use_cache=True)
        token, cache = out.logits[0, -1].argmax(), out.past_key_values
        chosen.append(int(token))
    step = (time.perf_counter() - first) / max(tokens - 1, 1)
    return {"prefill": first - start, "step": step, "chosen": chosen[:8]}


@torch.inference_mode()
def attentions(tokens):
    before, start = resident(), time.perf_counter()
    out = model(ids(tokens), use_cache=False, output_attentions=True, output_hidden_states=True)
    probabilities = out.logits.float().softmax(-1)
    top = probabilities.topk(5)
    weights = torch.stack([a[0] for a in out.attentions]).flatten(0, 1)  # heads of all layers, T, T
    scale = torch.ones(tokens, tokens)
    for i, gamma in enumerate(GAMMA):
        scale.diagonal(-1 - i).fill_(gamma)
    scale.fill_diagonal_(0)
    scale[:, 0] = 0
    weights = weights * scale
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
    lowest = entropy.topk(HEADS, dim=0, largest=False).indices  # K, T
    strongest = torch.stack([weights[lowest[:, t], t].amax(0) for t in range(tokens)])
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "extra": peak - before, "checksum": float(strongest.sum() + top.values.sum())}


decode(32, 4)
print(json.dumps({"ready": f"torch {torch.__version__}, transformers {transformers.__version__}"}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    work = request.pop("work")
    print(json.dumps(decode(**request) if work == "decode" else attentions(**request)), flush=True)
