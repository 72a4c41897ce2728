#!/usr/bin/env python3
"""Tiny random models of the families that are defined by data alone, with transformers' results in float64.

    tests/peers/tiny_families.py [NAME..]        (torch and transformers >= 5.17 from PyPI)

Writes tests/data/tiny_families.jsonl, or only the lines of the models named: one line per model with its config, the seed of its
weights and the results of eager attention. The weights are the test suite's own (`tests/support/src/tiny.rs`), so that only results are stored.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/data/tiny_families.jsonl"
GAMMA = [0.16644488, 0.20938152, 0.32959151, 0.46061748, 0.59304059, 0.67549127, 0.73914525, 0.81274293, 0.87378443, 0.93925344]
TOKENS, PROMPT, KEPT = 48, 16, 6

BASE = {"vocab_size": 128, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "head_dim": 16, "tie_word_embeddings": True}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = {"hidden_activation": "gelu_pytorch_tanh", "global_head_dim": 32, "sliding_window": 10, "vocab_size_per_layer_input": 128}
FACTORS = [1.0, 1.1, 1.3, 1.7, 2.0, 2.6]
MODELS = {
    "gemma": ("gemma", "GemmaForCausalLM", {"hidden_act": "gelu"}),
    "mistral": ("mistral", "MistralForCausalLM", {"sliding_window": 12}),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", {"no_rope_layers": [1, 1, 0, 1]}),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", {"tie_word_embeddings": False}),
    "yarn": ("llama", "LlamaForCausalLM", {"rope_parameters": YARN}),
    "yarn_mscale": ("qwen2", "Qwen2ForCausalLM", {"rope_scaling": {
        "type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0,
        "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False}, "rope_theta": 1e5}),
    "sliding_qwen2": ("qwen2", "Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}),
    "phi3": ("phi3", "Phi3ForCausalLM", {"sliding_window": 11, "rope_theta": 1e4}),
    "phi3_partial": ("phi3", "Phi3ForCausalLM", {"partial_rotary_factor": 0.5, "num_key_value_heads": 1}),
    "phi3_longrope": ("phi3", "Phi3ForCausalLM", {
        "hidden_size": 64, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64, "rope_scaling": {
            "type": "longrope", "short_factor": FACTORS, "long_factor": [2 * x for x in FACTORS]}}),
    "granite": ("granite", "GraniteForCausalLM", {
        "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.22, "logits_scaling": 2.5,
        "attention_bias": True, "mlp_bias": True}),
    "olmo3": ("olmo3", "Olmo3ForCausalLM", {"sliding_window": 10, "num_hidden_layers": 5, "rope_scaling": YARN,
                                            "tie_word_embeddings": False}),
    "ministral": ("ministral", "MinistralForCausalLM", {"sliding_window": 10, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention", "full_attention"]}),
    "ministral3": ("ministral3", "Ministral3ForCausalLM", {"rope_parameters": {
        **YARN, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", {
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": False,
        "decoder_sparse_step": 2, "tie_word_embeddings": False}),
    "smollm3_sliding": ("smollm3", "SmolLM3ForCausalLM", {
        "use_sliding_window": True, "sliding_window": 9, "no_rope_layer_interval": 2, "attention_bias": True}),
    "gemma4": ("gemma4_text", "Gemma4ForCausalLM", {
        **GEMMA4, "num_hidden_layers": 7, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16,
        "final_logit_softcapping": 20.0, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL, SLIDING, FULL]}),
    "gemma4_keys_are_values": ("gemma4_text", "Gemma4ForCausalLM", {
        **GEMMA4, "num_hidden_layers": 6, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True,
        "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}),
    "qwen3_5": ("qwen3_5_text", "Qwen3_5ForCausalLM", {
        "num_hidden_layers": 5, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 12,
        "linear_value_head_dim": 20, "linear_conv_kernel_dim": 4, "rope_theta": 1e6}),
    "qwen3_5_mixed": ("qwen3_5_text", "Qwen3_5ForCausalLM", {
        "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"], "attention_bias": True,
        "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": False, "linear_num_key_heads": 3, "linear_num_value_heads": 3,
        "linear_key_head_dim": 9, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 3, "rope_parameters": {
            **YARN, "partial_rotary_factor": 0.5, "mrope_interleaved": True, "mrope_section": [2, 1, 1]}}),
    "qwen3_5_moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", {
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24, "tie_word_embeddings": False}),
    "gemma4_moe": ("gemma4_text", "Gemma4ForCausalLM", {
        **GEMMA4, "num_hidden_layers": 6, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24}),
    # longer than the trained context
    "phi3_longrope_long": ("phi3", "Phi3ForCausalLM", {
        "hidden_size": 64, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 20, "rope_scaling": {
            "type": "longrope", "short_factor": FACTORS, "long_factor": [3 * x for x in FACTORS]}}),
    "ministral3_long": ("ministral3", "Ministral3ForCausalLM", {"rope_parameters": {
        **YARN, "original_max_position_embeddings": 10, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}}),
}


def reweighted(alpha):
    """A row's attention without its first token and its own, with the nearest ten before it discounted."""
    weights = torch.ones_like(alpha)
    for i, gamma in enumerate(GAMMA[:len(alpha) - 1]):
        weights[-2 - i] = gamma
    weights[0] = weights[-1] = 0
    return alpha * weights / (alpha * weights).sum()


