"""Stories with a shape of their own: shopping, journeys, ages, parts."""

from problems import Reject
from words import COLORS, GOODS, idle, packed, people, person, singular


def shopping(d):
    """A bill, sometimes with a voucher and change."""
    name, he, his, him = person(d)
    goods = d.some(GOODS, 4)
    parts, costs = [], []
    extra = d.one([0, 0, 1, 2]) if d.goal >= 3 else 0
    # Each kind of goods takes one step for its price and one for the sum.
    while len(d.lines) + max(0, len(costs)) < d.goal - extra and len(costs) < 4:
        good, price = goods[len(costs)], d.size()
        if d.goal - extra - len(d.lines) - len(costs) == 1 and costs:
            parts.append(f"{he} also buys a {good} for ${price}.")
            costs.append(price)
            break
        k = d.few()
        buys = f"{name} buys" if not costs else d.one([f"{he} also buys", f"{he} buys"])
        parts.append(f"{buys} {k} {good}s for ${price} each.")
        costs.append(d.step(f"the {good}s cost", k, "*", price, "dollars"))
    parts.append(idle(d, name, 0.15))
    total = d.total("together that is", costs, "dollars")
    ask = d.one([f"How many dollars does {he} pay?", f"How much does {name} spend in all?", "How much is that?"])
    if extra == 2:
        off = d.below(total)
        parts.append(f"a voucher takes ${off} off the bill.")
        total = d.step("with the voucher", total, "-", off, "dollars")
    if extra >= 1 and len(d.lines) < d.goal:
        bill = d.one([n for n in (20, 50, 100, 200, 500, 1000, 2000, 5000) if n > total] or [9000])
        parts.append(d.one([f"{he} pays with ${bill}.", f"{he} gives the seller ${bill}."]))
        total = d.step("the change is", bill, "-", total, "dollars")
        ask = d.one([f"How much change does {he} get?", f"How many dollars does {he} get back?"])
    return d.finish("shopping", parts, ask, total)


def compare(d):
    """Each has so many more, fewer or times as many as the one before."""
    names = people(d, min(5, max(2, d.goal)))
    box, things = packed(d)
    counts = [d.number()]
    parts = [f"{names[0]} has {counts[0]} {things}."]
    for before, name in zip(names, names[1:]):
        kind, last = d.one(["more", "fewer", "times"]), counts[-1]
        if kind == "more":
            n = d.number()
            parts.append(f"{name} has {n} more {things} than {before}." if d.chance(0.7) else
                         f"{name} has {n} more than {before}.")
            counts.append(d.step(f"{name} has", last, "+", n, things))
        elif kind == "fewer":
            n = d.below(last)
            parts.append(f"{name} has {n} fewer {things} than {before}." if d.chance(0.7) else
                         f"{name} has {n} less than {before}.")
            counts.append(d.step(f"{name} has", last, "-", n, things))
        else:
            k = d.one([2, 2, 3, 4, 5])
            if last > 300:
                raise Reject
            times = "twice" if k == 2 else f"{k} times"
            parts.append(f"{name} has {times} as many {things} as {before}.")
            counts.append(d.step(f"{name} has", last, "*", k, things))
    parts.append(idle(d, names[0], 0.15))
    if len(d.lines) + len(counts) - 1 <= d.goal:
        total = d.total("together they have", counts, things)
        return d.finish("compare", parts, d.one([f"How many {things} do they have together?",
                                                 f"How many {things} are there in all?"]), total)
    return d.finish("compare", parts, f"How many {things} does {names[-1]} have?", counts[-1])


def ages(d):
    """How old somebody is, was or will be."""
    a, b, c = people(d, 3)
    age = d.between(3, 14)
    parts = [f"{a} is {age} years old."]
    k = d.between(2, 5)
    if d.chance(0.5):
        parts.append(f"{b} is {'twice' if k == 2 else f'{k} times'} as old as {a}.")
        other = d.step(f"{b} is", age, "*", k, "years old")
    else:
        n = d.between(2, 40)
        parts.append(f"{b} is {n} years older than {a}.")
        other = d.step(f"{b} is", age, "+", n, "years old")
    who = b
    if d.goal >= 3:
        n = d.below(other)
        parts.append(f"{c} is {n} years younger than {b}.")
        other, who = d.step(f"{c} is", other, "-", n, "years old"), c
    if d.goal in (2, 3):
        n = d.between(2, 30)
        other = d.step(f"then {who} is", other, "+", n, "years old")
        return d.finish("ages", parts, f"How old will {who} be in {n} years?", other)
    if d.goal >= 4:
        other = d.step("together that is", other, "+", age, "years")
        if d.goal == 5:
            n = d.between(2, 12)
            add = d.step("both grow older:", n, "*", 2, "years")
            other = d.step("then it is", other, "+", add, "years")
            return d.finish("ages", parts, f"What will the ages of {a} and {who} add up to in {n} years?", other)
        return d.finish("ages", parts, f"What do the ages of {a} and {who} add up to?", other)
    return d.finish("ages", parts, f"How old is {who}?", other)


