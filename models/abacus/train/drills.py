"""Sheets of single sums, to practice what a step needs. They are no questions: only their results count in the loss."""

from problems import LARGEST, Draw, Problem, Reject

LEADS = ["", "", "So", "Then", "That is", "Together", "Left are"]
LEAST, MOST = 3, 9


def numbers(d):
    """Two numbers, a sign and the result: differences and quotients more often, as they are learned last."""
    sign = d.rng.choices("+-*/", (24, 38, 20, 18))[0]
    running = d.between(3, d.one((60, 100, 200, 400, 1000)))
    if sign == "+":
        a, b = running, d.number()
        a, b = (a, b) if d.chance(0.5) else (b, a)
        return a, sign, b, a + b
    if sign == "-":
        b = d.below(running)
        return running, sign, b, running - b
    if sign == "*":
        a, b = (d.few(), d.size()) if d.chance(0.7) else (d.between(10, 250), d.between(2, 5))
        a, b = (a, b) if d.chance(0.5) else (b, a)
        return a, sign, b, a * b
    b = d.between(2, 12)
    result = d.between(1, d.one((12, 25, 60)))
    return result * b, sign, b, result


def sheet(rng):
    """The pieces of a sheet's text in order, each with whether it counts."""
    pieces, sums = [], rng.randint(LEAST, MOST)
    while len(pieces) < 3 * sums:
        d = Draw(rng, 1)
        try:
            a, sign, b, result = numbers(d)
        except Reject:
            continue
        # What the test set may ask as it stands is not practiced.
        if result > LARGEST or Problem("expression", f"{a} {sign} {b}", "", result, 1).test_side():
            continue
        lead = d.one(LEADS)
        pieces += [(f"{lead} {a} {sign} {b} =".strip(), False), (f" {result}", True), (".\n", False)]
    return pieces
