"""Names, things and sentences that lead nowhere."""

SHE = ["Mia", "Anna", "Lily", "Emma", "Sara", "Nina", "Ella", "Ruth", "Clara", "Maria", "Julia", "Grace", "Priya", "Aisha",
       "Zoe", "Lena", "Rosa", "Ivy", "Olga", "Hana"]
HE = ["Tom", "Ben", "Sam", "Max", "Leo", "Jack", "Paul", "Omar", "Ravi", "Luis", "Noah", "Peter", "Oscar", "Felix", "Ivan",
      "Kenji", "Adam", "Hugo", "Carl", "Finn"]

# (containers, things that lie in them)
PACKED = [
    ("boxes", ["pencils", "crayons", "cookies", "candles", "chocolates", "tiles", "nails", "markers", "toys"]),
    ("bags", ["apples", "marbles", "oranges", "potatoes", "candies", "lemons", "walnuts", "shells"]),
    ("packs", ["cards", "stickers", "stamps", "batteries", "pens", "balloons", "erasers"]),
    ("baskets", ["peaches", "eggs", "pears", "mushrooms", "plums", "flowers"]),
    ("jars", ["buttons", "beads", "coins", "pickles", "sweets"]),
    ("trays", ["muffins", "cupcakes", "eggs", "rolls", "seedlings"]),
    ("shelves", ["books", "cups", "plates", "bottles", "puzzles"]),
    ("crates", ["bottles", "melons", "oranges", "cans", "mangoes"]),
]
THINGS = sorted({thing for _, things in PACKED for thing in things})
CONTAINER_OF = {thing: box for box, things in PACKED for thing in things}

COLORS = ["red", "blue", "green", "yellow", "white", "black", "purple", "orange"]
GOODS = ["book", "pen", "shirt", "cake", "hat", "ball", "lamp", "mug", "scarf", "kite", "puzzle", "bag", "sandwich", "ticket",
         "notebook", "game", "plant", "poster"]
PLACES = ["school", "farm", "market", "library", "park", "museum", "bakery", "camp", "club", "zoo"]

# Sentences that change nothing. {n} is a number that plays no role, {name} the name of somebody in the problem.
IDLE = [
    "It is a sunny day.",
    "{name} likes music very much.",
    "The shop closes at {n} o'clock.",
    "{name} is {n} years old.",
    "{name} lives at number {n} on a quiet street.",
    "Nobody knows the name of the cat.",
    "{name} does not remember last year.",
    "The color of the door is not known.",
    "{name} has {n} cousins.",
    "A friend waits outside.",
    "It takes {n} minutes to get there.",
    "{name} is not sure what to cook for dinner.",
    "The weather report says nothing about tomorrow.",
    "{name} woke up at {n} in the morning.",
    "There are {n} clouds in the sky.",
    "{name} wears a warm coat.",
    "How heavy everything is nobody has measured.",
    "The bus number is {n}.",
]


def person(d):
    """A name and its pronouns: he, his, him."""
    if d.chance(0.5):
        return d.one(SHE), "she", "her", "her"
    return d.one(HE), "he", "his", "him"


def people(d, count):
    """Different names."""
    return d.some(SHE + HE, count)


def idle(d, name, p=0.22):
    """Now and then a sentence that leads nowhere, else nothing."""
    if not d.chance(p):
        return ""
    return d.one(IDLE).format(name=name, n=d.between(2, 12))


def packed(d):
    """Containers and what is in them."""
    box, things = d.one(PACKED)
    return box, d.one(things)


def singular(word):
    """`boxes` to `box`: for the words of this file only."""
    special = {"boxes": "box", "shelves": "shelf", "candies": "candy", "batteries": "battery", "mangoes": "mango",
               "tomatoes": "tomato", "peaches": "peach", "potatoes": "potato", "cookies": "cookie"}
    return special.get(word, word[:-1] if word.endswith("s") else word)
