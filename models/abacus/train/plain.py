"""Arithmetic without a story."""

from problems import Reject


def expression(d):
    """An expression with brackets, worked out from the inside."""
    text, value, _ = tree(d, d.goal)
    ask = d.one(["What is {}?", "Calculate {}.", "Work out {}.", "{} = ?", "Find the value of {}."])
    return d.finish("expression", [], ask.format(text), value)


def tree(d, size):
    """An expression of `size` operations: text, value, and how tightly it binds (3 a number, 2 a product, 1 a sum)."""
    if size == 0:
        n = d.number() if d.chance(0.6) else d.few()
        return str(n), n, 3
    left_size = d.between(0, size - 1) if d.chance(0.4) else size - 1
    left, a, left_binds = tree(d, left_size)
    sign = d.one("++-**/")
    if sign == "*":
        right, b, right_binds = tree(d, size - 1 - left_size) if size - 1 - left_size else (None, d.few(), 3)
        if min(a, b) > 20:
            raise Reject
    elif sign == "/":
        if size - 1 - left_size:
            raise Reject
        right, b, right_binds = None, d.divisor(a), 3
    else:
        right, b, right_binds = tree(d, size - 1 - left_size)
    right = right or str(b)
    binds = 2 if sign in "*/" else 1
    if left_binds < binds:
        left = f"({left})"
    if right_binds <= binds and not (sign in "+*" and right_binds == binds):
        right = f"({right})"
    return f"{left} {sign} {right}", d.step("", a, sign, b), binds


def recipe_of_numbers(d):
    """One operation after the other, told in words."""
    value = d.number()
    parts = [d.one([f"Start with {value}.", f"Take the number {value}.", f"I think of {value}."])]
    for _ in range(d.goal):
        sign = d.one("++--**/")
        if sign == "+":
            n = d.number()
            parts.append(d.one([f"Add {n}.", f"Then add {n}."]))
        elif sign == "-":
            n = d.below(value)
            parts.append(d.one([f"Subtract {n}.", f"Take away {n}."]))
        elif sign == "*":
            if value > 300:
                raise Reject
            n = d.few()
            parts.append("Double it." if n == 2 else f"Multiply by {n}.")
        else:
            n = d.divisor(value)
            parts.append(d.one([f"Divide by {n}.", f"Then divide by {n}."]))
        value = d.step("", value, sign, n)
    return d.finish("recipe_of_numbers", parts, d.one(["What do you get?", "What is the result?"]), value)


def long_sum(d):
    """Several numbers added."""
    numbers = [d.number() for _ in range(d.goal + 1)]
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    total = d.total("", numbers)
    return d.finish("long_sum", [], d.one([f"What is the sum of {listed}?", f"Add {listed}."]), total)


def average(d):
    """The mean of several numbers."""
    k = min(5, max(2, d.goal))
    numbers = [d.number() for _ in range(k)]
    numbers[-1] += (-sum(numbers)) % k
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    value = d.step("the average is", d.total("", numbers), "/", k)
    return d.finish("average", [], d.one([f"What is the average of {listed}?", f"Find the mean of {listed}."]), value)


def unknown(d):
    """A number between the operations is asked for."""
    x, a = d.between(2, 60), d.few()
    if d.goal == 1:
        b = d.number()
        if d.chance(0.5):
            d.step("x =", x + b, "-", b)
            return d.finish("unknown", [], d.one([f"x + {b} = {x + b}. What is x?", f"Solve x + {b} = {x + b}."]), x)
        d.step("x =", x * a, "/", a)
        return d.finish("unknown", [], d.one([f"{a} * x = {x * a}. What is x?", f"Solve {a} * x = {x * a}."]), x)
    b = d.number()
    if d.goal == 2:
        r = d.step(f"{a} * x =", a * x + b, "-", b)
        d.step("x =", r, "/", a)
        return d.finish("unknown", [], d.one([f"Solve {a} * x + {b} = {a * x + b}.",
                                              f"{a} * x + {b} = {a * x + b}. What is x?"]), x)
    c = a + d.between(1, 6)
    s = d.step("on one side:", c, "-", a)
    if s == 1:
        raise Reject
    total = s * x
    e = b + total
    r = d.step(f"{s} * x =", e, "-", b)
    d.step("x =", r, "/", s)
    return d.finish("unknown", [], d.one([f"Solve {c} * x + {b} = {a} * x + {e}.",
                                          f"{c} * x + {b} = {a} * x + {e}. What is x?"]), x)


TEMPLATES = {
    "expression": (expression, 1, 6), "recipe_of_numbers": (recipe_of_numbers, 1, 6), "long_sum": (long_sum, 2, 5),
    "average": (average, 2, 5), "unknown": (unknown, 1, 3),
}
