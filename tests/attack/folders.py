#!/usr/bin/env python3
"""Attacks model folders: seeded mutations of a tiny one, each passed to the program.

    python3 tests/attack/folders.py [--uqac target/release/uqac] [--n 1000] [--seed 1] [--keep FOLDER]

A folder's config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja or the header of its
weights is changed in one place or several, and `uqac ask` answers with it, with CPU time and address space limited. Prints a table
of the outcomes: an answer, a typed error, or a failure: a panic, a stack overflow, a hang, an abort. Exits with 1 on any failure.
The same seed produces the same folders.
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUTCOMES = ["ok", "typed error", "panic", "overflow", "hang", "abort"]

TEMPLATE = """{%- for m in messages -%}
{%- if loop.first and m.role != 'system' -%}{{ bos_token }}{%- endif -%}
{%- if m.role not in ['user', 'assistant', 'system'] -%}{{ raise_exception('role ' ~ m.role) }}{%- endif -%}
{{ '[' + m.role | upper + ']' + m.content | trim }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '[ASSISTANT]' }}{% endif -%}"""


def tensors(config):
    """Names and shapes of a Llama's weights."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(config["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_proj": [q, hidden],
            "self_attn.k_proj": [kv, hidden], "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, q],
            "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner],
        }.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    return shapes


def alphabet():
    """The characters of byte-level BPE, indexed by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(other)) for b in range(256)]


def base_folder():
    """The folder to mutate: name and content of each file; the weights as header and data."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "vocab_size": 300, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2,
        "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64},
        "tie_word_embeddings": True, "eos_token_id": [297, 299], "bos_token_id": 298, "torch_dtype": "bfloat16",
    }
    noise = random.Random(0)
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, shape in tensors(config).items():
        n = 1
        for size in shape:
            n *= size
        start = len(data)
        for _ in range(n):  # bf16 in ±[0.0625, 2)
            data += (noise.choice([0, 0x8000]) | noise.randrange(0x3D80, 0x3F80)).to_bytes(2, "little")
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(data)]}
    letters = alphabet()
    vocab = {letter: i for i, letter in enumerate(letters)}
    merges = [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"], [letters[32], "t"], ["t", "h"], ["1", "2"]]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    special = ["<s>", "</s>", "<pad>"]
    added = [{"id": 297 + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(special)]
    for i in range(len(vocab), 297):
        vocab[f"<unused{i}>"] = i
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": " {3,}"}, "content": "  "}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}|\s+(?!\S)|[^\s\p{N}]+|\s+"}, "behavior": "Isolated",
             "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [298], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": merges},
    }
    tokenizer_config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "add_bos_token": True,
                        "clean_up_tokenization_spaces": False,
                        "added_tokens_decoder": {"297": {"content": "<s>", "special": True}}}
    return {
        "config.json": config, "generation_config.json": {"eos_token_id": 299, "temperature": 0.6},
        "tokenizer.json": tokenizer, "tokenizer_config.json": tokenizer_config, "chat_template.jinja": TEMPLATE,
        "model.safetensors": (header, bytes(data)),
    }


NUMBERS = [0, 1, -1, 2, 3, 7, 255, 256, 65535, 2**31 - 1, 2**31, 2**32, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
           2**64, 1e308, -1e308, 5e-324, 0.5, 1e-30]
TEXTS = ["", " ", "a", "<s>", "\0", "é漢😀", "\ud800", "a" * 5000, "../../etc/passwd", "NaN", "{{", "/////w==", "AAAAAA==",
         "(?=((a{99}){99}){99})", "((a*)*)*(?!b)", "(", "[", "\\", "a{1000}{1000}", "\x1b[31m", "%s%n", "null"]