def machines(d):
    """So many an hour, for so many hours."""
    what, place = d.one([("bolts", "factory"), ("toys", "factory"), ("bottles", "plant"), ("letters", "office"),
                         ("bricks", "plant"), ("loaves", "bakery")])
    hours, rate = d.few(), d.size()
    parts = [d.one([f"A machine makes {rate} {what} an hour.", f"A machine in a {place} makes {rate} {what} every hour."])]
    parts.append(f"It runs for {hours} hours.")
    total = d.step("it makes", rate, "*", hours, what)
    if d.goal >= 3:
        h2, r2 = d.few(), d.size()
        parts.append(f"a second machine makes {r2} {what} an hour and runs for {h2} hours.")
        n = d.step("the second makes", r2, "*", h2, what)
        total = d.step("together they make", total, "+", n, what)
    if d.goal in (2, 4, 5):
        n = d.below(total)
        parts.append(f"{n} of the {what} are broken.")
        total = d.step("without the broken ones:", total, "-", n, what)
        if d.goal == 5:
            k = d.divisor(total)
            parts.append(f"the good ones go into {k} equal boxes.")
            total = d.step("each box holds", total, "/", k, what)
            return d.finish("machines", parts, f"How many {what} are in each box?", total)
        return d.finish("machines", parts, f"How many good {what} are there?", total)
    return d.finish("machines", parts, f"How many {what} are made in all?", total)


def percent(d):
    """So many percent of a price or a count."""
    p, unit = d.one([5, 10, 15, 20, 25, 30, 40, 50, 60, 75]), d.one([20, 20, 100])
    n = unit * d.between(1, (6, 15, 40)[d.level])
    if d.goal == 2 and d.chance(0.3):
        part = d.step("that is", d.step("", n, "*", p), "/", 100)
        return d.finish("percent", [], d.one([f"What is {p} % of {n}?", f"Find {p} percent of {n}."]), part)
    if d.chance(0.5):
        what = d.one(["coat", "bike", "table", "phone", "lamp"])
        parts = [f"A {what} costs ${n}.", f"It is sold {p} % cheaper."]
        part = d.step("the discount is", d.step("", n, "*", p), "/", 100, "dollars")
        if d.goal == 2:
            return d.finish("percent", parts, "How many dollars are saved?", part)
        price = d.step("the new price is", n, "-", part, "dollars")
        if d.goal >= 4:
            k = d.few()
            price = d.step(f"{k} of them cost", price, "*", k, "dollars")
            return d.finish("percent", parts, f"How many dollars do {k} of them cost?", price)
        return d.finish("percent", parts, "How many dollars does it cost now?", price)
    who, some = d.one([("children", "girls"), ("guests", "vegetarians"), ("players", "beginners"), ("birds", "ducks")])
    parts = [f"There are {n} {who}.", f"{p} % of them are {some}."]
    part = d.step(f"{some}:", d.step("", n, "*", p), "/", 100)
    if d.goal == 2:
        return d.finish("percent", parts, f"How many {some} are there?", part)
    rest = d.step("the others:", n, "-", part)
    if d.goal >= 4:
        m = d.below(rest)
        parts.append(f"then {m} of the others leave.")
        rest = d.step("that leaves", rest, "-", m)
        return d.finish("percent", parts, f"How many who are not {some} stay?", rest)
    return d.finish("percent", parts, f"How many {who} are not {some}?", rest)


