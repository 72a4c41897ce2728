#!/usr/bin/env python3
"""Decoding and prefill of a Llama or Qwen2 shape in plain torch, as fast as torch gets: static cache, torch.compile, and
the whole decode step as one CUDA graph. Random weights, greedy, with the prompts and lengths of benches/gpu.rs.

One compiled layer serves all layers, so that compilation takes seconds. Decoding is also measured without torch.compile.
Writes the fields that `gpu report` merges. On the CPU there are no graphs; it only shows that the program runs.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

try:
    import torch
    import torch._inductor.config as inductor
    from torch.nn.functional import linear, scaled_dot_product_attention, silu
except ImportError as error:
    sys.exit(f"{error.name} is not installed for {sys.executable}")

FULL = {"prompt": 512, "response": 512, "rounds": 3, "batches": [1, 16], "prefill": 4096}
QUICK = {"prompt": 8, "response": 5, "rounds": 2, "batches": [1, 3], "prefill": 16}
WARM_UPS = 3


class Weights:
    def __init__(self, config, device):
        self.hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.kv_heads, self.vocab = config["num_key_value_heads"], config["vocab_size"]
        self.head_dim = config.get("head_dim") or self.hidden // self.heads
        self.eps, self.theta = config["rms_norm_eps"], config["rope_theta"]
        q, kv, inner = self.heads * self.head_dim, self.kv_heads * self.head_dim, config["intermediate_size"]

        def random(*shape):
            return torch.randn(*shape, device=device, dtype=torch.bfloat16) * 0.02

        biased = config["model_type"] == "qwen2"
        self.layers = [
            {
                "norm": random(self.hidden),
                "qkv": random(q + 2 * kv, self.hidden),
                "qkv_bias": random(q + 2 * kv) if biased else None,
                "o": random(self.hidden, q),
                "mlp_norm": random(self.hidden),
                "gate_up": random(2 * inner, self.hidden),
                "down": random(self.hidden, inner),
            }
            for _ in range(config["num_hidden_layers"])
        ]
        self.embedding = random(self.vocab, self.hidden)
        self.head = self.embedding if config["tie_word_embeddings"] else random(self.vocab, self.hidden)
        self.norm = random(self.hidden)

    def bytes_per_step(self):
        tensors = [t for layer in self.layers for t in layer.values() if t is not None] + [self.norm, self.head]
        return sum(t.numel() * t.element_size() for t in tensors)


def rms_norm(x, weight, eps: float):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def layer(x, positions, mask, cos, sin, keys, values, w, heads: int, kv_heads: int, head_dim: int, eps: float):
    """x: [batch, rows, hidden]; keys, values: [batch, kv_heads, context, head_dim]; positions: [rows]."""
    batch, rows, _ = x.shape
    sizes = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    qkv = linear(rms_norm(x, w["norm"], eps), w["qkv"], w["qkv_bias"]).split(sizes, -1)
    q, k, v = (part.view(batch, rows, -1, head_dim).transpose(1, 2) for part in qkv)
    keys.index_copy_(2, positions, rotate(k, cos, sin))
    values.index_copy_(2, positions, v)
    # a prefill attends only to itself and uses the causal kernel
    seen = (keys, values) if mask is not None else (keys[:, :, :rows], values[:, :, :rows])
    y = scaled_dot_product_attention(rotate(q, cos, sin), *seen, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    x = x + linear(y.transpose(1, 2).reshape(batch, rows, -1), w["o"])
    gate, up = linear(rms_norm(x, w["mlp_norm"], eps), w["gate_up"]).chunk(2, -1)
    return x + linear(silu(gate) * up, w["down"])


def predict(x, norm, head, eps: float):
    return linear(rms_norm(x[:, -1], norm, eps), head).argmax(-1)


class Model:
    def __init__(self, weights, batch, context, device, compiled):
        self.w = weights
        shape = (batch, weights.kv_heads, context, weights.head_dim)
        empty = lambda: torch.zeros(shape, device=device, dtype=torch.bfloat16)  # noqa: E731
        self.caches = [(empty(), empty()) for _ in weights.layers]
        self.tokens = torch.randint(weights.vocab, (batch,), device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.context = torch.arange(context, device=device)
        self.frequencies = weights.theta ** (-torch.arange(0, weights.head_dim, 2, device=device) / weights.head_dim)
        wrap = (lambda f: torch.compile(f, fullgraph=True, dynamic=False)) if compiled else (lambda f: f)
        self.layer, self.predict = wrap(layer), wrap(predict)

    def forward(self, tokens, positions, mask):
        w = self.w
        x = w.embedding[tokens]
        angles = positions[:, None].float() * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        for own, (keys, values) in zip(w.layers, self.caches):
            x = self.layer(x, positions, mask, cos, sin, keys, values, own, w.heads, w.kv_heads, w.head_dim, w.eps)
        return self.predict(x, w.norm, w.head, w.eps)

    def step(self):
        mask = (self.context <= self.position)[None, None, None]
        self.tokens.copy_(self.forward(self.tokens[:, None], self.position, mask))
        self.position += 1


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


def captured(work, device):
    """`work` as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def seconds(work, device):
    wait(device)
    begun = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begun