STEPS = [
    {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}, {"type": "Precompiled", "precompiled_charsmap": "/////w=="},
    {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}, {"type": "FixedLength", "length": 0},
    {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 900}, {"type": "Prepend", "prepend": ""},
    {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "yyyy"}, {"type": "Strip", "content": "a", "start": 9, "stop": 9},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Metaspace", "replacement": "▁"},
    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "CTC"}, {"type": "BPEDecoder", "suffix": ""}, {"type": "Digits"},
    {"type": "WordPiece", "prefix": "", "cleanup": True}, {"type": "Punctuation"}, {"type": "BertNormalizer"},
    {"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2]}, {"type": "UnicodeScripts"}, {"type": "NFKD"},
    {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Removed", "invert": True},
    {"type": "Split", "pattern": {"String": ""}, "behavior": "MergedWithNext", "invert": False},
    {"type": "CharDelimiterSplit", "delimiter": "é"}, {"type": "Whitespace"}, {"type": "ByteLevel"}, {"type": "StripAccents"},
]
MODELS = [
    {"type": "WordLevel", "vocab": {}, "unk_token": "?"}, {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "?",
     "continuing_subword_prefix": "", "max_input_chars_per_word": 0}, {"type": "Unigram", "vocab": [], "unk_id": None},
    {"type": "Unigram", "vocab": [["a", 0.0], ["", -1.0]], "unk_id": 0}, {"type": "Unigram", "vocab": [["a", 1e308]], "unk_id": 5},
    {"type": "Unigram", "vocab": [["", 0.0]], "unk_id": 0, "byte_fallback": True}, {"vocab": {}, "merges": []},
    {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 4294967295}, "merges": ["a b"]},
    {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}, {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 2.0},
    {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "nope"}, {"type": "Unigram", "vocab": [["?", 0.0], ["a" * 3000, -1.0]], "unk_id": 0},
]
EXPRESSIONS = ["1" + "+1" * 20000, "range(100000000)", "'a' * 10 ** 9", "[1] * 10 ** 9", "'%999999999d' % 1", "'a' | indent(10 ** 9)",
               "[1] | batch(10 ** 9, 0) | list", "[1] | slice(10 ** 9) | list", "'a' | center(10 ** 9)", "'a'.ljust(10 ** 9)",
               "'{:>999999999}'.format(1)", "messages | tojson(indent=10 ** 9)", "2 ** 10 ** 9", "'x'.zfill(10 ** 9)",
               "(" * 5000, "not " * 5000 + "1", "-" * 5000 + "1", "[" * 5000, "messages[::-1]", "messages | sort", "1 / 0", "m.x.y",
               "none is iterable", "tools | length", "strftime_now('%Y' * 100000)", "'a'.join(messages)", "{}[[]]", "'' % messages",
               "'%.99999f' % 1.5", "'{:.99999e}'.format(1.5)", "messages | map('map') | list", "'\\t'.expandtabs(10 ** 9)",
               "dict(messages)", "messages.append(1)", "(1, 2) * 10 ** 9", "'a'.replace('', 'b' * 10 ** 7)", "'a' | truncate(10 ** 9, 0, 'b' * 10 ** 7)"]
BLOCKS = ["{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{{ ns.a.a | tojson }}",
          "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
          "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}", "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
          "{% set ns = namespace(a='ab') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
          "{% set ns = namespace(a=[1, 2]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
          "{% if 1 %}" * 5000, "{% for x in y %}" * 300, "{% macro m() %}" * 300, "{% raw %}", "{#", "{% set x %}", "{% call f() %}x{% endcall %}",
          "{% include 'x' %}", "{% extends 'x' %}", "{% filter upper %}" * 50, "{% with a = 1 %}" * 120 + "{% endwith %}" * 120]


def places(value, path=()):
    """Paths of all values in a JSON tree; of long dicts and lists a part."""
    yield path
    inside = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    for key, part in inside[:40]:
        yield from places(part, (*path, key))


def change_json(tree, rng, extra):
    """One change at a random place in a JSON tree."""
    tree = json.loads(json.dumps(tree))
    path = rng.choice(list(places(tree))[1:] or [()])
    if not path:
        return tree
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    key, old = path[-1], parent[path[-1]]
    kind = rng.randrange(9)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        parent[key] = rng.choice(NUMBERS)
    elif kind == 2:
        parent[key] = rng.choice(TEXTS)
    elif kind == 3:
        parent[key] = rng.choice([None, True, False, [], {}, [None], {"": None}])
    elif kind == 4 and isinstance(old, list):
        parent[key] = (old * rng.choice([2, 50, 5000]))[:200000]
    elif kind == 5 and isinstance(old, (int, float)) and not isinstance(old, bool):
        parent[key] = rng.choice([old + 1, old - 1, -old, old * 2, old * 1000, old / 3, old * 2**32])
    elif kind == 6:
        for _ in range(rng.choice([1, 60, 125, 2000])):
            old = rng.choice([[old], {"type": "Sequence", "normalizers": [old]}]) if rng.random() < 0.5 else [old]
        parent[key] = old
    elif kind == 7 and isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        parent[key] = old[:at] + rng.choice(TEXTS) + old[at:]
    else:
        parent[key] = rng.choice(extra) if extra else rng.choice(NUMBERS)
    return tree


