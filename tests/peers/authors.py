#!/usr/bin/env python3
"""Abacus's responses through the authors' own code (github.com/Yinghao-Li/UQAC), over transformers' eager attention in float64.

    tests/peers/authors.py CHECKOUT     (from PyPI: torch transformers datasets accelerate h5py natsort pandas scikit-learn seqlbtoolkit pytextspan)

Writes tests/data/authors.jsonl.gz, which `cargo test --release golden_uqac` compares profile `reference` with: their answer span, chain,
similarity filter, ensemble and scores. Their code is imported, not copied; steps of theirs that are part of a longer function (top-5
probabilities, slicing, the ensemble's products) are done here as there. Items whose chain differs in float32 are left out.
"""

import functools
import gzip
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL, ITEMS = ROOT / "models/abacus", ROOT / "models/abacus/golden.jsonl"


def their_code(checkout):
    sys.path.insert(0, checkout)
    sys.modules.setdefault("vllm", types.SimpleNamespace(LLM=None, SamplingParams=None))  # not used here
    from src.attrs import TokenAttributes, TokenAttributesProcessor
    from src.dataset.processor import expand_samples_for_ens_inference
    from src.eval import get_gsm8k_answer_token_span
    import importlib.util
    spec = importlib.util.spec_from_file_location("their_eval", Path(checkout) / "run/eval/eval.py")
    their_eval = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(their_eval)
    return TokenAttributes, TokenAttributesProcessor, expand_samples_for_ens_inference, get_gsm8k_answer_token_span, their_eval


def attributes(code, model, tokenizer, ids, n_instr, instance):
    """Their `infer_uq` for one response."""
    TokenAttributes, TokenAttributesProcessor, _, span, _ = code
    with torch.inference_mode():
        out = model(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
    probs, tokens = torch.topk(torch.softmax(out.logits[0], dim=-1), 5, dim=-1)
    data = TokenAttributes(
        instance_ids=[instance], tkresp_int_list=[torch.tensor(ids[n_instr:])], top5_tkresp_int_list=[tokens[n_instr:]],
        top5_tkresp_prob_list=[probs[n_instr:]], attn_mats_list=[torch.stack([a[0] for a in out.attentions])[..., n_instr:, :].contiguous()],
        output_logits_list=[out.hidden_states[-1][0, n_instr:]])
    processor = TokenAttributesProcessor(data=data, tokenizer=tokenizer, extract_answer_span_func=span)
    # scripts/infer-uq.sh
    failed = processor.process(
        disable_progress_bar=True, attention_reduction="max", n_attention_heads=16, backtracking_buffer_size=3,
        backtracking_threshold=0.5, minimum_attention_chain_length=5, similarity_aggregation="sim-mean")
    assert not failed, instance
    return data


def ensemble(code, model, tokenizer, sample, ids, n_instr):
    """Their `infer_ens` for one response: per variant, what is replaced and the two products."""
    sample = code[2](dict(sample), tokenizer=tokenizer, dataset_name="gsm8k", model_name="abacus", attn_kwargs={"sims-k": 10, "sims-threshold": 0.0})
    assert sample["keep_instance"], sample["idx"]
    first, members = sample["expanded"][0], []
    assert first["input_tks"].tolist() == ids, sample["idx"]
    for variant in sample["expanded"]:
        with torch.inference_mode():
            probs = torch.softmax(model(variant["input_tks"][None]).logits[0], dim=-1)
        product = lambda rows, tokens: probs[rows, tokens].clamp_min(1e-12).log().sum().item()
        changed = (variant["input_tks"] != first["input_tks"]).nonzero().flatten().tolist()
        at = changed[0] if changed else None
        members.append({"pos": at, "token": None if at is None else variant["input_tks"][at].item(),
                        "log_ans": product(variant["ans_src_ids"], variant["ans_tks"]),
                        "log_seq": product(variant["attn_src_ids"], variant["attn_tks"])})
    return first["attn_src_ids"].sub(n_instr).tolist(), members


def scores(code, instance, data, members):
    import pandas as pd
    frame = pd.DataFrame([{
        "idx": instance, "tkresp_int": data.tkresp_int_list[0].numpy(), "tkattn_srcidx": data.tkattn_srcidx_list[0].numpy(),
        "tkans_srcidx": data.tkans_srcidx_list[0].numpy(), "tkattn_to_tkans_sims": data.tkattn_to_tkans_sims_list[0].numpy(),
        "top5_tkresp_int": data.top5_tkresp_int_list[0].numpy(), "top5_tkresp_prob": data.top5_tkresp_prob_list[0].numpy(),
        "correctness": False, "ens_marginal": sum(np.exp(m["log_ans"]) * np.exp(m["log_seq"]) for m in members)}])
    values = code[4].get_eval_values(frame).iloc[0]
    return {key: float(value) for key, value in values.items() if key not in ("idx", "label")}


def main():
    code = their_code(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    # it was written for transformers 4, where this gave the ids
    tokenizer.apply_chat_template = functools.partial(tokenizer.apply_chat_template, return_dict=False)
    models = [AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype, attn_implementation="eager").eval() for dtype in (torch.float64, torch.float32)]
    lines = []
    for number, item in enumerate(map(json.loads, ITEMS.read_text().splitlines())):
        # as their code does: the conversation is rendered and tokenized again, the template's end included
        prompt = tokenizer(item["prompt"], add_special_tokens=False)["input_ids"]
        messages = [{"role": "user", "content": item["question"]}, {"role": "assistant", "content": item["text"]}]
        ids = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False)["input_ids"]
        instance = f"abacus.{number}"
        data, rounded = (attributes(code, model, tokenizer, ids, len(prompt), instance) for model in models)
        chain = data.tkattn_srcidx_list[0].tolist()
        if chain != rounded.tkattn_srcidx_list[0].tolist():
            print(f"{instance}: float32 has another chain: left out", file=sys.stderr)
            continue
        sample = {"idx": instance, "instruction": item["question"], "generated": item["text"], **{
            key: getattr(data, f"{key}_list")[0].tolist() for key in
            ("tkresp_int", "tkattn_srcidx", "tkans_srcidx", "tkattn_to_tkans_sims", "top5_tkresp_int", "top5_tkresp_prob")}}
        kept, members = ensemble(code, models[0], tokenizer, sample, ids, len(prompt))
        lines.append(json.dumps({
            "id": instance, "dataset": "gsm8k", "input_ids": ids, "n_instr": len(prompt), "ans_src": data.tkans_srcidx_list[0].tolist(),
            "chain_src": chain, "chain_scores": data.tkattn_scores_list[0].tolist(), "sims": data.tkattn_to_tkans_sims_list[0].tolist(),
            "sim_src": kept, "ensemble": members, "scores": scores(code, instance, data, members)}))
    (ROOT / "tests/data/authors.jsonl.gz").write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))
    print(f"{len(lines)} items", file=sys.stderr)


if __name__ == "__main__":
    main()
