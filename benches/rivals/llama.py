#!/usr/bin/env python3
"""Runs llama.cpp, or its fork ik_llama.cpp: reads one JSON request per line, answers with one JSON line.

usage: llama.py llama_cpp|ik_llama_cpp FILE.gguf THREADS CONTEXT
requests: {"prompt": P, "tokens": G}: seconds of the prefill, and of a decode step after it
"""
import ctypes
import importlib
import json
import os
import sys
import time

import numpy as np

L = importlib.import_module(sys.argv[1])
L = getattr(L, "_ctypes_api", L)  # ik_llama.cpp's package keeps its functions there
path, threads, context_length = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if hasattr(L, "llama_log_set"):
    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
else:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
L.llama_backend_init()
model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
options = L.llama_context_default_params()
options.n_ctx, options.n_batch, options.n_ubatch = context_length, 512, 512
options.n_threads = options.n_threads_batch = threads
context = L.llama_init_from_model(model, options)
vocabulary = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
batch = L.llama_batch_init(512, 0, 1)


def run(tokens, first):
    """Runs tokens at positions `first` onwards, in passes of 512; returns the most probable next token."""
    for start in range(0, len(tokens), 512):
        part = tokens[start : start + 512]
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + start + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, start + i == len(tokens) - 1
        if L.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
    logits = L.llama_get_logits_ith(context, batch.n_tokens - 1)
    return int(np.argmax(np.ctypeslib.as_array(logits, shape=(vocabulary,))))


def decode(prompt, tokens):
    if hasattr(L, "llama_memory_clear"):
        L.llama_memory_clear(L.llama_get_memory(context), True)
    else:
        L.llama_kv_cache_clear(context)
    ids = [100 + (i * 7919) % 5000 for i in range(prompt)]
    start = time.perf_counter()
    token = run(ids, 0)
    first = time.perf_counter()
    chosen = [token]
    for i in range(tokens - 1):
        token = run([token], prompt + i)
        chosen.append(token)
    step = (time.perf_counter() - first) / max(tokens - 1, 1)
    return {"prefill": first - start, "step": step, "chosen": chosen[:8]}


decode(32, 4)
print(json.dumps({"ready": sys.argv[1]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(decode(request["prompt"], request["tokens"])), flush=True)