def change_tokenizer(tokenizer, rng):
    kind = rng.randrange(8)
    tokenizer = json.loads(json.dumps(tokenizer))
    part = rng.choice(["normalizer", "pre_tokenizer", "decoder", "post_processor"])
    if kind == 0:
        tokenizer[part] = rng.choice(STEPS)
    elif kind == 1:
        inner = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders",
                 "post_processor": "processors"}[part]
        tokenizer[part] = {"type": "Sequence", inner: rng.choices(STEPS, k=rng.choice([0, 2, 3, 40, 3000]))}
    elif kind == 2:
        tokenizer["model"] = rng.choice(MODELS)
    elif kind == 3:
        n = rng.choice([1, 1000, 20000])
        text = rng.choice(["<x{}>", "a" * 200 + "{}", "{}", ""])
        tokenizer["added_tokens"] = [{"id": rng.choice([i, 300 + i]), "content": text.format(i), "single_word": rng.random() < 0.2,
                                      "lstrip": rng.random() < 0.3, "rstrip": rng.random() < 0.3,
                                      "normalized": rng.random() < 0.5, "special": rng.random() < 0.5} for i in range(n)]
    else:
        for _ in range(rng.choice([1, 1, 3])):
            tokenizer = change_json(tokenizer, rng, STEPS)
    return tokenizer


def change_template(text, rng):
    kind = rng.randrange(7)
    at = rng.randrange(len(text) + 1)
    if kind == 0:
        return text[:at] + "{{ " + rng.choice(EXPRESSIONS) + " }}" + text[at:]
    if kind == 1:
        return rng.choice(BLOCKS) + text
    if kind == 2:
        return text[:at] + text[min(len(text), at + rng.randrange(1, 20)):]
    if kind == 3:
        other = rng.randrange(len(text) + 1)
        return text[:at] + text[other:] * rng.choice([1, 2, 200])
    if kind == 4:
        words = text.replace("'", " ' ").split(" ")
        rng.shuffle(words)
        return " ".join(words)
    if kind == 5:
        return text.replace("m.content", rng.choice(EXPRESSIONS))
    return text[:at] + rng.choice(["{{", "}}", "{%", "%}", "{#", "|", "(", "'", "\0", "\\", "\r", "é", "-%}", "{% endfor %}"]) + text[at:]


