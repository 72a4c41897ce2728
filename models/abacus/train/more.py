"""More stories: those that need something known (legs, days, dozens), and several things at once."""

from problems import Reject
from words import COLORS, idle, packed, people, person, singular


def legs(d):
    """Animals have legs."""
    kinds = d.some([("cows", 4), ("chickens", 2), ("dogs", 4), ("ants", 6), ("spiders", 8), ("ducks", 2), ("cats", 4),
                    ("horses", 4)], 3)[:max(1, min(3, (d.goal + 1) // 2))]
    counts = [d.few() if d.level < 2 else d.size() for _ in kinds]
    listed = [f"{n} {kind}" for n, (kind, _) in zip(counts, kinds)]
    text = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    numbers = [d.step(f"the {kind} have", n, "*", k, "legs") for n, (kind, k) in zip(counts, kinds)]
    total = d.total("together", numbers, "legs")
    return d.finish("legs", [f"There are {text} on a farm."], "How many legs do they have in all?", total)


def dozens(d):
    """A dozen is 12."""
    what, price = d.one(["eggs", "rolls", "roses", "donuts"]), d.few()
    k = d.few()
    parts = [f"A shop has {k} dozen {what}."]
    n = d.step("a dozen is 12:", k, "*", 12, what)
    if d.goal >= 2:
        m = d.below(n)
        parts.append(d.one([f"{m} of them are sold.", f"it sells {m} of them."]))
        if d.goal == 2:
            n = d.step("left are", n, "-", m, what)
            return d.finish("dozens", parts, f"How many {what} are left?", n)
        parts.append(f"the others are sold for ${price} each.")
        n = d.step("the others:", n, "-", m, what)
        n = d.step("they bring", n, "*", price, "dollars")
        return d.finish("dozens", parts, "How many dollars do the others bring?", n)
    return d.finish("dozens", parts, f"How many {what} is that?", n)


def clock(d):
    """Hours, minutes, days and weeks."""
    name, he, his, him = person(d)
    if d.chance(0.5):
        h, m = d.between(1, 9), d.between(5, 55)
        parts = [f"A film takes {h} hours and {m} minutes." if h > 1 else f"A film takes 1 hour and {m} minutes."]
        n = d.step("the hours are", h, "*", 60, "minutes")
        n = d.step("with the minutes", n, "+", m, "minutes")
        if d.goal >= 3:
            seen = d.below(n)
            parts.append(f"{name} has seen {seen} minutes of it.")
            n = d.step("left are", n, "-", seen, "minutes")
            return d.finish("clock", parts, "How many minutes are left?", n)
        return d.finish("clock", parts, "How many minutes is that?", n)
    weeks, each = d.few(), d.few()
    what = d.one(["pages", "songs", "letters", "push-ups"])
    verb = {"pages": "writes", "songs": "sings", "letters": "writes", "push-ups": "does"}[what]
    parts = [f"{name} {verb} {each} {what} every day for {weeks} weeks."]
    days = d.step("a week has 7 days:", weeks, "*", 7, "days")
    if d.goal == 1:
        return d.finish("clock", parts, "How many days is that?", days)
    n = d.step("all in all", days, "*", each, what)
    if d.goal >= 3:
        m = d.below(n)
        parts.append(f"the first {m} {what} were for school.")
        n = d.step("the others:", n, "-", m, what)
        return d.finish("clock", parts, f"How many {what} were not for school?", n)
    return d.finish("clock", parts, f"How many {what} is that in all?", n)


def coins(d):
    """Cents in coins."""
    name, he, his, him = person(d)
    kinds = d.some([("quarters", 25), ("dimes", 10), ("nickels", 5)], 3)[:max(1, min(3, (d.goal + 1) // 2))]
    counts = [d.few() for _ in kinds]
    listed = [f"{n} {kind}" for n, (kind, _) in zip(counts, kinds)]
    text = listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
    numbers = [d.step(f"the {kind} are", n, "*", k, "cents") for n, (kind, k) in zip(counts, kinds)]
    parts = [f"{name} has {text}."]
    total = d.total("together", numbers, "cents")
    if d.goal % 2 == 0:
        n = d.below(total)
        parts.append(f"{he} pays {n} cents for a candy.")
        total = d.step("left are", total, "-", n, "cents")
        return d.finish("coins", parts, "How many cents are left?", total)
    return d.finish("coins", parts, f"How many cents does {he} have?", total)


def seats(d):
    """Rows of seats in a hall."""
    where = d.one(["theater", "cinema", "hall", "stadium"])
    rows, each = d.few() + d.between(0, 10), d.size() + 2
    parts = [f"A {where} has {rows} rows with {each} seats each."]
    n = d.step("seats:", rows, "*", each)
    if d.goal == 1:
        return d.finish("seats", parts, f"How many seats does the {where} have?", n)
    if d.goal in (2, 3):
        m = d.below(n)
        if d.goal == 3:
            k = d.between(1, 9)
            parts.append(f"{k} seats are broken.")
            n = d.step("good seats:", n, "-", k)
        if m >= n:
            raise Reject
        parts.append(f"{m} seats are taken.")
        n = d.step("free seats:", n, "-", m)
        return d.finish("seats", parts, "How many seats are free?", n)
    a, b = d.few(), d.size()
    if a * b >= n:
        raise Reject
    parts.append(f"{a} classes with {b} children each sit down.")
    m = d.step("children:", a, "*", b)
    n = d.step("free seats:", n, "-", m)
    if d.goal >= 4:
        k = d.below(n)
        parts.append(f"then {k} teachers sit down.")
        n = d.step("then free:", n, "-", k)
    return d.finish("seats", parts, "How many seats are free?", n)


def tickets(d):
    """What adults and children pay."""
    event = d.one(["concert", "zoo", "play", "fair", "museum"])
    a, b = d.size() + 3, d.few()
    grown, small = d.few(), d.size()
    parts = [f"A ticket to the {event} is ${a} for adults and ${b} for children.", f"{grown} adults and {small} children go."]
    x = d.step("the adults pay", grown, "*", a, "dollars")
    y = d.step("the children pay", small, "*", b, "dollars")
    if d.goal == 2:
        raise Reject
    total = d.step("together", x, "+", y, "dollars")
    if d.goal >= 4:
        n = d.below(total)
        parts.append(f"they have ${n} off as a group.")
        total = d.step("as a group", total, "-", n, "dollars")
    if d.goal >= 5:
        n = d.number()
        parts.append(f"the bus costs another ${n}.")
        total = d.step("with the bus", total, "+", n, "dollars")
    return d.finish("tickets", parts, d.one(["How many dollars do they pay in all?", "How much does it cost in all?"]), total)


def metric(d):
    """Meters and centimeters, kilograms and grams."""
    big, small, k, what = d.one([("meters", "centimeters", 100, "rope"), ("kilograms", "grams", 1000, "flour"),
                                 ("liters", "milliliters", 1000, "juice"), ("kilometers", "meters", 1000, "road")])
    a = d.between(2, 9)
    parts = [d.one([f"There are {a} {big} of {what}.", f"Somebody has {a} {big} of {what}."])]
    n = d.step("that is", a, "*", k, small)
    if d.goal == 1:
        return d.finish("metric", parts, f"How many {small} is that?", n)
    m = d.between(2, k // 2 + 40)
    parts.append(f"{m} {small} are used.")
    n = d.step("left are", n, "-", m, small)
    if d.goal >= 3:
        m = d.between(2, k // 2)
        parts.append(f"then another {m} {small} are used.")
        n = d.step("then left are", n, "-", m, small)
    return d.finish("metric", parts, f"How many {small} are left?", n)


def recipes(d):
    """So much for so many, how much for more."""
    what, people_ = d.one([("eggs", "cakes"), ("apples", "pies"), ("tomatoes", "pizzas"), ("cups of flour", "breads")])
    base, times = d.between(2, 6), d.few()
    each = d.few()
    need = base * each
    many = base * times
    if d.goal == 1:
        n = d.step("that needs", each, "*", many, what)
        return d.finish("recipes", [f"One of the {people_} needs {each} {what}."], f"How many {what} do {many} {people_} need?", n)
    parts = [f"{base} {people_} need {need} {what}."]
    one = d.step("one needs", need, "/", base, what)
    n = d.step(f"{many} need", one, "*", many, what)
    if d.goal >= 3:
        have = d.below(n)
        parts.append(f"{have} {what} are in the kitchen.")
        n = d.step("to buy:", n, "-", have, what)
        return d.finish("recipes", parts, f"How many more {what} are needed for {many} {people_}?", n)
    return d.finish("recipes", parts, f"How many {what} do {many} {people_} need?", n)


def teams(d):
    """Points for wins and draws."""
    wins, draws = d.few(), d.few()
    team = d.one(["The Lions", "The Bears", "The Foxes", "Our team"])
    w, t = d.between(2, 5), 1
    parts = [f"A win gives {w} points and a draw 1 point.", f"{team} have {wins} wins and {draws} draws."]
    n = d.step("the wins give", wins, "*", w, "points")
    n = d.step("with the draws", n, "+", draws * t, "points")
    if d.goal >= 3:
        m = d.between(1, 6)
        parts.append(f"then they lose {m} points for being late.")
        n = d.step("after that", n, "-", m, "points")
    if d.goal >= 4:
        lead = n + d.between(3, 40)
        parts.append(f"the best team has {lead} points.")
        n = d.step("the gap is", lead, "-", n, "points")
        return d.finish("teams", parts, "How many points are they behind the best team?", n)
    return d.finish("teams", parts, "How many points do they have?", n)


def difference(d):
    """Two collect at their own pace: how many more?"""
    a, b = people(d, 2)
    box, things = packed(d)
    p, q, r, s = d.few(), d.size(), d.few(), d.size()
    unit = d.one(["a day for {} days", "an hour for {} hours", "a week for {} weeks"])
    parts = [f"{a} collects {q} {things} {unit.format(p)}.", f"{b} collects {s} {things} {unit.format(r)}."]
    x = d.step(f"{a}:", p, "*", q, things)
    y = d.step(f"{b}:", r, "*", s, things)
    if d.goal == 2:
        raise Reject
    if d.goal >= 4:
        n = d.number()
        parts.append(f"{a} finds another {n}.")
        x = d.step(f"{a} then has", x, "+", n, things)
    if x <= y:
        more, less, ask = y, x, f"How many more {things} does {b} have than {a}?"
    else:
        more, less, ask = x, y, f"How many more {things} does {a} have than {b}?"
    n = d.step("the difference is", more, "-", less, things)
    return d.finish("difference", parts, ask, n)


def ratio(d):
    """For every so many of these, so many of those."""
    box, things = packed(d)
    one, two = d.some(COLORS, 2)
    a, b, k = d.between(2, 6), d.between(2, 9), d.few()
    n = a * k
    parts = [f"For every {a} {one} {things} there are {b} {two} ones.", f"There are {n} {one} {things}."]
    groups = d.step("groups:", n, "/", a)
    m = d.step(f"{two}:", groups, "*", b)
    if d.goal >= 3:
        m = d.step("together", n, "+", m)
        return d.finish("ratio", parts, f"How many {one} and {two} {things} are there together?", m)
    return d.finish("ratio", parts, f"How many {two} {things} are there?", m)


def school(d):
    """A class split into groups."""
    boys, girls = d.number(), d.number()
    parts = [f"There are {boys} boys and {girls} girls in a {d.one(['school', 'club', 'camp'])}."]
    n = d.step("children:", boys, "+", girls)
    if d.goal >= 3:
        m = d.below(n)
        parts.append(f"{m} of them stay at home.")
        n = d.step("there come", n, "-", m)
    if d.goal >= 2:
        k = d.divisor(n, 2, 15)
        if d.chance(0.5):
            parts.append(f"they form groups of {k}.")
            n = d.step("groups:", n, "/", k)
            if d.goal >= 4:
                e = d.few()
                parts.append(f"each group gets {e} balls.")
                n = d.step("balls:", n, "*", e)
                return d.finish("school", parts, "How many balls are needed?", n)
            return d.finish("school", parts, "How many groups are there?", n)
        parts.append(f"they form {k} equal groups.")
        n = d.step("in each group:", n, "/", k)
        return d.finish("school", parts, "How many children are in each group?", n)
    return d.finish("school", parts, "How many children are there?", n)


def fuel(d):
    """Kilometers on a liter."""
    rate, liters = d.between(5, 25), d.few() + d.between(0, 20)
    parts = [f"A car goes {rate} km on a liter of fuel.", f"It has {liters} liters."]
    n = d.step("it can go", rate, "*", liters, "km")
    if d.goal == 1:
        return d.finish("fuel", parts, "How many km can it go?", n)
    m = d.below(n)
    parts.append(f"it has gone {m} km already.")
    n = d.step("left are", n, "-", m, "km")
    if d.goal >= 3:
        k = d.divisor(n)
        parts.append(f"it goes the same way every day for {k} days.")
        n = d.step("a day", n, "/", k, "km")
        return d.finish("fuel", parts, "How many km a day can it go?", n)
    return d.finish("fuel", parts, "How many km can it still go?", n)


def wages(d):
    """Pay, and pay for overtime."""
    name, he, his, him = person(d)
    hours, rate = d.between(3, 40), d.size() + 4
    parts = [f"{name} works {hours} hours for ${rate} an hour."]
    n = d.step(f"{he} earns", hours, "*", rate, "dollars")
    if d.goal >= 3:
        more = d.between(2, 9)
        extra = rate + d.between(2, 10)
        parts.append(f"{he} also works {more} hours on Sunday for ${extra} an hour.")
        m = d.step("Sunday gives", more, "*", extra, "dollars")
        n = d.step("together", n, "+", m, "dollars")
    if d.goal in (2, 4, 5):
        tax = d.below(n)
        parts.append(f"{he} pays ${tax} tax.")
        n = d.step("after tax", n, "-", tax, "dollars")
    if d.goal == 5:
        food = d.below(n)
        parts.append(f"{he} spends ${food} on food.")
        n = d.step("after food", n, "-", food, "dollars")
    return d.finish("wages", parts, d.one([f"How many dollars does {he} keep?", f"How much money is that for {name}?"])
                    if len(parts) > 1 else f"How many dollars does {he} earn?", n)


def forgotten(d):
    """Looks as if something were missing, but nothing needed is."""
    name, he, his, him = person(d)
    box, things = packed(d)
    a, b = d.number(), d.number()
    missing = d.one([f"{he} does not remember what they cost.", "nobody knows how heavy they are.",
                     f"{he} forgot where the {singular(box)} came from.", "it is not known who made them."])
    (red, blue) = d.some(COLORS, 2)
    parts = [f"{name} bought some {things}.", missing, f"later {he} counted {a} {red} and {b} {blue} ones, and no others."]
    n = d.step("counted:", a, "+", b, things)
    if d.goal >= 2:
        m = d.below(n)
        parts.append(f"some more were lost: {m} before the count.")
        n = d.step("with the lost ones", n, "+", m, things)
        return d.finish("forgotten", parts, f"How many {things} did {name} buy?", n)
    return d.finish("forgotten", parts, f"How many {things} did {name} count?", n)


TEMPLATES = {
    "legs": (legs, 1, 5), "dozens": (dozens, 1, 3), "clock": (clock, 1, 3), "coins": (coins, 1, 6), "seats": (seats, 1, 4),
    "tickets": (tickets, 3, 5), "metric": (metric, 1, 3), "recipes": (recipes, 1, 3), "teams": (teams, 2, 4),
    "difference": (difference, 3, 4), "ratio": (ratio, 2, 3), "school": (school, 1, 4), "fuel": (fuel, 1, 3),
    "wages": (wages, 1, 5), "forgotten": (forgotten, 1, 2),
}
