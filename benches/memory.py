#!/usr/bin/env python3
"""Peak resident memory of `uqac score` by sequence length, next to weights + KV cache.

usage: benches/memory.py MODEL_FOLDER [TOKENS...]       (default 1024 2048 4096 8192; builds the release binary)
"""
import json, os, pathlib, resource, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parent.parent
model = pathlib.Path(sys.argv[1])
lengths = [int(a) for a in sys.argv[2:]] or [1024, 2048, 4096, 8192]
subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=root, check=True)
uqac = root / "target/release/uqac"
config = json.loads((model / "config.json").read_text())
heads = config.get("num_key_value_heads", config["num_attention_heads"])
head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
per_token = config["num_hidden_layers"] * heads * head_dim * 2 * 4  # K and V in f32
weights = sum(f.stat().st_size for f in model.glob("*.safetensors"))
MIB = 1 << 20


def peak(tokens):
    """Peak resident bytes when scoring one response that is everything but the first 64 tokens.

    The answer comes early, which keeps the ensemble short: this saves time but no memory."""
    ids = [100 + (i * 7919) % 5000 for i in range(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        item = {"id": tokens, "input_ids": ids, "n_instr": 64, "answer_span": [96, 98]}
        source, target = pathlib.Path(folder, "in.jsonl"), pathlib.Path(folder, "out.jsonl")
        source.write_text(json.dumps(item) + "\n")
        command = [uqac, "score", "--model", model, "--input", source, "--output", target]
        child = os.posix_spawn(uqac, command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 2, "/dev/null", os.O_WRONLY, 0)])
        _, status, usage = os.wait4(child, 0)
        record = json.loads(target.read_text())
        assert status == 0 and record["status"] == "ok", record
        return usage.ru_maxrss * 1024


print(f"{'tokens':>8} {'peak MiB':>10} {'weights':>9} {'KV cache':>9} {'the rest':>9} {'KiB a token':>12}")
rows = [(n, peak(n)) for n in lengths]
for n, bytes_ in rows:
    cache = n * per_token
    rest = bytes_ - weights - cache
    print(f"{n:>8} {bytes_ / MIB:>10.0f} {weights / MIB:>9.0f} {cache / MIB:>9.0f} {rest / MIB:>9.0f}", end="")
    (first, least) = rows[0]
    slope = f"{(rest - (least - weights - first * per_token)) / (n - first) / 1024:>12.1f}" if n > first else f"{'':>12}"
    print(slope)
