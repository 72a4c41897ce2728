"""Stories in which one count changes again and again."""

from problems import Reject
from words import COLORS, PLACES, idle, packed, people, person, singular


def gifts(d):
    """Things in boxes, given away and bought."""
    name, he, his, him = person(d)
    box, things = packed(d)
    parts = []
    count = start(d, parts, name, box, things)
    parts.append(idle(d, name))
    first_event = True
    while len(d.lines) < d.goal:
        # "There are 3 boxes" has named nobody yet.
        who = name if first_event and parts[0].startswith("There") else he if first_event or d.chance(0.7) else name
        if not first_event and d.chance(0.3):
            who = "then " + who
        count = event(d, parts, who, name, his, box, things, count)
        first_event = False
    return d.finish("gifts", parts, d.one([f"How many {things} does {name} have now?", f"How many {things} are left?",
                                           "How many are left?", f"How many {things} does {he} have in the end?",
                                           f"How many are there now?"]), count)


def start(d, parts, name, box, things):
    kind = d.one(["plain", "boxes", "boxes", "colors"])
    has = d.one(["has", "has", "owns", "starts with"])
    if kind == "plain" and d.goal > 1 or d.goal == 1 and d.chance(0.5):
        count = d.number()
        parts.append(f"{name} {has} {count} {things}.")
        return count
    if kind == "colors":
        (red, blue), a, b = d.some(COLORS, 2), d.number(), d.number()
        parts.append(f"{name} {has} {a} {red} {things} and {b} {blue} {things}.")
        return d.step(f"{name} has", a, "+", b, things)
    a, b = d.few(), d.size()
    parts.append(d.one([
        f"{name} {has} {a} {box} with {b} {things} each.",
        f"{name} {has} {a} {box} of {things}. There are {b} {things} in each {singular(box)}.",
        f"{name} {has} {a} {box} and each holds {b} {things}.",
        f"There are {a} {box} with {b} {things} in each.",
    ]))
    return d.step("there are" if "There are" in parts[-1] else f"{name} has", a, "*", b, things)


def event(d, parts, who, name, his, box, things, count):
    kinds = ["lose", "gain", "lose", "gain"]
    if d.goal - len(d.lines) >= 2:
        kinds += ["gain boxes", "lose boxes", "gain boxes"]
    if count < 300:
        kinds.append("double")
    if count % 2 == 0 and count > 12:
        kinds.append("half")
    kind = d.one(kinds)
    if kind == "lose":
        n = d.below(count)
        how = d.one(["gives away {n}.", "loses {n}.", "gives {n} to a friend.", "uses {n}.", "sells {n} of them.",
                     "gives {n} {t} to {h} brother.", "breaks {n}."])
        parts.append(f"{who} " + how.format(n=n, t=things, h=his))
        return d.step("after that there are", count, "-", n, things)
    if kind == "gain":
        n = d.number()
        how = d.one(["buys {n} more.", "finds {n} {t}.", "gets {n} more {t} from {h} aunt.", "buys {n} new {t}."])
        parts.append(f"{who} " + how.format(n=n, t=things, h=his))
        return d.step("now there are", count, "+", n, things)
    if kind == "gain boxes":
        a, b = d.few(), d.size()
        how = d.one(["buys {a} more {x} with {b} {t} each.", "gets {a} {x} of {b} {t} each.",
                     "buys {a} {x}, each with {b} {t}."])
        parts.append(f"{who} " + how.format(a=a, b=b, x=box, t=things))
        n = d.step("that is", a, "*", b, "more " + things)
        return d.step("now there are", count, "+", n, things)
    if kind == "lose boxes":
        a, b = d.few(), d.size()
        if a * b >= count:
            raise Reject
        parts.append(f"{who} " + d.one(["gives {a} friends {b} {t} each.", "gives {b} {t} to each of {a} friends.",
                                        "sells {a} bags with {b} {t} each."]).format(a=a, b=b, t=things))
        n = d.step("that is", a, "*", b, things)
        return d.step("after that there are", count, "-", n, things)
    if kind == "double":
        times, k = d.one([("twice", 2), ("3 times", 3)])
        parts.append(f"{who} works hard until there are {times} as many.")
        return d.step("now there are", count, "*", k, things)
    parts.append(f"{who} " + d.one(["gives away half of them.", "loses half of them."]))
    return d.step("half of them is", count, "/", 2, things)


