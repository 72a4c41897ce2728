#!/usr/bin/env python3
"""Converts a Hugging Face folder (Llama or Qwen2 architecture) to a GGUF file with the same weights, for llama.cpp.

usage: convert.py MODEL_FOLDER FILE.gguf bf16|f16

Matrices are written in bf16 (exact for a bf16 model) or rounded to f16; norms and biases become f32, as llama.cpp requires.
"""
import json
import pathlib
import sys

import gguf
import numpy as np

folder, target, kind = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
config = json.loads((folder / "config.json").read_text())
architecture = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}[config["architectures"][0]]
heads = config["num_attention_heads"]
kv_heads = config.get("num_key_value_heads", heads)
head_dim = config.get("head_dim") or config["hidden_size"] // heads

writer = gguf.GGUFWriter(target, architecture)
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_block_count(config["num_hidden_layers"])
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_rope_dimension_count(head_dim)
writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_vocab_size(config["vocab_size"])
writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if kind == "bf16" else gguf.LlamaFileType.MOSTLY_F16)

tokenizer = json.loads((folder / "tokenizer.json").read_text())
vocabulary = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
texts = {id_: text for text, id_ in vocabulary.items()}
special = {t["id"] for t in tokenizer["added_tokens"]}
merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
ids = range(config["vocab_size"])
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("qwen2" if architecture == "qwen2" else "smollm")
writer.add_token_list([texts.get(i, f"[UNUSED{i}]") for i in ids])
control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
writer.add_token_types([control if i in special or i not in texts else normal for i in ids])
writer.add_token_merges(merges)
eos = config["eos_token_id"]
writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, ending = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{ending}"
    return f"{NAMES[stem]}.{ending}"


def interleaved(tensor, count):
    """Rows of q or k in llama.cpp's order for this architecture: pairs that rotate together are adjacent."""
    return tensor.reshape(count, 2, head_dim // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def tensors(file):
    """Every tensor of a safetensors file as (name, dtype, bits as a numpy array); bf16 as 16-bit integers."""
    with open(file, "rb") as source:
        length = int.from_bytes(source.read(8), "little")
        header = json.loads(source.read(length))
    bits = np.memmap(file, mode="r", offset=8 + length)
    types = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = tensor["data_offsets"]
            yield name, tensor["dtype"], bits[start:end].view(types[tensor["dtype"]]).reshape(tensor["shape"])


def in_f32(dtype, numbers):
    return (numbers.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else numbers.astype(np.float32)


def in_bf16(dtype, numbers):
    """The bf16 bits; f32 and f16 are rounded to the nearest, ties to even."""
    if dtype == "BF16":
        return numbers
    bits = in_f32(dtype, numbers).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


for file in sorted(folder.glob("*.safetensors")):
    for name, dtype, numbers in tensors(file):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            numbers = interleaved(numbers, heads if ".q_proj." in name else kv_heads)
        if numbers.ndim == 1:
            writer.add_tensor(gguf_name(name), in_f32(dtype, numbers))
        elif kind == "f16":
            writer.add_tensor(gguf_name(name), in_f32(dtype, numbers).astype(np.float16))
        else:
            raw = np.ascontiguousarray(in_bf16(dtype, numbers)).view(np.uint8)
            writer.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
