#!/usr/bin/env python3
"""Random settings of special tokens, and the ids that transformers gives with them.

    tests/peers/special_tokens.py [COUNT]      (transformers >= 5.24 from PyPI; default: 600)

Writes tests/data/special_tokens.jsonl.gz: first the texts, then one line per folder with the files that differ from those of
models/abacus (`added_tokens` and `normalizer` are those of tokenizer.json) and the ids of each text, or null if transformers
rejects the folder. `cargo test special_tokens_are_read` compares.
"""

import gzip
import json
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/data/special_tokens.jsonl.gz"
ABACUS = ROOT / "models/abacus"
# of 800 further folders, those that differed
LATER = [10325, 10662]
STANDARD = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
KNOWN = ["<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
# no two are equal in lower case: which of them then counts differs from run to run
NEW = ["<|note|>", "<|tool|>", "[SEP]", "<image>", "Tom", "<|Mark|>"]
TEXTS = [
    "Tom has 3 boxes.",
    "<|user|>What is 17 + 25?<|end|>",
    "<|user|> What is 17 + 25? <|end|> ",
    "a <|note|> b",
    "a<|note|>b",
    "a\n<|tool|>\n b",
    "<|note|><|tool|><|user|>",
    "x[SEP]y [SEP] z",
    "<image> <image>\t<image>",
    "Tomorrow Tom and Tom.",
    "Tom",
    "TOM tom tOm",
    "<|Mark|> <|MARK|> <|USER|> <|Tool|>",
    " <|pad|>  <|pad|> ",
    "<|assistant|>\n\n<|system|> a",
    "1<|end|>2 <|end|>3",
    "<|begin|><|begin|> a",
    "A<|user|>B<|assistant|>C",
    "<|user|> [SEP] <image> Tom <|note|> <|tool|>",
    "",
]


def flags(draw, special=None):
    names = ["lstrip", "rstrip", "normalized", "single_word"]
    found = {name: draw.random() < 0.25 for name in names if draw.random() < 0.8}
    if special is None or draw.random() < 0.5:
        found["special"] = draw.random() < 0.7 if special is None else special
    return found


def token(draw, text):
    kind = draw.random()
    return text if kind < 0.6 else {"__type": "AddedToken", "content": text} | flags(draw)


def some(draw, most=3):
    return draw.sample(NEW + KNOWN, draw.randint(0, most))


def folder(draw):
    """The changes of a folder's files."""
    config = json.loads((ABACUS / "tokenizer_config.json").read_text())
    added = json.loads((ABACUS / "tokenizer.json").read_text())["added_tokens"]
    files = {"tokenizer_config.json": config}
    del config["chat_template"]
    for entry in added:
        if draw.random() < 0.2:
            entry |= {name: draw.random() < 0.4 for name in ("lstrip", "rstrip", "normalized", "single_word")}
            entry["special"] = draw.random() < 0.7
    for key in draw.sample(STANDARD, draw.randint(0, 3)):
        config[key] = draw.choice([None, token(draw, draw.choice(NEW + KNOWN))])
    for key in draw.sample(["image_token", "note_token", "think_token"], draw.randint(0, 2)):
        config[key] = token(draw, draw.choice(NEW))
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if draw.random() < 0.35:
            tokens = [token(draw, text) for text in some(draw)]
            config[key] = draw.choice([tokens, tokens, None])
    if draw.random() < 0.25:
        config["extra_special_tokens"] = {f"x{i}_token": text for i, text in enumerate(some(draw))}
    if draw.random() < 0.2:
        config["split_special_tokens"] = draw.choice([True, False])
    if draw.random() < 0.35:
        vocabulary = {entry["id"]: {"content": entry["content"]} | flags(draw) for entry in added}
        for index, text in enumerate(draw.sample(NEW, draw.randint(0, 2))):
            vocabulary[1536 + index] = {"content": text} | flags(draw)
        config["added_tokens_decoder"] = {str(i): v for i, v in vocabulary.items() if draw.random() < 0.9}
    if draw.random() < 0.3:
        old = {key: draw.choice(NEW + KNOWN) for key in draw.sample(STANDARD, draw.randint(0, 2))}
        for key in list(old):
            if draw.random() < 0.4:
                names = ("lstrip", "rstrip", "normalized", "single_word")
                old[key] = {"content": old[key]} | {name: draw.random() < 0.3 for name in names}
        if draw.random() < 0.4:
            old["additional_special_tokens"] = some(draw)
        elif draw.random() < 0.4:
            old["extra_special_tokens"] = draw.choice([some(draw), {"old_token": draw.choice(NEW)}])
        files["special_tokens_map.json"] = old
    if draw.random() < 0.1:
        files["added_tokens.json"] = {text: 1536 + i for i, text in enumerate(draw.sample(NEW, draw.randint(1, 2)))}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    normalizer = draw.choice([None, None, {"type": "Lowercase"}, strip])
    return {"files": files, "added_tokens": added, "normalizer": normalizer}


def ids(case):
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        shutil.copy(ABACUS / "config.json", path)
        whole = json.loads((ABACUS / "tokenizer.json").read_text())
        whole |= {"added_tokens": case["added_tokens"], "normalizer": case["normalizer"]}
        (path / "tokenizer.json").write_text(json.dumps(whole))
        for file, value in case["files"].items():
            (path / file).write_text(json.dumps(value))
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
            return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        except Exception as error:  # whatever it is, the folder is rejected
            return None if "-v" not in sys.argv else print(type(error).__name__, str(error)[:150])


def main():
    logging.disable(logging.WARNING)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    with gzip.GzipFile(OUT, "wb", mtime=0) as out:
        out.write((json.dumps(TEXTS) + "\n").encode())
        accepted = 0
        for seed in [*range(count), *LATER]:
            case = folder(random.Random(seed))
            case["expected"] = ids(case)
            accepted += case["expected"] is not None
            out.write((json.dumps(case) + "\n").encode())
    print(f"{OUT}: {count + len(LATER)} folders, {count + len(LATER) - accepted} of them rejected by transformers")


main()