def entropy(alpha):
    alpha = alpha[alpha > 0]
    return float(-(alpha * alpha.log()).sum())


def results(folder, seed):
    """transformers' results for random tokens."""
    model, loaded = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"], loaded
    model, config = model.eval().double(), model.config
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, config.vocab_size, (1, TOKENS), generator=draw)
    with torch.no_grad():
        out = model(input_ids=tokens, output_attentions=True, output_hidden_states=True, use_cache=False)
        greedy = model.generate(tokens[:, :PROMPT], do_sample=False, max_new_tokens=PROMPT, eos_token_id=[])
    logits = out.logits[0].double()
    logprobs = logits.log_softmax(-1)

    def row(t):
        return [reweighted(layer[0, h, t, :t + 1].double()) for layer in out.attentions for h in range(layer.shape[1])]

    last = row(TOKENS - 1)
    entropies = [entropy(alpha) for alpha in last]
    heads = sorted(sorted(range(len(entropies)), key=lambda head: (entropies[head], head))[:KEPT])
    return {
        "input_ids": tokens[0].tolist(), "n_instr": PROMPT, "logits_last": logits[-1].tolist(),
        "argmax": logits.argmax(-1).tolist(), "generated": greedy[0, PROMPT:].tolist(),
        "next_logprob": [float(logprobs[t, tokens[0, t + 1]]) for t in range(TOKENS - 1)],
        "last_hidden": out.hidden_states[-1][0, -1].tolist(), "k_heads": KEPT, "heads_last": heads, "entropy_last": entropies,
        "entropy_first_response_row": [entropy(alpha) for alpha in row(PROMPT)],
        "alpha_star_last": torch.stack([last[head] for head in heads]).max(0).values.tolist(),
    }


def main():
    lines = [{"name": name, "seed": seed, "config": {**BASE, **own, "model_type": model_type, "architectures": [architecture]}}
             for seed, (name, (model_type, architecture, own)) in enumerate(MODELS.items(), 500)]
    if sys.argv[1:]:
        kept = {line["name"]: line for line in map(json.loads, OUT.read_text().splitlines())}
        lines = [line if line["name"] in sys.argv[1:] else kept[line["name"]] for line in lines]
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cargo", "test", "--release", "--lib", "tiny_families_are_written"], cwd=ROOT, check=True,
                       env={**os.environ, "UQAC_TINY_FAMILIES": folder})
        for line in (line for line in lines if "golden" not in line):
            line["golden"] = results(Path(folder) / line["name"], line["seed"])
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
