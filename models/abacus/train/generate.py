"""Draws problems: an endless stream to train on, and the fixed test set.

    python generate.py test ../test.jsonl      writes the test set
    python generate.py fresh ../test.jsonl 2000 fresh.jsonl
                                               writes other problems of its kind, for a calibration (`uqac calibrate`)
    python generate.py show 20                 prints some problems of the training stream
    python generate.py check ../test.jsonl     checks the sums of test and training problems, and that they do not meet
"""

import collections
import dataclasses
import json
import random
import re
import sys

import everyday
import ledgers
import more
import plain
import unseen
from problems import MAX_STEPS, Draw, Problem, Reject

TRAINED = {**ledgers.TEMPLATES, **plain.TEMPLATES, **everyday.TEMPLATES, **more.TEMPLATES}
UNSEEN = unseen.TEMPLATES
# Templates that come up more often than the others: they have the most variety.
WEIGHT = {"gifts": 4, "share": 2, "expression": 3, "recipe_of_numbers": 2, "shopping": 2, "wallet": 1.5, "compare": 1.5}
STEP_WEIGHTS = {1: 14, 2: 20, 3: 21, 4: 18, 5: 15, 6: 12}
TEST_SEED, TEST_SIZE, TEST_UNSEEN = 20240, 1000, 150
# Of problems that are neither trained on nor in the test set.
FRESH_SEED = 20261122


class Stream:
    """Problems of some templates, drawn without end."""

    def __init__(self, rng, templates, test_side):
        self.rng, self.templates, self.test_side = rng, templates, test_side
        self.by_steps = {}
        for steps in range(1, MAX_STEPS + 1):
            names = [name for name, (_, low, high) in templates.items() if low <= steps <= high]
            self.by_steps[steps] = (names, [WEIGHT.get(name, 1) for name in names])

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            steps = self.rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))[0]
            names, weights = self.by_steps[steps]
            problem = self.draw(self.rng.choices(names, weights)[0], steps)
            if problem:
                return problem

    def draw(self, name, steps):
        """A problem of this template on this side of the split, with `steps` steps where the template allows it; or
        none: a template with few numbers may have nothing of that length on the test side."""
        function = self.templates[name][0]
        for _ in range(1000):
            try:
                problem = function(Draw(self.rng, steps))
            except Reject:
                continue
            if problem.test_side() == self.test_side:
                return problem
        return None


def training(seed):
    """Problems to train on: never one of the test side, never one of an unseen template."""
    return Stream(random.Random(seed), TRAINED, test_side=False)


def test_set(seed=TEST_SEED, size=TEST_SIZE, others=()):
    """The fixed test set: no question twice, the unseen templates spread among the others. With another seed, more problems
    of its kind, none of them one of `others` (template and numbers)."""
    rng = random.Random(seed)
    seen, unseen_ = Stream(rng, TRAINED, test_side=True), Stream(rng, UNSEEN, test_side=True)
    problems, questions = [], set()
    while len(problems) < size:
        held_out = len([p for p in problems if p.held_out]) * TEST_SIZE < len(problems) * TEST_UNSEEN
        problem = next(unseen_ if held_out else seen)
        if problem.question in questions or (3, 12, 7) == problem.key() or (problem.template, problem.key()) in others:
            continue
        questions.add(problem.question)
        problems.append(dataclasses.replace(problem, held_out=held_out))
    return problems


def record(problem):
    return {"question": problem.question, "answer": problem.answer, "steps": problem.steps, "template": problem.template,
            "held_out": problem.held_out, "solution": problem.solution}


def wrong(problem):
    """Why a problem's solution cannot be right, or none."""
    sums = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", problem.solution)
    for a, sign, b, result in sums:
        a, b, result = int(a), int(b), int(result)
        holds = {"+": a + b == result, "-": a - b == result, "*": a * b == result, "/": b * result == a}[sign]
        if not holds:
            return f"{a} {sign} {b} is not {result}"
    if len(sums) != problem.steps:
        return f"{len(sums)} sums in {problem.steps} steps"
    if not problem.solution.endswith(f"\nThe answer is \\boxed{{{problem.answer}}}."):
        return "the end does not say the answer"
    known = {n for a, _, b, _ in sums for n in (int(a), int(b))} | {int(r) for *_, r in sums}
    return None if problem.answer in known else "the answer comes out of no step"


def check(path, count=50_000):
    """Stops at the first problem that is wrong or on the wrong side."""
    with open(path, encoding="utf-8") as file:
        tests = [Problem(**json.loads(line)) for line in file]
    stream = training(2)
    trained = [next(stream) for _ in range(count)]
    for problem in tests + trained:
        reason = wrong(problem)
        assert not reason, f"{problem.question}: {reason}"
    asked = {(p.template, p.key()) for p in tests}
    questions = {p.question for p in tests}
    assert len(questions) == len(tests)
    for problem in trained:
        assert (problem.template, problem.key()) not in asked and problem.question not in questions, problem.question
    assert not {p.template for p in trained} & {p.template for p in tests if p.held_out}
    print(f"{len(tests)} test and {count} training problems: all sums hold, none in common")


def main(arguments):
    match arguments:
        case ["test", path]:
            problems = test_set()
            with open(path, "w", encoding="utf-8") as file:
                for problem in problems:
                    file.write(json.dumps(record(problem)) + "\n")
            print("by steps:", sorted(collections.Counter(p.steps for p in problems).items()))
            print("held out:", sum(p.held_out for p in problems), "templates:", len({p.template for p in problems}))
        case ["fresh", path, count, output]:
            with open(path, encoding="utf-8") as file:
                asked = {(p.template, p.key()) for p in (Problem(**json.loads(line)) for line in file)}
            with open(output, "w", encoding="utf-8") as file:
                for problem in test_set(FRESH_SEED, int(count), asked):
                    file.write(json.dumps(record(problem) | {"grader": "number"}) + "\n")
        case ["check", path]:
            check(path)
        case ["show", count]:
            stream = training(1)
            for _ in range(int(count)):
                problem = next(stream)
                print(f"[{problem.template}, {problem.steps}]\n{problem.question}\n{problem.solution}\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
