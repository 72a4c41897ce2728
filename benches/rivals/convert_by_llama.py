#!/usr/bin/env python3
"""Converts a Hugging Face folder of any architecture to a GGUF file with llama.cpp's own converter; needs torch and transformers.

usage: convert_by_llama.py LLAMA_CPP_SOURCE MODEL_FOLDER FILE.gguf bf16|f16

The vocabulary is written as plain words: enough to measure speed, but not to tokenize.
"""
import json
import pathlib
import sys

source, folder, target = map(pathlib.Path, sys.argv[1:4])
sys.path[:0] = [str(source / "gguf-py"), str(source)]

import gguf  # noqa: E402
import torch  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402


def words(self):
    ids = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    writer = self.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(ids, key=ids.get))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(ids))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)


model = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
model.set_vocab = words
model.no_mtp = True  # omits the layers that predict further tokens, as uqac does
with torch.inference_mode():
    model(folder, gguf.LlamaFileType[f"MOSTLY_{sys.argv[4].upper()}"], target).write()
