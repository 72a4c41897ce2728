"""The tables that tables.py prints beyond the registered questions, and the registered table of items without an answer."""
import numpy as np
from measures import SEED, auroc, held_out, holm, less, shown, two_sided
from samples import feature, has_digit, parts, text_of

G4 = "G4, spreads of the other runs, over log P(response), AUROC"


def unanswered(run):
    """The registered second table: items without an answer get the lowest confidence. Also the accuracy at P ≥ 0.9."""
    silent = len(run.silent)
    print(f"\n### {run.name}: with the {silent} items without an answer as the lowest\n\n| score | AUROC, answered | AUROC, all |\n| --- | --- | --- |")
    for key in ["p", "p_sim", "p_attn", "response_prob", "min_token_prob"]:
        scores = run.score(key)
        among = np.isfinite(scores)
        labels, scores = run.labels[among], scores[among]
        lowest = np.full(silent, scores.min() - 1)
        print(f"| {key} | {auroc(scores, labels):.3f} | {auroc(np.r_[scores, lowest], np.r_[labels, run.silent]):.3f} |")
    high = run.probability("p") >= 0.9
    print(f"\nP is at least 0.9 for {high.sum()} answers, of which {100 * run.labels[high].mean():.0f} % are right.")


def same_length(run, boot):
    """Among pairs of a correct and an incorrect answer whose responses differ by at most 10 % in length, the share ranked
    correctly."""
    right, wrong = np.flatnonzero(run.labels), np.flatnonzero(~run.labels)
    lengths = run.tokens[right][:, None] / run.tokens[wrong][None, :]
    alike = (np.maximum(lengths, 1 / lengths) <= 1.1).astype(np.float32)
    draws = boot.counts[:2000]

    def ranked(key):
        scores = run.score(key)
        a, b = scores[right][:, None], scores[wrong][None, :]
        return alike * ((a > b) + 0.5 * (a == b)).astype(np.float32)

    def share(won):
        pairs = ((draws[:, right] @ alike) * draws[:, wrong]).sum(1)
        return won.sum() / alike.sum(), ((draws[:, right] @ won) * draws[:, wrong]).sum(1) / pairs
    (p, p_drawn), (log_p, log_p_drawn) = share(ranked("p")), share(ranked("response_prob"))
    print(f"\n### {run.name}: pairs of like length ({int(alike.sum())})\n\nP {shown(p, p_drawn)}, log P(response) {shown(log_p, log_p_drawn)}, "
          f"difference {shown(log_p - p, log_p_drawn - p_drawn, '+')}")
    return {"Q1 among pairs of like length: log P(response) over P": (log_p - p, log_p_drawn - p_drawn)}


def after_a_fit(run, boot):
    """Q4, with an interval."""
    found = held_out(run, boot, feature(run, "response_prob"), feature(run, "p"))
    return {"Q4: log P(response) over P, held-out Brier": found}


def digits(run, boot):
    """Compares the product over the chain's digit tokens (and the answer's) with that over as many random ones, 20 draws. Returns
    the difference of AUROCs; prints the number of digits, and the chain's share of the response."""
    rng = np.random.default_rng(SEED)
    own, drawn, fewer, sizes, shares, kinds = [], [], 0, [], [], []
    for sample in run.samples:
        uq = sample["uq"]
        logprobs = np.array([0.0 if one is None else one for one in uq["tokens"]["logprobs"]])
        digit = np.array([has_digit(token) for token in text_of(sample)])
        start, end = [position - uq["n_instr"] for position in uq["answer"]["tokens"]]
        chain = np.array([link["row"] + 1 for link in uq["chain"] if link["from"] is not None], int)
        pool = np.flatnonzero(digit[:start])
        mine = chain[digit[chain]]
        answer = logprobs[start:end].sum()
        own.append(answer + logprobs[mine].sum())
        picked = [rng.choice(pool, min(len(mine), len(pool)), replace=False) for _ in range(20)]
        drawn.append([answer + logprobs[one].sum() for one in picked])
        fewer += len(pool) < len(chain)
        sizes.append(len(chain))
        shares.append(len(chain) / len(logprobs))
        kinds.append(len(mine) / max(1, len(chain)))
    own, drawn = np.array(own), np.array(drawn).T
    value = auroc(own, run.labels) - np.mean([auroc(one, run.labels) for one in drawn])
    everyone = np.ones(len(own), bool)
    resampled = boot.auroc(own, run.labels, everyone) - np.mean([boot.auroc(one, run.labels, everyone) for one in drawn], axis=0)
    print(f"\n### {run.name}: the chain\n\n{np.mean(sizes):.1f} tokens beside the answer's, {100 * np.mean(shares):.1f} % of the response, "
          f"{100 * np.mean(kinds):.0f} % of them with a digit; in {100 * fewer / len(own):.0f} % of the responses fewer digits than that, so "
          f"that random-digits are all of them.\n\nDigits of the chain, less as many at random: {shown(value, resampled, '+')}")
    return {"digits of the chain over as many at random, AUROC": (value, resampled)}


def g4(runs, boots):
    """G4, each part divided by its standard deviation in the other runs; the frozen constants come from all runs."""
    if len(runs) < 2:
        return [{} for _ in runs]
    found = [parts(run) for run in runs]
    spreads = np.array([one.std(axis=0) for one in found])
    print("\n## G4\n\nStandard deviations of the parts' −ln, mean over runs: " + ", ".join(f"{sd:.3f}" for sd in spreads.mean(axis=0)))
    print("\n| run | G4 | log P(response) | difference [95 %] |\n| --- | --- | --- | --- |")
    asked = []
    for i, (run, boot) in enumerate(zip(runs, boots)):
        scores = (found[i] / np.delete(spreads, i, axis=0).mean(axis=0)).mean(axis=1)
        base = run.score("response_prob")
        value, resampled = less(run, boot, scores, base)
        print(f"| {run.name} | {auroc(scores, run.labels):.3f} | {auroc(base, run.labels):.3f} | {shown(value, resampled, '+')} |")
        asked.append({G4: (value, resampled)})
    return asked


def family(runs, asked):
    """Holm's correction over all tests of Q2 jointly."""
    found = []
    for run, answers in zip(runs, asked):
        for question, (difference, resampled) in answers.items():
            if question.startswith("Q2: "):
                found.append((two_sided(resampled), f"{run.name}, {question[4:]}", difference))
    found.sort()
    print(f"\n## Holm's correction over all {len(found)} tests of Q2\n\n| test | difference | p | corrected |\n| --- | --- | --- | --- |")
    for p, name, difference, corrected in holm(found):
        if corrected < 0.05:
            print(f"| {name} | {difference:+.3f} | {p:.4f} | {corrected:.4f} |")