def change_bytes(data, rng):
    """Flips, cuts, duplicates or inserts bytes."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:at + rng.randrange(1, 64)]
        elif kind == 2:
            data[at:at] = data[at:at + rng.randrange(1, 64)]
        else:
            data[at:at] = rng.choice([b"\0", b"\xff", b'"', b"{", b"[", b"9" * 30, b"-", b",", b"\\u0000"])
    return bytes(data)


def make_folder(base, seed):
    """The files of one folder, and the name of the changed one."""
    rng = random.Random(seed)
    name = rng.choice(["config.json", "config.json", "generation_config.json", "tokenizer.json", "tokenizer.json",
                       "tokenizer_config.json", "chat_template.jinja", "chat_template.jinja", "model.safetensors"])
    files = {}
    for file, content in base.items():
        raw = rng.random() < 0.15  # byte-level changes, in any file
        if file == "model.safetensors":
            header, data = content
            text = json.dumps(change_json(header, rng, [["F64", "I8", "BF16", "F8_E4M3"][rng.randrange(4)]])
                              if file == name and not raw else header).encode()
            length = len(text)
            if file == name and raw:
                text = change_bytes(text, rng)
                length = rng.choice([len(text), len(text), rng.choice([n for n in NUMBERS if isinstance(n, int) and 0 <= n < 2**64])])
                data = rng.choice([data, data[:len(data) // 2], b""])
            files[file] = length.to_bytes(8, "little") + text + data
            continue
        if file == name and not raw:
            if file == "chat_template.jinja":
                content = change_template(content, rng)
            elif file == "tokenizer.json":
                content = change_tokenizer(content, rng)
            else:
                extra = [{"rope_type": "yarn", "factor": 0}, ["GemmaForCausalLM"], ["Gemma3ForCausalLM"], "linear"]
                if file == "tokenizer_config.json":
                    n = rng.choice([1, 50, 20000])
                    extra = [{str(300 + i): {"content": f"<x{i}>"} for i in range(n)}, [{"name": "default", "template": "{{"}]]
                for _ in range(rng.choice([1, 1, 2, 4])):
                    content = change_json(content, rng, extra)
        text = content if isinstance(content, str) else json.dumps(content)
        data = text.encode("utf-8", "surrogatepass")
        files[file] = change_bytes(data, rng) if file == name and raw else data
    return files, name


def attack(options, base, seed):
    """The outcome, the changed file, and the program's output."""
    files, name = make_folder(base, seed)
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.scratch))
    for file, data in files.items():
        (folder / file).write_bytes(data)

    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (options.memory << 20, options.memory << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (options.seconds, options.seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    command = [options.uqac, "ask", "--model", str(folder), "--device", "cpu", "--threads", "1", "--max-tokens", "4",
               "--json", "hello there, 12  é?"]
    try:
        # on a busy machine, a program that needs one second of CPU time may get much less than that
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, preexec_fn=limits,
                             timeout=options.wall)
        said = run.stderr.decode(errors="replace")
        code = run.returncode
    except subprocess.TimeoutExpired:
        said, code = "", None
    if code is None or -code in (signal.SIGXCPU, signal.SIGKILL):
        outcome = "hang"
    elif "has overflowed its stack" in said or -code == signal.SIGSEGV:
        outcome = "overflow"
    elif "panicked at" in said or code == 101:
        outcome = "panic"
    elif code < 0:
        outcome = "abort"
    else:
        outcome = "ok" if code == 0 else "typed error"
        if code not in (0, 1, 2, 3) or (code != 0 and not said.strip()):
            outcome = "abort"
    if options.keep and outcome not in ("ok", "typed error"):
        shutil.copytree(folder, options.keep / f"{outcome}-{seed}", dirs_exist_ok=True)
    shutil.rmtree(folder)
    return outcome, name, said


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--uqac", default=str(ROOT / "target/release/uqac"))
    arguments.add_argument("--n", type=int, default=1000, help="folders")
    arguments.add_argument("--seed", type=int, default=1, help="of the first folder")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--seconds", type=int, default=2, help="on the CPU")
    arguments.add_argument("--wall", type=int, default=60, help="seconds after which a run that waits is a hang")
    arguments.add_argument("--memory", type=int, default=2048, help="address space, MiB")
    arguments.add_argument("--keep", type=pathlib.Path, help="where folders with what must not be are kept")
    options = arguments.parse_args()
    sys.setrecursionlimit(50_000)  # for json, with deliberately deep nesting
    base = base_folder()
    table, failures = {}, []
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        options.scratch = scratch
        seeds = range(options.seed, options.seed + options.n)
        for seed, (outcome, name, said) in zip(seeds, pool.map(lambda seed: attack(options, base, seed), seeds)):
            row = table.setdefault(name, dict.fromkeys(OUTCOMES, 0))
            row[outcome] += 1
            if outcome not in ("ok", "typed error"):
                failures.append((seed, outcome, name, said))
    print("| changed | " + " | ".join(OUTCOMES) + " |\n| --- |" + " ---: |" * len(OUTCOMES))
    total = {outcome: sum(row[outcome] for row in table.values()) for outcome in OUTCOMES}
    for name, row in [*sorted(table.items()), ("all", total)]:
        print(f"| {name} | " + " | ".join(str(row[outcome]) for outcome in OUTCOMES) + " |")
    for seed, outcome, name, said in failures[:50]:
        print(f"seed {seed}, {name}: {outcome}: {said.strip()[:300]!r}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
