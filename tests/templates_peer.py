#!/usr/bin/env python3
"""Renders chat templates with Jinja2 as set up by transformers, and with uqac, and counts agreements.

    python3 tests/templates_peer.py [--uqac target/release/uqac] [--folder FOLDER ...] [--packages]

Renders the snippets of tests/data/template_snippets.txt, every *.jinja file below each FOLDER, and with --packages every
*.jinja file of the Python packages installed here. Needs the package jinja2. Both render one user message "Hello", with a
generation prompt. An error on both sides counts as agreement: their messages differ. Exits with 1 if they disagree on a
snippet, or agree on one that is marked as a known difference.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MESSAGES = [{"role": "user", "content": "Hello"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def environment():
    """The environment in which transformers.utils.chat_template_utils compiles templates."""
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("text"), [], [], body).set_lineno(line)

        def text(self, caller):
            return caller()

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(format):
        import datetime

        return datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None).strftime(format)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def by_jinja2(env, source):
    try:
        template = env.from_string(source)
        return template.render(messages=MESSAGES, tools=None, documents=None, add_generation_prompt=True, **TOKENS), None
    except Exception as e:  # a template may raise anything
        return None, f"{type(e).__name__}: {e}"


def tiny_model(folder):
    """A Llama of one layer with all-zero weights and a byte vocabulary."""
    hidden, inner, vocab = 16, 16, 258
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
              "vocab_size": vocab, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
              "num_hidden_layers": 1, "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "tie_word_embeddings": True, "eos_token_id": 257}
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for name, shape in {"input_layernorm": [hidden], "post_attention_layernorm": [hidden],
                        "self_attn.q_proj": [16, hidden], "self_attn.k_proj": [16, hidden],
                        "self_attn.v_proj": [16, hidden], "self_attn.o_proj": [hidden, 16],
                        "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
                        "mlp.down_proj": [hidden, inner]}.items():
        shapes[f"model.layers.0.{name}.weight"] = shape
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    (folder / "config.json").write_text(json.dumps(config))
    words = {"<s>": 256, "</s>": 257, **{chr(0x100 + i): i for i in range(256)}}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                 "post_processor": None, "decoder": None,
                 "model": {"type": "WordLevel", "unk_token": chr(0x100), "vocab": words}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def by_uqac(uqac, base, source):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for file in base.iterdir():
            (folder / file.name).symlink_to(file)
        config = {"chat_template": source, **TOKENS}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        command = [uqac, "inspect", str(folder), "--json", "--device", "cpu"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if run.returncode != 0:
            return None, run.stderr.strip()
        found = json.loads(run.stdout)["tokenizer"]["chat_template_for_hello"]
        return (None, found) if found.startswith("cannot be used: ") else (found, None)


def quoted(text):
    """A text as `uqac inspect` shows it: src/report/term/sanitize.rs."""
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}

    def shown(c):
        if c in escapes:
            return escapes[c]
        if c < " ":
            return chr(0x2400 + ord(c))
        if c == "\x7f":
            return "\u2421"
        hidden = [("\x80", "\x9f"), ("\u061c", "\u061c"), ("\u200e", "\u200f"), ("\u2028", "\u202e"),
                  ("\u2060", "\u206f"), ("\ufeff", "\ufeff"), ("\ufff9", "\ufffb"), ("\U000e0000", "\U000e007f")]
        return "\ufffd" if any(low <= c <= high for low, high in hidden) else c

    return '"' + "".join(map(shown, text)) + '"'


def snippets():
    for line in (HERE / "data/template_snippets.txt").read_text().splitlines():
        if not line or line.startswith("# "):
            continue
        template = line.removeprefix("! ")
        if template.startswith("= "):
            yield line, "{{ " + template[2:] + " }}"
        else:
            # a line break; in an expression \n is Jinja's own escape
            yield line, template.replace("\\r", "\r").replace("\\n", "\n") if "{{ 'a\\" not in template else template


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--uqac", default=str(HERE.parent / "target/release/uqac"))
    arguments.add_argument("--folder", action="append", default=[], type=pathlib.Path)
    arguments.add_argument("--packages", action="store_true")
    options = arguments.parse_args()
    try:
        env = environment()
    except ImportError as e:
        print(f"SKIPPED: {e}")
        return 0
    folders = list(options.folder)
    if options.packages:
        folders.append(pathlib.Path(sysconfig.get_paths()["purelib"]))
    suites = {"snippets": list(snippets())}
    for folder in folders:
        files = sorted(folder.rglob("*.jinja"))
        suites[str(folder)] = [(str(file.relative_to(folder)), file.read_text()) for file in files]
    failed = False
    with tempfile.TemporaryDirectory() as base, concurrent.futures.ThreadPoolExecutor(2) as pool:
        base = pathlib.Path(base)
        tiny_model(base)
        for suite, templates in suites.items():
            ours = pool.map(lambda t: by_uqac(options.uqac, base, t[1]), templates)
            agree = 0
            for (name, source), (found, error) in zip(templates, ours):
                expected, refused = by_jinja2(env, source)
                agrees = found == (None if expected is None else quoted(expected))
                if agrees != (suite == "snippets" and name.startswith("! ")):
                    agree += 1
                    continue
                failed |= suite == "snippets"
                print(f"{name}\n  jinja2: {refused if expected is None else repr(expected)}")
                print(f"  uqac:   {error if found is None else repr(found)}")
            print(f"{suite}: {agree} of {len(templates)} as expected")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