def share(d):
    """Things put together, then shared equally."""
    name, he, his, him = person(d)
    box, things = packed(d)
    parts, count = [], 0
    if d.goal == 1:
        k, each = d.few(), d.size()
        count = k * each
        parts.append(f"{name} has {count} {things}.")
    else:
        count = start(d, parts, name, box, things)
        while len(d.lines) < d.goal - 1:
            count = event(d, parts, name if len(parts) == 1 else he, name, his, box, things, count)
        k = d.divisor(count)
    parts.append(idle(d, name, 0.15))
    ask = d.one([f"{he} shares them equally among {k} friends. How many {things} does each friend get?",
                 f"{he} puts them into {k} {box} equally. How many {things} are in each {singular(box)}?",
                 f"If {k} children share them equally, how many {things} does each child get?"])
    count = d.step("each gets", count, "/", k, things)
    return d.finish("share", parts, ask, count)


def passengers(d):
    """People who get on and off."""
    kind = d.one(["bus", "train", "boat", "tram"])
    count = d.number()
    parts = [d.one([f"A {kind} leaves with {count} people.", f"There are {count} people on a {kind}."])]
    stops = ["first", "second", "third", "fourth", "fifth", "sixth"]
    for stop in stops:
        left = d.goal - len(d.lines)
        if left <= 0:
            break
        at = f"at the {stop} stop"
        if left >= 2 and d.chance(0.6):
            off, on = d.below(count), d.number()
            parts.append(f"{at} {off} get off and {on} get on.")
            count = d.step(f"{at}", count, "-", off, "people stay")
            count = d.step("then there are", count, "+", on, "people")
        elif d.chance(0.5):
            on = d.number()
            parts.append(f"{at} {on} people get on.")
            count = d.step("then there are", count, "+", on, "people")
        else:
            off = d.below(count)
            parts.append(f"{at} {off} people get off.")
            count = d.step("then there are", count, "-", off, "people")
    return d.finish("passengers", parts, d.one([f"How many people are on the {kind} now?",
                                                f"How many people does the {kind} carry then?"]), count)


def wallet(d):
    """Money earned and spent."""
    name, he, his, him = person(d)
    money = d.number()
    parts = [d.one([f"{name} has ${money}.", f"{name} has {money} dollars in {his} wallet."]), idle(d, name, 0.15)]
    while len(d.lines) < d.goal:
        left = d.goal - len(d.lines)
        kinds = ["spend", "earn"] + (["hours", "goods", "goods"] if left >= 2 else [])
        kind = d.one(kinds)
        if kind == "spend":
            n = d.below(money)
            what = d.one(["a cake", "lunch", "a book", "a ticket", "a shirt", "a game"])
            parts.append(f"{he} pays ${n} for {what}.")
            money = d.step("then", money, "-", n, "dollars are left")
        elif kind == "earn":
            n = d.number()
            parts.append(f"{he} " + d.one([f"gets ${n} from {his} uncle.", f"finds ${n}.", f"earns ${n}."]))
            money = d.step("now it is", money, "+", n, "dollars")
        elif kind == "hours":
            a, b = d.few(), d.size()
            parts.append(f"{he} works {a} hours for ${b} an hour.")
            n = d.step(f"{he} earns", a, "*", b, "dollars")
            money = d.step("now it is", money, "+", n, "dollars")
        else:
            a, b = d.few(), d.size()
            if a * b >= money:
                raise Reject
            what = d.one(["pens", "tickets", "kites", "mugs", "notebooks", "sandwiches"])
            parts.append(f"{he} buys {a} {what} for ${b} each.")
            n = d.step(f"the {what} cost", a, "*", b, "dollars")
            money = d.step("then", money, "-", n, "dollars are left")
    return d.finish("wallet", parts, d.one([f"How many dollars does {name} have now?",
                                            f"How much money does {he} have left?"]), money)


