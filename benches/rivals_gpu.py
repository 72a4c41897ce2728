#!/usr/bin/env python3
"""The work of benches/gpu.rs done with transformers: random weights, the same shapes, prompts and lengths.

  --work sdpa         generation with fused attention, as models are usually run (batch 1 and 16)
  --work attentions   eager attention with output_attentions, which hands out layers x heads x T x T: a pass over whole
                      sequences of growing length until the memory is used up, and a generation
  --matrix-rate FILE  only the rate of a large bf16 matrix product, in FLOP/s
  --versions          only those of torch and transformers, if they are there and find the device

Writes the fields that `gpu report` merges.
"""

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from pathlib import Path

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"{error.name} is not installed for {sys.executable}")

FULL = {"prompt": 512, "response": 512, "batch": 16, "rounds": 2, "lengths": [1024, 2048, 4096, 8192, 16384, 32768]}
QUICK = {"prompt": 16, "response": 9, "batch": 3, "rounds": 2, "lengths": [32, 64]}


class Device:
    """Time and memory on the CPU or a GPU, and the current activity."""

    def __init__(self, name):
        self.name = name
        self.doing = "loading"
        self.cuda = name != "cpu"
        if self.cuda and not torch.cuda.is_available():
            sys.exit(f"torch {torch.__version__} finds no CUDA device")
        if self.cuda:
            torch.cuda.set_device(name)

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, work):
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start

    def forget_peak(self):
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self):
        """Peak bytes: of tensors on a GPU, of the process on the CPU, where it never falls."""
        if self.cuda:
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def out_of_memory(error):
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


def row(shape, what, unit, values, **facts):
    return {
        "shape": shape,
        "what": f"transformers, {what}",
        "unit": unit,
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "rounds": len(values),
        "facts": facts,
    }


def load(folder, attention, device):
    """A model of the folder's shape with random weights."""
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device.name):
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    finally:
        torch.set_default_dtype(default)
    return model.to(device.name, torch.bfloat16).eval()


def ids(model, batch, length, device):
    return torch.randint(0, model.config.vocab_size, (batch, length), device=device.name)


def generate(model, prompt, tokens, **options):
    """No end token exists in these shapes, so a response always has the requested length."""
    with torch.no_grad():
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
    sequences = out if torch.is_tensor(out) else out.sequences
    assert sequences.shape[1] == prompt.shape[1] + tokens, sequences.shape
    return out


def time_generation(model, shape, what, batch, rounds, sizes, device, **options):
    """Decode speed: the time of a generation minus that of its first token. Each result is dropped before the next."""
    device.doing = f"{what}, batch {batch}"
    prompt = ids(model, batch, sizes["prompt"], device)
    generate(model, prompt, 4, **options)
    device.forget_peak()
    rates = []
    for _ in range(rounds):
        first = device.seconds(lambda: generate(model, prompt, 1, **options))
        whole = device.seconds(lambda: generate(model, prompt, sizes["response"], **options))
        rates.append(batch * (sizes["response"] - 1) / (whole - first))
    return row(shape, device.doing, "tokens/s", rates, **{"peak MB": device.peak() / 1e6})


def sdpa(folder, sizes, device):
    model = load(folder, "sdpa", device)
    for batch in [1, sizes["batch"]]:
        yield time_generation(model, folder.name, "SDPA decode", batch, sizes["rounds"], sizes, device)


def attentions(folder, sizes, device):
    model = load(folder, "eager", device)

    def whole_pass(tokens):
        with torch.no_grad():
            model(tokens, output_attentions=True, output_hidden_states=True, use_cache=False)

    whole_pass(ids(model, 1, 16, device))
    for length in sizes["lengths"]:
        device.doing = f"eager pass with attentions, {length} tokens"
        tokens = ids(model, 1, length, device)
        device.forget_peak()
        seconds = device.seconds(lambda: whole_pass(tokens))
        facts = {"peak MB": device.peak() / 1e6}
        yield row(folder.name, device.doing, "s", [seconds], **facts)


def attentions_generation(folder, sizes, device):
    model = load(folder, "eager", device)
    options = {"output_attentions": True, "return_dict_in_generate": True}
    yield time_generation(model, folder.name, "eager decode with attentions", 1, 1, sizes, device, **options)


def matrix_rate(device, quick):
    """FLOP/s of a bf16 product on random data (zeros would be faster)."""
    n = 256 if quick else 8192
    a, b = (torch.randn(n, n, device=device.name, dtype=torch.bfloat16) for _ in range(2))
    device.seconds(lambda: [a @ b for _ in range(3)])
    return 2 * n**3 / statistics.median(device.seconds(lambda: a @ b) for _ in range(10))


def run(works, folders, sizes, device, results):
    """Adds rows to `results` as they are measured, yielding after each; a failed measurement becomes a problem, and the next starts."""
    for folder in folders:
        for work in works:
            device.doing = "loading"
            try:
                for found in work(folder, sizes, device):
                    results["rows"].append(found)
                    print(f"  {found['what']:<60} {found['median']:.4g} {found['unit']} {found['facts']}", flush=True)
                    yield
            except Exception as error:  # whatever stops a measurement is a result, too
                reason = "out of memory" if out_of_memory(error) else f"{type(error).__name__}: {error}"
                reason = reason.strip().splitlines()[0]
                problem = {"shape": folder.name, "stage": f"transformers, {device.doing}", "message": reason}
                results["problems"].append(problem)
                print(f"  NOT MEASURED: {problem['stage']}: {reason}", flush=True)
                yield
            finally:
                device.forget_peak()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cpu, cuda or cuda:N")
    parser.add_argument("--configs", type=Path, help="SHAPE/config.json of every shape (gpu configs FOLDER)")
    parser.add_argument("--shapes", help="comma-separated; default: all")
    parser.add_argument("--work", choices=["sdpa", "attentions"], default="sdpa")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--matrix-rate", type=Path, metavar="FILE")
    parser.add_argument("--versions", action="store_true")
    arguments = parser.parse_args()
    device = Device(arguments.device)
    if arguments.versions:
        print(torch.__version__, transformers.__version__)
        return 0
    if arguments.matrix_rate:
        rate = matrix_rate(device, arguments.quick)
        arguments.matrix_rate.write_text(f"{rate:.6g}\n")
        print(f"  {rate / 1e12:.4g} TFLOP/s")
        return 0
    if not arguments.configs:
        parser.error("--configs is needed")
    transformers.logging.set_verbosity_error()
    folders = sorted(path.parent for path in arguments.configs.glob("*/config.json"))
    wanted = arguments.shapes.split(",") if arguments.shapes else [folder.name for folder in folders]
    folders = [folder for folder in folders if folder.name in wanted]
    works = [sdpa] if arguments.work == "sdpa" else [attentions, attentions_generation]
    sizes = QUICK if arguments.quick else FULL
    results = {"rows": [], "problems": []}
    for _ in run(works, folders, sizes, device, results):
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if not arguments.json:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