def fractions(d):
    """A part of a count, then of the rest."""
    name, he, his, him = person(d)
    box, things = packed(d)
    k = d.one([2, 3, 4, 5, 6, 8, 10])
    n = k * d.between(2, (8, 20, 60)[d.level])
    word = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 8: "an eighth", 10: "a tenth"}[k]
    parts = [f"{name} has {n} {things}."]
    parts.append(d.one([f"{he} gives away {word} of them.", f"{he} gives {word} of them to {his} sister."])
                 if d.chance(0.6) else f"1/{k} of them are given away.")
    part = d.step("given away:", n, "/", k)
    if d.goal == 1:
        return d.finish("fractions", parts, f"How many {things} does {he} give away?", part)
    rest = d.step("left:", n, "-", part)
    if d.goal >= 4:
        j = d.divisor(rest, 2, 5)
        word = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[j]
        parts.append(f"then {he} sells {word} of the rest.")
        part = d.step("sold:", rest, "/", j)
        rest = d.step("left:", rest, "-", part)
    if d.goal in (3, 5):
        m = d.number()
        parts.append(f"later {he} buys {m} more.")
        rest = d.step("now:", rest, "+", m)
    return d.finish("fractions", parts, f"How many {things} does {name} have then?", rest)


def rectangles(d):
    """Area, perimeter, fence and tiles."""
    what = d.one(["garden", "room", "field", "yard", "playground"])
    a, b = d.size() + 2, d.few() + 1
    parts = [f"A {what} is {a} meters long and {b} meters wide."]
    if d.chance(0.5):
        value = d.step("the area is", a, "*", b, "square meters")
        if d.goal == 1:
            return d.finish("rectangles", parts, f"How many square meters is the {what}?", value)
        c = d.below(value)
        parts.append(f"{c} square meters of it are covered with stones.")
        value = d.step("free are", value, "-", c, "square meters")
        if d.goal == 2:
            return d.finish("rectangles", parts, "How many square meters are free?", value)
        k = d.few()
        value = d.step("the cost is", value, "*", k, "dollars")
        parts.append(f"grass for the rest costs ${k} a square meter.")
        return d.finish("rectangles", parts, "How many dollars does the grass cost?", value)
    half = d.step("two sides are", a, "+", b, "meters")
    value = d.step("all sides are", half, "*", 2, "meters")
    if d.goal >= 3:
        gate = d.between(1, 5)
        parts.append(f"the gate is {gate} meters wide and needs no fence.")
        value = d.step("without the gate", value, "-", gate, "meters")
    if d.goal >= 4:
        price = d.few()
        parts.append(f"a meter of fence costs ${price}.")
        value = d.step("the fence costs", value, "*", price, "dollars")
        return d.finish("rectangles", parts, f"How many dollars does a fence around the {what} cost?", value)
    return d.finish("rectangles", parts, d.one([f"How many meters of fence does the {what} need?",
                                                f"How long is a fence around the {what}?"]), value)


