#!/usr/bin/env python3
"""Runs OpenVINO GenAI on a GGUF file: reads one JSON request per line, answers with one JSON line.

usage: openvino_worker.py FILE.gguf THREADS f32|default
requests: {"prompt": P, "tokens": G}: seconds of the prefill, and of a decode step after it
`default` leaves the precision of the products to OpenVINO, which uses bf16 if the CPU supports it.
"""
import itertools
import json
import sys

import numpy as np
import openvino
import openvino_genai

path, threads, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3]
properties = {"INFERENCE_NUM_THREADS": threads}
if precision != "default":
    properties["INFERENCE_PRECISION_HINT"] = precision
pipeline = openvino_genai.LLMPipeline(path, "CPU", **properties)


turns = itertools.count()


def decode(prompt, tokens):
    ids = np.array([[100 + (i * 7919) % 5000 for i in range(prompt)]], dtype=np.int64)
    ids[0, 0] += next(turns)  # it caches the keys and values of prompts that begin alike
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
    result = pipeline.generate(inputs, config)
    measured = result.perf_metrics  # milliseconds
    first, step = measured.get_ttft().mean / 1e3, measured.get_tpot().mean / 1e3
    return {"prefill": first, "step": step, "chosen": list(result.tokens[0])[:8]}


decode(32, 4)
print(json.dumps({"ready": openvino.__version__}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(decode(request["prompt"], request["tokens"])), flush=True)
