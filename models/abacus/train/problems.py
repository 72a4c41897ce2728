"""What a problem is, how one is drawn, and which side of the train/test split it lies on."""

import hashlib
import random
import re
from dataclasses import dataclass

LARGEST = 9999
MAX_STEPS = 6
# How often the numbers of a problem are small, middling, large.
LEVEL_WEIGHTS = (6, 4, 1)
# One number tuple in TEST_SHARE belongs to the test side; the training stream never shows it.
TEST_SHARE = 16
# Number tuples kept out of training whatever side they hash to: those of the README's example.
RESERVED = {(3, 12, 7)}


class Reject(Exception):
    """The drawn numbers do not make a sensible problem; draw again."""


@dataclass
class Problem:
    template: str
    question: str
    solution: str
    answer: int
    steps: int
    held_out: bool = False

    def key(self):
        """The numbers of the question in order: what makes two problems of a template the same problem."""
        return tuple(int(n) for n in re.findall(r"\d+", self.question))

    def test_side(self):
        """Whether this problem belongs to the test side. It depends on the template and the numbers only, so that a
        problem with other names and things, but the same numbers, lies on the same side."""
        if self.key() in RESERVED:
            return True
        digest = hashlib.sha256(f"{self.template}|{self.key()}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % TEST_SHARE == 0


class Draw:
    """Random choices of one problem, and the steps of its solution."""

    def __init__(self, rng: random.Random, steps: int):
        self.rng = rng
        self.goal = steps
        self.lines = []
        # How large the numbers of this problem are: 0 to 2.
        self.level = rng.choices((0, 1, 2), LEVEL_WEIGHTS)[0]

    # Choices

    def one(self, options):
        return self.rng.choice(options)

    def some(self, options, count):
        return self.rng.sample(options, count)

    def chance(self, p):
        return self.rng.random() < p

    def between(self, low, high):
        return self.rng.randint(low, high)

    def few(self):
        """A factor: a count of groups, hours, days."""
        return self.rng.randint(2, (9, 12, 15)[self.level])

    def number(self):
        """A plain count."""
        low, high = ((3, 25), (10, 99), (60, 600))[self.level]
        return self.rng.randint(low, high)

    def size(self):
        """The size of a group, a price or a rate: what a few is multiplied with."""
        low, high = ((2, 12), (6, 30), (15, 99))[self.level]
        return self.rng.randint(low, high)

    def below(self, limit):
        """A count that can be taken from `limit` and leaves something."""
        if limit < 3:
            raise Reject
        high = limit - 1
        if self.chance(0.7):
            high = max(1, min(high, (20, 60, 400)[self.level]))
        return self.rng.randint(1, high)

    def divisor(self, n, low=2, high=12):
        """A number from `low` to `high` that divides `n`, and is less than it."""
        fits = [k for k in range(low, high + 1) if k < n and n % k == 0]
        if not fits:
            raise Reject
        return self.rng.choice(fits)

    # Steps

    def step(self, lead, a, sign, b, unit=""):
        """Adds a line of the solution and gives its result. `lead` says what is worked out."""
        if sign == "+":
            result = a + b
        elif sign == "-":
            result = a - b
        elif sign == "*":
            result = a * b
        else:
            if b == 0 or a % b:
                raise Reject
            result = a // b
        if result < 1 or result > LARGEST:
            raise Reject
        lead = f"{lead} " if lead else ""
        unit = f" {unit}" if unit and not unit.startswith(".") else ""
        self.lines.append(f"{lead}{a} {sign} {b} = {result}{unit}.")
        return result

    def total(self, lead, numbers, unit=""):
        """Adds the numbers up, one step for each but the first."""
        result = numbers[0]
        for number in numbers[1:]:
            result = self.step(lead, result, "+", number, unit)
        return result

    def finish(self, template, parts, ask, answer):
        """The problem. Text without a number, or with one that plays no role, may come before the question."""
        parts = [p for p in parts if p]
        if not 1 <= len(self.lines) <= MAX_STEPS:
            raise Reject
        body = " ".join(parts + [ask])
        solution = "\n".join(self.lines) + f"\nThe answer is \\boxed{{{answer}}}."
        return Problem(template, capitals(body), capitals(solution), answer, len(self.lines))


def capitals(text):
    """The first letter of each sentence and line made large; the unknown x stays small."""
    return re.sub(r"(^|[.?!]\s+|\n)(?!x )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)
