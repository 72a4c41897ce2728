"""Input of the analyses in EVIDENCE.md: the samples of a run, and what is read from them."""
import gzip
import json
from itertools import product

import numpy as np

# For a product of probabilities: the score with its logarithm, which is used for ranking.
LOGARITHMS = {"answer_prob": "answer_logprob", "response_prob": "response_logprob", "p_attn": "attn_logprob",
              "p_sim": "sim_logprob", "p": "p_logprob"}
CHAIN_SCORES = ["p_attn", "p_sim", "p"]
# The minimum of a part of G4: a response without digits has no digit to be unsure of.
LEAST_PART = 1e-4
CHAINS = ["random", "random-digits", "digits-matched", "random-content", "similarity", "none"]


def lines(file):
    opened = gzip.open(file, "rt") if file.suffix == ".gz" else open(file)
    with opened as text:
        return [json.loads(line) for line in text]


class Run:
    """The answered, graded items of a run."""

    def __init__(self, folder):
        files = sorted(folder.glob("samples_*.jsonl*"))
        samples = [sample for file in files for sample in lines(file)]
        samples.sort(key=lambda sample: (sample["task"], sample["doc_id"]))
        self.name = folder.name
        self.errors = sum(sample["uq"]["status"] == "error" for sample in samples)
        self.items = {(sample["task"], sample["doc_id"]) for sample in samples}
        graded = [sample for sample in samples if sample["uq"]["status"] != "error"]
        self.graded, self.right = len(graded), sum(sample["metrics"]["acc"] == 1 for sample in graded)
        self.samples = [sample for sample in graded if sample["uq"]["status"] == "ok"]
        self.labels = np.array([sample["metrics"]["acc"] == 1 for sample in self.samples])
        silent = [sample for sample in graded if sample["uq"]["status"] != "ok"]
        self.silent = np.array([sample["metrics"]["acc"] == 1 for sample in silent], bool)
        self.tokens = np.array([len(sample["uq"]["tokens"]["ids"]) for sample in self.samples])
        self.tasks = np.array([sample["task"] for sample in self.samples])
        self.index = {(sample["task"], sample["doc_id"]): i for i, sample in enumerate(self.samples)}
        self.controls = {}
        for i, sample in enumerate(self.samples):
            for point in sample["uq"].get("sweep", []):
                self.add(i, point)
        for file in sorted(folder.glob("sweep_*.jsonl*")):
            task = file.name.removeprefix("sweep_").split(".jsonl")[0]
            for row in lines(file):
                key = next((key for key in [(task, row["doc_id"]), (task.replace("_", ":", 1), row["doc_id"])]
                            if key in self.index), None)
                if key is not None:
                    self.add(self.index[key], row)

    def add(self, i, point):
        setting = point["setting"]
        if set(setting) <= {"chain", "draw"} and setting.get("chain") in CHAINS:
            draws = self.controls.setdefault(setting["chain"], {}).setdefault(setting.get("draw", 0), {})
            draws.setdefault(i, {}).update(point["scores"])

    def score(self, key):
        """The values used for ranking; NaN for an item without one."""
        return self.probability(LOGARITHMS.get(key, key))

    def probability(self, key):
        """The values as stored in the samples."""
        values = [sample["uq"]["scores"].get(key) for sample in self.samples]
        return np.array([np.nan if value is None else value for value in values], float)

    def control(self, chain, key):
        """A score over a control's chains, [draws, items]; NaN where it was not drawn."""
        draws = self.controls.get(chain, {})
        rank = LOGARITHMS[key]
        found = np.full((len(draws), len(self.samples)), np.nan)
        for row, items in zip(found, draws.values()):
            for i, scores in items.items():
                value = scores.get(rank)
                if value is None and scores.get(key):
                    value = np.log(scores[key])
                row[i] = np.nan if value is None else value
        return found


def feature(run, key):
    """Logarithms of products unchanged; log-odds of other probabilities."""
    if key in LOGARITHMS and key != "p":
        return run.score(key)
    p = np.clip(run.probability(key), 1e-12, 1 - 1e-12)
    return np.log(p) - np.log1p(-p)


def text_of(sample):
    """The bytes of the response that belong to each of its tokens."""
    text = sample["resps"][0][0].encode()
    return [text[start:end] for start, end in sample["uq"]["tokens"]["offsets"]]


def has_digit(token):
    return any(48 <= byte <= 57 for byte in token)


def parts(run):
    """−ln of response NLL, response entropy, answer entropy and NLL of the digits: [items, 4]."""
    def of(sample):
        scores, logprobs = sample["uq"]["scores"], sample["uq"]["tokens"]["logprobs"]
        digit = -sum(logprob for token, logprob in zip(text_of(sample), logprobs) if logprob is not None and has_digit(token))
        return [-scores["response_logprob"], -scores["predictive_entropy"], -scores["answer_entropy"], digit]
    return -np.log(np.maximum([of(sample) for sample in run.samples], LEAST_PART))


def same(a, b):
    if a is None:
        return False
    plain = [text.replace(",", "").replace("$", "").strip().rstrip(".") for text in (a, b)]
    try:
        return float(plain[0]) == float(plain[1])
    except ValueError:
        return plain[0] == plain[1]


def agreement(run, samples):
    """The share of an item's first `samples` samples that agree with its response."""
    def of(sample):
        answers = sample["uq"]["self_consistency"]["answers"][:samples]
        return sum(same(answer, sample["uq"]["answer"]["text"]) for answer in answers) / samples
    return np.array([of(sample) for sample in run.samples])


def ties_broken(share, scores, samples):
    """Agreement with ties broken by a score, which is mapped to less than the smallest difference of shares."""
    return share + 0.9 * ((scores - scores.min()) / (np.ptp(scores) or 1) - 0.5) / samples


def passes(run, samples):
    """Total tokens of the response and its first `samples` samples, relative to those of the response."""
    drawn = sum(sum(sample["uq"]["self_consistency"]["response_tokens"][:samples]) for sample in run.samples)
    return 1 + drawn / run.tokens.sum()


def agreeing(sample):
    """Which samples agree with the response as the program's grader compares answers (`\\frac12` and `0.5` are equal): the votes
    that add up to the score. Where several subsets do (a vote of 0), the one closest to `same`."""
    uq = sample["uq"]
    votes, support = uq["self_consistency"]["weights"], uq["scores"]["self_consistency"]
    alike = [same(answer, uq["answer"]["text"]) for answer in uq["self_consistency"]["answers"]]

    def distance(subset):
        apart = abs(sum(vote for vote, taken in zip(votes, subset) if taken) - support)
        return apart > 1e-12, sum(a != b for a, b in zip(subset, alike))
    return min(product([False, True], repeat=len(votes)), key=distance)


def g4_agreement(share, g4):
    """The share of agreeing samples plus σ(G4), as registered for R9."""
    return share + 1 / (1 + np.exp(-g4))