def decode(weights, batch, sizes, device, compiled):
    model = Model(weights, batch, sizes["prompt"] + sizes["response"], device, compiled)
    begun = time.perf_counter()
    if device == "cpu":
        model.step()
    run = model.step if device == "cpu" else captured(model.step, device)
    ready = time.perf_counter() - begun
    steps, rates = sizes["response"] - 1, []
    for _ in range(sizes["rounds"]):
        model.position.fill_(sizes["prompt"])
        rates.append(batch * steps / seconds(lambda: [run() for _ in range(steps)], device))
    rate = weights.bytes_per_step() * statistics.median(rates) / batch / 1e9
    return rates, {"GB/s of weights": rate, "seconds until ready": ready}


def prefill(weights, sizes, device):
    count = sizes["prefill"]
    model = Model(weights, 1, count, device, compiled=True)
    tokens, positions = torch.randint(weights.vocab, (1, count), device=device), torch.arange(count, device=device)
    work = lambda: model.forward(tokens, positions, None)  # noqa: E731
    for _ in range(WARM_UPS):
        work()
    return [count / seconds(work, device) for _ in range(sizes["rounds"])], {}


def works(sizes, device):
    """Names and measurements."""
    graph = "" if device == "cpu" else "CUDA graph, "
    for batch in sizes["batches"]:
        for compiled in (True, False):
            name = f"torch, {'compiled, ' if compiled else ''}{graph}static cache, decode, batch {batch}"
            yield name, lambda weights, b=batch, c=compiled: decode(weights, b, sizes, device, c)
    yield f"torch, compiled, prefill, {sizes['prefill']} tokens", lambda weights: prefill(weights, sizes, device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cpu or cuda:N")
    parser.add_argument("--configs", type=Path, required=True, help="SHAPE/config.json of every shape (gpu configs FOLDER)")
    parser.add_argument("--shapes", default="llama-3.1-8b", help="one shape")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, sizes = arguments.device, QUICK if arguments.quick else FULL
    if device != "cpu":
        torch.cuda.set_device(device)
    inductor.coordinate_descent_tuning = device != "cpu"
    config = json.loads((arguments.configs / arguments.shapes / "config.json").read_text())
    results = {"rows": [], "problems": []}
    with torch.no_grad():
        weights = Weights(config, device)
        for what, work in works(sizes, device):
            try:
                values, facts = work(weights)
                if device != "cpu":
                    facts["peak MB"] = torch.cuda.max_memory_allocated() / 1e6
                row = {
                    "shape": arguments.shapes,
                    "what": what,
                    "unit": "tokens/s",
                    "median": statistics.median(values),
                    "least": min(values),
                    "most": max(values),
                    "rounds": len(values),
                    "facts": facts,
                }
                results["rows"].append(row)
                print(f"  {what:<60} {row['median']:.4g} tokens/s {facts}", flush=True)
            except Exception as error:  # whatever stops a measurement is a result, too
                message = f"{type(error).__name__}: {error}".splitlines()[0]
                results["problems"].append({"shape": arguments.shapes, "stage": what, "message": message})
                print(f"  NOT MEASURED: {what}: {message}", flush=True)
            torch._dynamo.reset()
            if device != "cpu":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
