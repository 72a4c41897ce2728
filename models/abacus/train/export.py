"""Writes a checkpoint as a Hugging Face folder: model.safetensors in bfloat16, config.json, generation_config.json.

    python export.py CHECKPOINT FOLDER [--mean]

The tokenizer's files are tokenizer.py's. With --mean the running mean of the weights is written, not the last ones.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from model import Llama


def main(arguments):
    checkpoint, folder, *flags = arguments
    folder = Path(folder)
    state = torch.load(checkpoint, weights_only=False)
    model = Llama(state["config"])
    model.load_state_dict(state["model"])
    if flags == ["--mean"]:
        with torch.no_grad():
            for p, mean in zip(model.parameters(), state["mean"]):
                p.copy_(mean)
    tensors = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = state["config"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"],
                  "pad_token_id": config["pad_token_id"], "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    print(f"step {state['step']}, {state['tokens']:,} tokens, {sum(t.numel() for t in tensors.values()):,} parameters")


if __name__ == "__main__":
    main(sys.argv[1:])