def tank(d):
    """Water in and out."""
    where = d.one(["tank", "barrel", "pool", "pond"])
    water = d.number() + 20
    parts = [d.one([f"A {where} holds {water} liters of water.", f"There are {water} liters of water in a {where}."])]
    while len(d.lines) < d.goal:
        left = d.goal - len(d.lines)
        kind = d.one(["in", "out"] + (["rain", "leak"] if left >= 2 else []))
        if kind == "in":
            n = d.number()
            parts.append(d.one([f"{n} liters are added.", f"then {n} liters flow in."]))
            water = d.step("that makes", water, "+", n, "liters")
        elif kind == "out":
            n = d.below(water)
            parts.append(d.one([f"{n} liters are taken out.", f"then {n} liters are used."]))
            water = d.step("that leaves", water, "-", n, "liters")
        else:
            a, b = d.few(), d.size()
            if kind == "rain":
                parts.append(f"for {a} hours {b} liters an hour flow in.")
                n = d.step("the inflow is", a, "*", b, "liters")
                water = d.step("that makes", water, "+", n, "liters")
            else:
                if a * b >= water:
                    raise Reject
                parts.append(f"for {a} hours it loses {b} liters an hour.")
                n = d.step("the loss is", a, "*", b, "liters")
                water = d.step("that leaves", water, "-", n, "liters")
    return d.finish("tank", parts, f"How many liters are in the {where} now?", water)


def score(d):
    """Points won and lost in a game."""
    name, he, his, him = person(d)
    points = d.number()
    parts = [f"{name} plays a game and has {points} points."]
    while len(d.lines) < d.goal:
        left = d.goal - len(d.lines)
        kind = d.one(["win", "lose", "times"] + (["rounds", "rounds"] if left >= 2 else []))
        if kind == "win":
            n = d.number()
            parts.append(f"{he} wins {n} points.")
            points = d.step("new score:", points, "+", n)
        elif kind == "lose":
            n = d.below(points)
            parts.append(f"{he} loses {n} points.")
            points = d.step("new score:", points, "-", n)
        elif kind == "times":
            if points > 400:
                raise Reject
            k = d.one([2, 2, 3])
            parts.append({2: "a lucky card doubles the points.", 3: "a lucky card makes the points 3 times as many."}[k])
            points = d.step("new score:", points, "*", k)
        else:
            a, b = d.few(), d.size()
            parts.append(f"{he} wins {a} rounds and gets {b} points for each.")
            n = d.step("the rounds give", a, "*", b, "points")
            points = d.step("new score:", points, "+", n)
    return d.finish("score", parts, d.one([f"What is {name}'s score?", f"How many points does {he} have?"]), points)


def backwards(d):
    """The end is known, the beginning is asked for."""
    name, he, his, him = person(d)
    box, things = packed(d)
    count = first = d.number() + 5
    parts, undo = [f"{name} has some {things}."], []
    for _ in range(d.goal):
        kind = d.one(["lose", "gain"])
        if kind == "lose":
            n = d.below(count)
            parts.append(f"{he} " + d.one([f"gives away {n}.", f"loses {n}.", f"sells {n}."]))
            count, back = count - n, "+"
        else:
            n = d.number()
            parts.append(f"{he} " + d.one([f"buys {n} more.", f"finds {n}.", f"gets {n} more."]))
            count, back = count + n, "-"
        undo.append((back, n))
    if d.goal > 1:
        parts[1:] = [p if i == 0 else "then " + p for i, p in enumerate(parts[1:])]
    parts.append(d.one([f"now {he} has {count} {things}.", f"in the end there are {count} {things}."]))
    for back, n in reversed(undo):
        count = d.step("before that:", count, back, n)
    if count != first:
        raise Reject
    return d.finish("backwards", parts, d.one([f"How many {things} did {name} have at first?",
                                               f"How many {things} were there in the beginning?"]), count)


