#!/usr/bin/env python3
"""LM-Polygraph's own benchmark on this engine: its UEManager runs with our calculator (`uqac.lm_polygraph`), and again with its
own on transformers; its estimators must agree, and UQAC is one of them.

    python3 -m venv VENV && VENV/bin/pip install lm-polygraph . # or what its import requires
    VENV/bin/python tests/peers/polygraph_manager.py --model FOLDER [--responses 50]

Each side's float32 pass is within 1e-4 of float64, relative to the largest logit (tests/unit/families.rs), so
log-probabilities and entropies differ by at most 2e-4 of that; sums over a response by that times its number of tokens.
"""

import argparse
import os
import sys

import packages  # noqa: F401  torch's threads

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.pop(0)  # this file's folder: a file in it could be taken for a package of the same name

try:
    import torch
    import uqac
    import uqac.lm_polygraph as ours
    from lm_polygraph.defaults.register_default_stat_calculators import register_default_stat_calculators
    from lm_polygraph.estimators import MaximumSequenceProbability, MeanTokenEntropy, Perplexity
    from lm_polygraph.estimators.max_probability import MaximumTokenProbability
    from lm_polygraph.estimators.token_entropy import TokenEntropy
    from lm_polygraph.generation_metrics.rouge import RougeMetric
    from lm_polygraph.model_adapters import WhiteboxModel
    from lm_polygraph.ue_metrics.pred_rej_area import PredictionRejectionArea
    from lm_polygraph.utils.builder_enviroment_stat_calculator import BuilderEnvironmentStatCalculator
    from lm_polygraph.utils.dataset import Dataset
    from lm_polygraph.utils.factory_estimator import FactoryEstimator
    from lm_polygraph.utils.factory_stat_calculator import StatCalculatorContainer
    from lm_polygraph.utils.manager import UEManager
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

QUESTIONS = [
    ("What is {a} + {b}?", "{sum}"),
    ("A shop sells {a} apples and {b} pears a day. How many pieces of fruit is that in a day?", "{sum}"),
    ("Tom is {a} years old. How old will he be in {b} years?", "{sum}"),
    ("Ann has {a} coins and finds {b} more. How many coins does she have?", "{sum}"),
]


def run(data, calculators, environment, estimators, tokens):
    manager = UEManager(
        data=data, model=environment.model, estimators=estimators, builder_env_stat_calc=environment,
        available_stat_calculators=calculators, generation_metrics=[RougeMetric("rougeL")],
        ue_metrics=[PredictionRejectionArea()], processors=[], ignore_exceptions=False, verbose=False, max_new_tokens=tokens)
    return manager(), manager


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face folder, such as SmolLM2-135M-Instruct's")
    parser.add_argument("--responses", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    names = [{"a": 7 + 3 * i, "b": 5 + i, "sum": 12 + 4 * i} for i in range(arguments.responses)]
    pairs = [[text.format(**numbers) for text in QUESTIONS[i % len(QUESTIONS)]] for i, numbers in enumerate(names)]
    # one at a time: theirs pads the prompts in a batch
    data = lambda: Dataset([question for question, _ in pairs], [answer for _, answer in pairs], batch_size=1)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="eager")
    whitebox = WhiteboxModel(model, AutoTokenizer.from_pretrained(arguments.model), arguments.model, instruct=True)
    environment = BuilderEnvironmentStatCalculator(whitebox)
    theirs = lambda: [MaximumSequenceProbability(), Perplexity(), MeanTokenEntropy(), TokenEntropy(), MaximumTokenProbability()]
    config = {"model": arguments.model, "load": {"v_cache": "f32"}}
    container = StatCalculatorContainer(name="Uqac", stats=ours.STATS, dependencies=[], builder="uqac.lm_polygraph", cfg=config)
    uqac_p = FactoryEstimator()("uqac.lm_polygraph", {"score": "p"})
    found, over_ours = run(data(), [container], environment, [*theirs(), uqac_p], arguments.tokens)
    _, over_theirs = run(data(), register_default_stat_calculators("Whitebox"), environment, theirs(), arguments.tokens)

    tokens = over_ours.stats["greedy_tokens"]
    same = sum(list(a) == list(b) for a, b in zip(tokens, over_theirs.stats["greedy_tokens"], strict=True))
    print(f"{len(tokens)} responses, {sum(map(len, tokens))} tokens; {same} responses of the same tokens\n")
    print("| estimator | n | max difference | of the bound | PRR (ROUGE-L) | |\n| --- | --: | --: | --: | --: | --- |")
    failed = same < len(tokens)
    for (level, name), values in over_ours.estimations.items():
        score = found.get((level, name, "Rouge_rougeL", "prr"))
        score = "" if score is None else f"{score:.3f}"
        expected = over_theirs.estimations.get((level, name))
        if expected is None:
            print(f"| {name} | {len(values)} | | | {score} | beside them |")
            continue
        distance, of_bound = 0.0, 0.0
        for value, other, response in zip(values, expected, tokens, strict=True):
            pairs = list(zip(value, other, strict=True)) if level == "token" else [(value, other)]
            for a, b in pairs:
                bound = 2e-4 * max(1.0, abs(b)) * (len(response) if name == "MaximumSequenceProbability" else 1)
                distance, of_bound = max(distance, abs(a - b)), max(of_bound, abs(a - b) / bound)
        failed |= not of_bound <= 1
        print(f"| {name} | {len(values)} | {distance:.1e} | {of_bound:.1%} | {score} | {'ok' if of_bound <= 1 else 'FAIL'} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
