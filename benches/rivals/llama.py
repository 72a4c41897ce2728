#!/usr/bin/env python3
"""llama.cpp at work: reads a JSON request a line, answers with a JSON line.

usage: llama.py FILE.gguf THREADS
requests: {"work": "decode", "prompt": P, "tokens": G}: seconds of the prompt's pass, of a decode step
"""
import ctypes
import json
import sys
import time

import llama_cpp as L
import numpy as np

path, threads = sys.argv[1], int(sys.argv[2])
quiet = L.llama_log_callback(lambda level, text, data: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
L.llama_backend_init()
model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
options = L.llama_context_default_params()
options.n_ctx, options.n_batch, options.n_ubatch = 2048, 512, 512
options.n_threads = options.n_threads_batch = threads
context = L.llama_init_from_model(model, options)
vocabulary = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))


def run(tokens):
    """One pass; the likeliest next token."""
    array = (L.llama_token * len(tokens))(*tokens)
    if L.llama_decode(context, L.llama_batch_get_one(array, len(tokens))) != 0:
        sys.exit("llama_decode failed")
    return int(np.argmax(np.ctypeslib.as_array(L.llama_get_logits_ith(context, -1), shape=(vocabulary,))))


def decode(prompt, tokens):
    L.llama_memory_clear(L.llama_get_memory(context), True)
    ids = [100 + (i * 7919) % 5000 for i in range(prompt)]
    start = time.perf_counter()
    token = run(ids)
    first = time.perf_counter()
    chosen = [token]
    for _ in range(tokens - 1):
        token = run([token])
        chosen.append(token)
    step = (time.perf_counter() - first) / max(tokens - 1, 1)
    return {"prefill": first - start, "step": step, "chosen": chosen[:8]}


decode(32, 4)
print(json.dumps({"ready": L.llama_print_system_info().decode()}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(decode(request["prompt"], request["tokens"])), flush=True)
