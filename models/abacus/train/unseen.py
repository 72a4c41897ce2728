"""Templates the model is never trained on: other plots, other words for the question, known words and operations."""

from problems import Reject
from words import idle, people, person


def cinema_day(d):
    """A day at a cinema: shows, seats, empty seats, price."""
    shows, seats = d.few(), d.size() + 5
    parts = [f"A cinema gives {shows} shows a day with {seats} seats in each."]
    n = d.step("seats:", shows, "*", seats)
    if d.goal >= 2:
        m = d.below(n)
        parts.append(f"{m} seats stay free.")
        n = d.step("taken:", n, "-", m)
    if d.goal >= 3:
        price = d.few()
        parts.append(f"each guest pays ${price}.")
        n = d.step("the guests pay", n, "*", price, "dollars")
        return d.finish("cinema_day", parts, "How many dollars come in on that day?", n)
    return d.finish("cinema_day", parts, "How many guests see a show?" if d.goal >= 2 else "How many guests can see a show?", n)


def pool_pump(d):
    """In and out at the same time."""
    a, b, h = d.size() + 5, d.few(), d.few()
    if a <= b:
        raise Reject
    first = d.number()
    parts = [f"A pump brings {a} liters an hour into a pool, but {b} liters an hour are lost."]
    gain = d.step("each hour", a, "-", b, "liters more")
    parts.append(f"It runs for {h} hours.")
    n = d.step("all in all", gain, "*", h, "liters")
    if d.goal >= 3:
        parts.insert(0, f"A pool holds {first} liters.")
        n = d.step("with the first", n, "+", first, "liters")
    if d.goal >= 4:
        m = d.below(n)
        parts.append(f"After that {m} liters are used for the garden.")
        n = d.step("left are", n, "-", m, "liters")
    return d.finish("pool_pump", parts, "How many liters are in the pool then?" if d.goal >= 3 else
                    "How many liters does the pool gain?", n)


def egg_farm(d):
    """Hens, eggs, boxes and money."""
    hens, eggs, days = d.few(), d.between(2, 6), d.between(2, 14)
    parts = [f"{hens} hens on a farm give {eggs} eggs each a week.", f"The farmer collects them for {days} weeks."]
    n = d.step("a week", hens, "*", eggs, "eggs")
    n = d.step("all in all", n, "*", days, "eggs")
    if d.goal >= 3:
        k = d.divisor(n, 4, 12)
        parts.append(f"They go into boxes of {k}.")
        n = d.step("boxes:", n, "/", k)
    if d.goal >= 4:
        price = d.between(2, 9)
        parts.append(f"A box is sold for ${price}.")
        n = d.step("they bring", n, "*", price, "dollars")
    if d.goal >= 5:
        cost = d.below(n)
        parts.append(f"The food for the hens costs ${cost}.")
        n = d.step("left are", n, "-", cost, "dollars")
    asks = {2: "How many eggs is that?", 3: "How many boxes does the farmer need?", 4: "How many dollars do the boxes bring?",
            5: "How many dollars does the farmer keep?"}
    return d.finish("egg_farm", parts, asks[d.goal], n)


def playlist(d):
    """Songs and minutes."""
    a, b = people(d, 2)
    x, y, k = d.few(), d.few(), d.between(2, 6)
    parts = [f"{a} sings {x} songs and {b} sings {y} songs.", f"Each song takes {k} minutes."]
    n = d.step("songs:", x, "+", y)
    n = d.step("that takes", n, "*", k, "minutes")
    if d.goal >= 3:
        m = d.between(3, 30)
        parts.append(f"Between the songs they rest for {m} minutes in all.")
        n = d.step("with the rest", n, "+", m, "minutes")
    if d.goal >= 4:
        late = d.below(n)
        parts.append(f"A guest misses the first {late} minutes.")
        n = d.step("left are", n, "-", late, "minutes")
        return d.finish("playlist", parts, "How many minutes does the guest hear?", n)
    return d.finish("playlist", parts, "How many minutes does it take in all?", n)


def two_gardens(d):
    """Rows of plants in two gardens."""
    name, he, his, him = person(d)
    a, b, c, e = d.few(), d.size(), d.few(), d.size()
    what = d.one(["trees", "flowers", "tomatoes", "roses"])
    parts = [f"{name} has {a} rows of {b} {what} in one garden and {c} rows of {e} {what} in another.", idle(d, name, 0.2)]
    x = d.step("one garden:", a, "*", b)
    y = d.step("the other:", c, "*", e)
    n = d.step("together", x, "+", y, what)
    if d.goal >= 4:
        m = d.below(n)
        parts.append(f"A storm breaks {m} of the {what}.")
        n = d.step("left are", n, "-", m, what)
    if d.goal >= 5:
        m = d.number()
        parts.append(f"{name} plants {m} new ones.")
        n = d.step("now there are", n, "+", m, what)
    if d.goal >= 6:
        k = d.divisor(n)
        parts.append(f"In the end {he} gives the same count to each of {k} neighbors.")
        n = d.step("each gets", n, "/", k, what)
        return d.finish("two_gardens", parts, f"How many {what} does each neighbor get?", n)
    return d.finish("two_gardens", parts, f"How many {what} does {name} have?", n)


def half_then_more(d):
    """Who has more, told the other way round."""
    a, b, c = people(d, 3)
    n = d.number()
    k = d.between(2, 5)
    parts = [f"{b} ran {n} km this month.", f"That is {k} km less than {a} ran."]
    m = d.step(f"{a} ran", n, "+", k, "km")
    if d.goal >= 2:
        m2 = m
        parts.append(f"{c} ran as far as both together.")
        m2 = d.step(f"{c} ran", n, "+", m, "km")
        if d.goal >= 3:
            m2 = d.step("all three ran", d.step("the first two:", n, "+", m, "km"), "+", m2, "km")
            return d.finish("half_then_more", parts, "How many km did the three run in all?", m2)
        return d.finish("half_then_more", parts, f"How many km did {c} run?", m2)
    return d.finish("half_then_more", parts, f"How many km did {a} run?", m)


TEMPLATES = {
    "cinema_day": (cinema_day, 1, 3), "pool_pump": (pool_pump, 2, 4), "egg_farm": (egg_farm, 2, 5),
    "playlist": (playlist, 2, 4), "two_gardens": (two_gardens, 3, 6), "half_then_more": (half_then_more, 1, 4),
}