def journeys(d):
    """Speed and time, in legs."""
    name, he, his, him = person(d)
    how, low, high = d.one([("drives", 30, 90), ("rides", 10, 25), ("walks", 3, 6), ("sails", 8, 20)])
    parts, legs = [], []
    count = max(1, (d.goal + 1) // 2)
    for i in range(min(3, count)):
        hours, speed = d.between(2, 9), d.between(low, high)
        parts.append(f"{name if i == 0 else 'then ' + he} {how} for {hours} hours at {speed} km an hour.")
        legs.append(d.step("that is", speed, "*", hours, "km"))
    total = d.total("together", legs, "km")
    parts.append(idle(d, name, 0.15))
    if d.goal % 2 == 0:
        far = total + d.number()
        parts.append(f"the whole way is {far} km.")
        rest = d.step("left are", far, "-", total, "km")
        return d.finish("journeys", parts, d.one(["How many km are left?", f"How many km must {he} still go?"]), rest)
    return d.finish("journeys", parts, d.one([f"How many km does {name} go?", f"How far does {he} get?"]), total)


def saving(d):
    """Money put aside for something."""
    name, he, his, him = person(d)
    what = d.one(["bike", "guitar", "tent", "phone", "camera"])
    weeks, rate = d.few(), d.size()
    parts = [f"{name} saves ${rate} a week for {weeks} weeks."]
    money = d.step(f"{he} saves", rate, "*", weeks, "dollars")
    if d.goal >= 3:
        gift = d.number()
        parts.append(f"{his} grandmother adds ${gift}.")
        money = d.step("with the gift", money, "+", gift, "dollars")
    if d.goal >= 4:
        cost = d.below(money)
        parts.append(f"{he} spends ${cost} on shoes.")
        money = d.step("after the shoes", money, "-", cost, "dollars")
    if d.goal == 1:
        return d.finish("saving", parts, f"How many dollars does {he} have then?", money)
    price = money + d.number()
    if d.goal == 5:
        rate = d.between(2, 9)
        price = money + rate * d.between(2, 12)
        parts.append(f"from now on {he} saves ${rate} a week.")
        need = d.step("missing are", price, "-", money, "dollars")
        parts.append(f"the {what} costs ${price}.")
        weeks = d.step("that takes", need, "/", rate, "weeks")
        return d.finish("saving", parts, f"How many more weeks must {he} save for the {what}?", weeks)
    parts.append(f"the {what} costs ${price}.")
    need = d.step("missing are", price, "-", money, "dollars")
    return d.finish("saving", parts, f"How many dollars does {he} still need for the {what}?", need)


def reading(d):
    """Pages of a book."""
    name, he, his, him = person(d)
    days, pages = d.few(), d.size()
    more = d.between(2, 12)
    parts = [f"{name} reads {pages} pages a day for {days} days."]
    done = d.step(f"{he} reads", pages, "*", days, "pages")
    if d.goal == 1:
        return d.finish("reading", parts, f"How many pages does {he} read?", done)
    if d.goal >= 4:
        n = d.number()
        parts.append(f"on Sunday {he} reads another {n} pages.")
        done = d.step("with Sunday", done, "+", n, "pages")
    rate = d.size()
    length = done + rate * more
    parts.insert(0, f"A book has {length} pages.")
    left = d.step("left are", length, "-", done, "pages")
    if d.goal == 2:
        return d.finish("reading", parts, d.one(["How many pages are left?", f"How many pages must {he} still read?"]), left)
    parts.append(f"from then on {he} reads {rate} pages a day.")
    value = d.step("that takes", left, "/", rate, "days")
    return d.finish("reading", parts, "How many more days does the book take?", value)


def nested(d):
    """Groups of groups of groups."""
    outer, middle, inner = d.one([("shelves", "boxes", "books"), ("floors", "rooms", "beds"), ("streets", "houses", "windows"),
                                  ("trucks", "crates", "bottles"), ("fields", "rows", "trees"), ("buildings", "classes", "desks")])
    a, b, c = d.few(), d.between(2, 9), d.few()
    parts = [f"There are {a} {outer}.", f"Each has {b} {middle}.", f"In each of the {middle} are {c} {inner}."]
    n = d.step(f"{middle}:", a, "*", b)
    if d.goal == 1:
        return d.finish("nested", parts[:2], f"How many {middle} are there?", n)
    n = d.step(f"{inner}:", n, "*", c)
    if d.goal >= 3:
        m = d.below(n)
        parts.append(d.one([f"{m} {inner} are new.", f"{m} of the {inner} are white."]))
        n = d.step("the others:", n, "-", m)
        return d.finish("nested", parts, f"How many {inner} are not {parts[-1].split()[-1][:-1]}?", n)
    return d.finish("nested", parts, f"How many {inner} are there in all?", n)


def parts_of_whole(d):
    """What is neither of these."""
    box, things = packed(d)
    colors = d.some(COLORS, 4)
    k = min(4, max(2, d.goal))
    numbers = [d.number() for _ in range(k)]
    rest = d.number()
    n = sum(numbers) + rest
    listed = ", ".join(f"{m} are {c}" for m, c in zip(numbers[:-1], colors)) + f" and {numbers[-1]} are {colors[k - 1]}"
    parts = [f"Of {n} {things} in a {singular(box)}, {listed}."]
    known = d.total("known:", numbers)
    left = d.step("the others:", n, "-", known)
    return d.finish("parts_of_whole", parts, f"How many {things} have another color?", left)


TEMPLATES = {
    "shopping": (shopping, 1, 6), "compare": (compare, 1, 6), "ages": (ages, 1, 5), "machines": (machines, 1, 5),
    "percent": (percent, 2, 4), "fractions": (fractions, 1, 5), "rectangles": (rectangles, 1, 4),
    "journeys": (journeys, 1, 6), "saving": (saving, 1, 5), "reading": (reading, 1, 4), "nested": (nested, 1, 3),
    "parts_of_whole": (parts_of_whole, 2, 4),
}
