#!/usr/bin/env python3
"""Random configs of every family, and how transformers interprets them.

    tests/peers/configs.py [COUNT]      (torch and transformers >= 5.24 from PyPI)

Writes tests/data/configs.jsonl.gz: one line per config with the facts that determine its model's computation, or null if
transformers rejects it. Keys are absent, null, in the older place, the newer place, or both.
"""

import gzip
import importlib
import json
import logging
import random
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "tests/data/configs.jsonl.gz"

# model_type: (class prefix, own keys)
FAMILIES = {
    "llama": ("Llama", ["attention_bias", "mlp_bias"]),
    "mistral": ("Mistral", ["sliding_window"]),
    "ministral": ("Ministral", ["sliding_window", "layer_types"]),
    "ministral3": ("Ministral3", ["sliding_window"]),
    "qwen2": ("Qwen2", ["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"]),
    "qwen3": ("Qwen3", ["attention_bias", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"]),
    "gemma": ("Gemma", ["attention_bias"]),
    "gemma2": ("Gemma2", ["query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window",
                          "layer_types"]),
    "gemma3_text": ("Gemma3", ["query_pre_attn_scalar", "sliding_window", "sliding_window_pattern", "layer_types",
                               "rope_local_base_freq"]),
    "gemma4_text": ("Gemma4", ["attention_bias", "final_logit_softcapping", "sliding_window", "layer_types", "global_head_dim",
                               "num_global_key_value_heads", "per_layer_config", "attention_k_eq_v", "num_kv_shared_layers",
                               "use_double_wide_mlp", "hidden_size_per_layer_input", "vocab_size_per_layer_input"]),
    "smollm3": ("SmolLM3", ["use_sliding_window", "sliding_window", "layer_types", "no_rope_layers", "no_rope_layer_interval"]),
    "olmo2": ("Olmo2", ["attention_bias"]),
    "olmo3": ("Olmo3", ["sliding_window", "layer_types"]),
    "phi3": ("Phi3", ["sliding_window", "partial_rotary_factor", "original_max_position_embeddings"]),
    "granite": ("Granite", ["embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"]),
}
# families with a rotary table per layer type
NESTED = ("gemma3_text", "gemma4_text", "olmo3")


def scaling(draw, family, dims):
    """A rotary table as it might be written in the wild."""
    table = {}
    kind = draw.choice(["default", "default", "linear", "llama3", "yarn", "yarn", "dynamic", "longrope"])
    if family == "gemma4_text" and draw.random() < 0.5:
        kind, table = "proportional", {"partial_rotary_factor": draw.choice([0.25, 0.3, 1.0])}
    if draw.random() < 0.9:
        # in nested tables transformers reads only the newer name
        table[draw.choice(["rope_type", "type"]) if family not in NESTED else "rope_type"] = kind
    if draw.random() < (0.6 if family != "gemma4_text" else 0.95):
        table["rope_theta"] = draw.choice([1e4, 5e5, 1e6, 12345.0])
    if kind != "default":
        table["factor"] = draw.choice([2.0, 4.0, 8.0])
    if kind == "llama3":
        table |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("llama3", "yarn", "longrope") and draw.random() < 0.7:
        table["original_max_position_embeddings"] = draw.choice([64, 128])
    if kind == "yarn":
        for key, values in [("beta_fast", [16.0, 32.0]), ("beta_slow", [1.0, 2.0]), ("attention_factor", [1.3]),
                            ("mscale", [1.0, 1.4]), ("mscale_all_dim", [0.6, 1.0]), ("truncate", [True])]:
            if draw.random() < 0.3:
                table[key] = draw.choice(values)
    if kind == "longrope":
        table |= {"short_factor": [1.0 + i / 3 for i in range(dims // 2)], "long_factor": [2.0 + i for i in range(dims // 2)]}
        if draw.random() < 0.5:
            del table["factor"]
    return table


def settings(draw):
    family = draw.choice(list(FAMILIES))
    prefix, own = FAMILIES[family]
    layers, heads = draw.choice([2, 4, 6]), draw.choice([2, 4])
    config = {"architectures": [prefix + "ForCausalLM"], "model_type": family, "hidden_size": 16 * heads,
              "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": 64,
              "num_key_value_heads": draw.choice([1, 2]), "head_dim": draw.choice([8, 16]), "max_position_embeddings": 512,
              "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": draw.random() < 0.5}
    if family == "phi3":
        config["head_dim"] = 16  # its validation uses hidden_size / heads
    if family.startswith("gemma"):
        config["hidden_act"] = draw.choice(["gelu_pytorch_tanh", "gelu"] if family == "gemma" else ["gelu_pytorch_tanh"])
    part = draw.choice([0.5, 1.0]) if family == "phi3" else 1.0
    values = {
        "attention_bias": [True, False], "mlp_bias": [True, False], "use_sliding_window": [True, True, False],
        "sliding_window": [8, 16, None], "max_window_layers": [0, 1, 3], "query_pre_attn_scalar": [16, 48],
        "attn_logit_softcapping": [20.0, None], "final_logit_softcapping": [10.0, None], "sliding_window_pattern": [2, 3],
        "rope_local_base_freq": [1e4, 2e4], "partial_rotary_factor": [part], "original_max_position_embeddings": [128],
        "embedding_multiplier": [3.0], "attention_multiplier": [0.3], "residual_multiplier": [0.22], "logits_scaling": [2.5],
        "no_rope_layers": [[draw.choice([0, 1]) for _ in range(layers)], None], "no_rope_layer_interval": [2, 3],
        "layer_types": [draw.choices(["full_attention", "sliding_attention"], k=layers), None],
        "global_head_dim": [8, 16, 32], "num_global_key_value_heads": [1, 2, None],
        "per_layer_config": [{f"{layers - 1:02}": {"head_dim": 16, "num_key_value_heads": 1}}, {}, None],
        "attention_k_eq_v": [True, False], "num_kv_shared_layers": [0, 1, layers // 2], "use_double_wide_mlp": [True, False],
        "hidden_size_per_layer_input": [0, 8], "vocab_size_per_layer_input": [64],
    }
    for key in own:
        if draw.random() < (0.5 if key != "partial_rotary_factor" else 1.0):
            config[key] = draw.choice(values[key])
    for key, value in [("head_dim", None), ("num_key_value_heads", None)]:
        if draw.random() < 0.1 and family != "gemma4_text":
            config[key] = value
    for key in ["head_dim", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings"]:
        if draw.random() < 0.1:
            del config[key]
    if family.startswith("gemma") and family != "gemma" and "hidden_act" in config:
        config["hidden_activation"] = config["hidden_act"]
    # keys of other families, which are ignored
    if draw.random() < 0.2:
        other = draw.choice([key for _, keys in FAMILIES.values() for key in keys
                             if key not in own and key not in ("original_max_position_embeddings", "partial_rotary_factor",
                                                               "per_layer_config")])
        config[other] = draw.choice(values[other])
    dims = int((config.get("head_dim") or 16) * part)
    if draw.random() < 0.4:
        config["rope_theta"] = draw.choice([1e4, 2e5])
    if family != "gemma4_text" and draw.random() < 0.5:  # not read there
        config["rope_scaling"] = draw.choice([None, scaling(draw, family, dims), scaling(draw, family, dims)])
    if draw.random() < 0.5:
        table = scaling(draw, family, dims)
        if family in NESTED:
            table = {"full_attention": table, "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}}
            if draw.random() < 0.3 and family != "gemma4_text":
                del table[draw.choice(list(table))]
            if config.get("rope_scaling"):
                table.pop("full_attention", None)
                table["full_attention"] = {"rope_type": "default", "rope_theta": 7e4}
        config["rope_parameters"] = table
    return config


def sizes(c, modeling):
    """For every Gemma 4 layer: head_dim, key/value heads, the width of the feed-forward network, the layer whose keys and values it
    reads, and whether keys and values are the same."""
    found, stored = [], {}
    for layer in range(c.num_hidden_layers):
        attention = modeling.Gemma4TextAttention(c, layer)
        assert attention.scaling == 1.0
        if not attention.is_kv_shared_layer:
            stored[attention.layer_type] = layer
        inner = modeling.Gemma4TextMLP(c, layer).intermediate_size
        kv_heads = c.per_layer_config[layer].num_key_value_heads
        if c.num_attention_heads % kv_heads:
            raise ValueError("heads that are no multiple of key/value heads")
        found.append([attention.head_dim, kv_heads, inner, stored[attention.layer_type], attention.use_alternative_attention])
    return found


def facts(config):
    family = config["model_type"]
    prefix, own = FAMILIES[family]
    module = family.removesuffix("_text")
    names = importlib.import_module(f"transformers.models.{module}.configuration_{module}")
    modeling = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    c = getattr(names, prefix + ("TextConfig" if family.endswith("_text") else "Config"))
    c = c(**{key: value for key, value in json.loads(json.dumps(config)).items() if key not in ("architectures", "model_type")})
    layers = c.num_hidden_layers
    if family == "gemma4_text":
        c.allow_global_per_layer_attribute_access = True
        prefix, own_sizes = "Gemma4Text", sizes(c, modeling)
    if c.num_attention_heads % c.num_key_value_heads:
        raise ValueError("heads that are no multiple of key/value heads, which fail in the first pass")
    rotary = getattr(modeling, prefix + "RotaryEmbedding")(c)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    types = getattr(c, "layer_types", None) if "layer_types" in own or family in ("qwen2", "qwen3", "smollm3", "olmo3") else None
    if types is not None:
        window = c.sliding_window
        if "sliding_attention" in types and window is None:
            raise ValueError("a mask without a window")
        windows = [window if kind == "sliding_attention" else None for kind in types]
        if family == "smollm3" and not c.use_sliding_window and any(windows):
            raise ValueError("a mask with a window and attention without one")
    elif family in ("mistral", "ministral3", "phi3"):
        windows = [c.sliding_window] * layers
    else:
        windows = [None] * layers

    def table(prefix, scale):
        return {"inv_freq": [float(f"{x:.8g}") for x in getattr(rotary, prefix + "inv_freq").tolist()], "factor": float(scale)}

    if family in NESTED:
        kinds = {kind: table(kind + "_", getattr(rotary, kind + "_attention_scaling")) for kind in set(types)}
        rope = [kinds[kind] for kind in types]
    else:
        rope = [table("", rotary.attention_scaling)] * layers
    if family == "smollm3":
        rope = [r if use else None for r, use in zip(rope, c.no_rope_layers)]
    unused = [] if family not in NESTED else [c.rope_parameters[kind] for kind in c.rope_parameters
                                                               if kind not in types and "short_factor" in c.rope_parameters[kind]]
    if any(2 * len(table["short_factor"]) != head_dim for table in unused):
        raise ValueError("a table of another length, which no layer uses")
    act = c.hidden_activation if family in ("gemma2", "gemma3_text", "gemma4_text") else c.hidden_act
    softcaps = family in ("gemma2", "gemma3_text")
    query = {"gemma2": "query_pre_attn_scalar", "gemma3_text": "query_pre_attn_scalar"}.get(family)
    scale = c.attention_multiplier if family == "granite" else (getattr(c, query) if query else head_dim) ** -0.5
    scale = 1.0 if family == "gemma4_text" else scale
    bias = family not in ("mistral", "ministral", "ministral3", "qwen2", "phi3") and bool(c.attention_bias)
    return {
        "head_dim": head_dim, "kv_heads": c.num_key_value_heads, "context": c.max_position_embeddings, "eps": c.rms_norm_eps,
        "act": "silu" if act == "silu" else "gelu_tanh", "tied": bool(c.tie_word_embeddings), "windows": windows, "rope": rope,
        "scale": scale, "attn_cap": c.attn_logit_softcapping if softcaps else None,
        "final_cap": c.final_logit_softcapping if softcaps or family == "gemma4_text" else None, "qkv_bias": bias or family == "qwen2", "o_bias": bias,
        "mlp_bias": family in ("llama", "smollm3", "granite") and bool(c.mlp_bias),
        "multipliers": [getattr(c, key) for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling")]
        if family == "granite" else None,
        "layers": own_sizes if family == "gemma4_text" else None,
        "layer_input": c.hidden_size_per_layer_input if family == "gemma4_text" else 0,
    }


def main():
    logging.disable(logging.WARNING)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2600
    draw = random.Random(5240)
    lines, refused = [], 0
    for _ in range(count):
        config = settings(draw)
        try:
            expected = facts(config)
        except Exception:  # whatever the error, transformers does not build a model from this
            expected = None
            refused += 1
        lines.append(json.dumps({"config": config, "expected": expected}))
    OUT.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))
    print(f"{count} configs, {refused} of which transformers refuses")


if __name__ == "__main__":
    main()