def library(d):
    """Lent and returned."""
    place, what = d.one([("library", "books"), ("school", "tablets"), ("club", "rackets"), ("museum", "headphones")])
    count = d.number() + 30
    parts = [f"A {place} has {count} {what}."]
    days = d.some(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"], 6)
    for day in days:
        if len(d.lines) >= d.goal:
            break
        if d.chance(0.5):
            n = d.below(count)
            parts.append(f"on {day} {n} {what} are lent.")
            count = d.step(f"on {day}", count, "-", n, f"{what} stay")
        else:
            n = d.number()
            parts.append(d.one([f"on {day} {n} {what} come back.", f"on {day} {n} new {what} arrive."]))
            count = d.step(f"on {day} it has", count, "+", n, what)
    return d.finish("library", parts, f"How many {what} does the {place} have then?", count)


def crowd(d):
    """Several people bring things to one place."""
    names = people(d, max(2, min(d.goal + 1, 5)))
    box, things = packed(d)
    parts, numbers = [], []
    verb = d.one(["brings", "collects", "finds", "makes"])
    for name in names:
        left = d.goal - len(d.lines) - (len(names) - 1)
        if left > 0 and d.chance(0.5):
            a, b = d.few(), d.size()
            parts.append(f"{name} {verb} {a} {box} with {b} {things} each.")
            numbers.append(d.step(f"{name}:", a, "*", b, things))
        else:
            n = d.number()
            parts.append(f"{name} {verb} {n} {things}.")
            numbers.append(n)
    parts.append(idle(d, names[0], 0.15))
    total = d.total("together that is", numbers, things)
    if d.chance(0.3) and len(d.lines) < d.goal:
        n = d.below(total)
        parts.append(f"{n} {things} are bad.")
        total = d.step("without the bad ones:", total, "-", n, things)
        return d.finish("crowd", parts, f"How many good {things} are there?", total)
    return d.finish("crowd", parts, f"How many {things} are there in all?", total)


def stock(d):
    """A shop that bakes and sells by the day."""
    place, what = d.one([("bakery", "rolls"), ("farm", "eggs"), ("market", "melons"), ("bakery", "muffins")])
    a, b = d.few(), d.size() + 5
    parts = [f"A {place} gets {a} trays of {what} with {b} on each tray."]
    count = d.step("it has", a, "*", b, what)
    while len(d.lines) < d.goal:
        left = d.goal - len(d.lines)
        if left >= 2 and d.chance(0.5):
            p, q = d.few(), d.few()
            if p * q >= count:
                raise Reject
            parts.append(f"{p} customers buy {q} {what} each.")
            n = d.step("they buy", p, "*", q, what)
            count = d.step("after that", count, "-", n, f"{what} are left")
        elif d.chance(0.65):
            n = d.below(count)
            parts.append(d.one([f"by noon {n} are sold.", f"{n} of them are sold.", f"{n} {what} are bad."]))
            count = d.step("after that", count, "-", n, f"{what} are left")
        else:
            n = d.number()
            parts.append(f"another {n} {what} arrive.")
            count = d.step("now there are", count, "+", n, what)
    return d.finish("stock", parts, f"How many {what} are left?" if d.chance(0.7) else
                    f"How many {what} does the {place} have in the end?", count)


TEMPLATES = {
    "gifts": (gifts, 1, 6), "share": (share, 1, 5), "passengers": (passengers, 1, 6), "wallet": (wallet, 1, 6),
    "tank": (tank, 1, 6), "score": (score, 1, 6), "backwards": (backwards, 1, 5), "library": (library, 1, 5),
    "crowd": (crowd, 1, 6), "stock": (stock, 1, 6),
}
