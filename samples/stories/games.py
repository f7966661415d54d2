"""Memory games: sequences of arbitrary items, said once and then repeated word for word.

Only copying from the context predicts the second time, so the items are as uniformly random as can be.
"""

from collections.abc import Callable
from random import Random
from string import ascii_lowercase, digits

from lexicon import BOYS, GIRLS, every_word
from teller import Teller
from world import is_mild, made_up_word

# "a" and "an" are left out, so that an article in a story is always a real one.
WORDS = every_word()
FUNCTION_WORDS = """the of and to in is was it that for on with as at by this be from or not but what all when we there
    can said if do will each about how up out them then she many some so these would her him has look two more go see no
    way could my than first been who its now down did get come made may part"""
ALL_WORDS = tuple(dict.fromkeys((*WORDS, *FUNCTION_WORDS.split())))
MARKS: tuple[str, ...] = (*"&%#@*+=<>~^/\\|_$£;:", "->", "::", "==", "++", "--")
SEPARATORS = (" ", " ", " ", " ", ", ", ", ", ", ", "; ", " - ", " / ", " and ", "-", ",", "/", "")

Item = Callable[[Random], str]


def word(rng: Random) -> str:
    return rng.choice(ALL_WORDS)


def name(rng: Random) -> str:
    return rng.choice(GIRLS + BOYS)


def nonsense(rng: Random) -> str:
    return made_up_word(rng, 1, 2)


def letters(rng: Random) -> str:
    """A run of letters, the first perhaps a capital."""
    while True:
        run = "".join(rng.choice(ascii_lowercase) for _ in range(rng.randint(1, 4)))
        if is_mild(run) and run not in ("a", "an"):
            return run.capitalize() if rng.random() < 0.2 else run


def fragment(rng: Random) -> str:
    """A piece from anywhere inside a word."""
    while True:
        whole = rng.choice(ALL_WORDS)
        start = rng.randrange(max(1, len(whole) - 1))
        piece = whole[start : start + rng.randint(2, 5)]
        if len(piece) > 1 and is_mild(piece) and piece != "an":
            return piece


def code(rng: Random) -> str:
    """A letter or two and a digit or two: k7, zp, 9."""
    first = "".join(rng.choice(ascii_lowercase) for _ in range(rng.randint(0, 2)))
    last = "".join(rng.choice(digits) for _ in range(rng.randint(0 if first not in ("", "a", "an") else 1, 2)))
    return first + last if is_mild(first) else last or "0"


def number(rng: Random) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 4)))


def capital(rng: Random) -> str:
    kinds: tuple[Item, ...] = (word, nonsense, fragment)
    whole: str = rng.choice(kinds)(rng)
    return whole.upper() if rng.random() < 0.3 and is_mild(whole) else whole[0].upper() + whole[1:]


def glued(rng: Random) -> str:
    """Two pieces without a space, as in redspoon."""
    while True:
        both = rng.choice((word, fragment))(rng) + rng.choice((word, fragment))(rng)
        if is_mild(both):
            return both


def mark(rng: Random) -> str:
    return rng.choice(MARKS)


MIXED: tuple[Item, ...] = (word, word, name, nonsense, letters, fragment, fragment, code, number, capital, glued, mark)
GAMES: tuple[tuple[tuple[Item, ...], str], ...] = (
    ((word,), "(words|list of words|chant|rhyme)"),
    ((word,), "(words|list of words|chant|rhyme)"),
    ((word,), "(words|list of words|chant)"),
    ((word, name, capital), "(words|list|chant)"),
    ((nonsense,), "(magic words|spell|chant|secret words)"),
    ((code, number, letters), "(code|secret code|number)"),
    ((code,), "(code|secret code)"),
    ((letters, fragment), "(sounds|secret message|chant)"),
    ((fragment, glued), "(secret message|chant|spell)"),
    (MIXED, "(secret message|code|long list|riddle)"),
    (MIXED, "(secret message|code|long list|riddle)"),
    ((capital, mark, fragment), "(secret message|code)"),
)

OPENINGS = (
    "{time}, {AB:full} {play@AB} a (memory|word|listening) game.",
    "{time}, {A} {teach@A} {B} a {what}.",
    "{time}, {A:new} {find@A} a {what} (on a wall|in a book|on a piece of paper|inside a {?thing}).",
    "{time}, {A} and {B:new} {sit@AB} on {S:new}.",
    "{A} {know@A} a {what}.",
)
SAYINGS = (
    "{A} {say@A}: {items}.",
    '{A} {say@A}, "{items}."',
    "It {go@it} like this: {items}.",
    "The {what} {be@what}: {items}.",
    "{A} {read@A} (it|the paper) aloud: {items}.",
    "{A} {write@A}: {items}.",
)
BETWEEN = (
    "{B} {listen@B} (carefully|quietly|patiently).",
    '{A:full} {say@A}, "Can you (say|repeat|remember) (it|that)?"',
    "{B} {think@B} (for a while|about it).",
    "{B} {smile@B}.",
    '"(Now you|Again|Once more)," {say@A} {A:full}.',
    "{background}",
    "",
)
REPEATS = (
    "{B:full} {say@B} it again: {items}.",
    "{B:full} {repeat@B}: {items}.",
    '{B:full} {say@B}, "{items}."',
    "Then {B:full} {say@B}: {items}.",
    "{B:full} {write@B} it (down|again): {items}.",
    "{AB:full} {say@AB} it together: {items}.",
    "What did {A:full} say? {A:full} said: {items}.",
)
ENDINGS = (
    "It {be@it} (right|the same).",
    '"(Well done|Very good|That is right)!" {say@A} {A:full}.',
    "{AB:full} {laugh@AB}.",
    "{B:full} {know@B} it by heart.",
    "Not a (word|letter|sound) {be@it} (wrong|missing).",
)


def tell_game(teller: Teller, background: Callable[[], str]) -> None:
    """Tells a story in which a random sequence is said, and repeated once or twice."""
    rng = teller.rng
    kinds, what = rng.choice(GAMES)
    what = teller.choose(what)
    items = [rng.choice(kinds)(rng) for _ in range(rng.randint(6, 25))]
    sequence = rng.choice(SEPARATORS).join(items)

    def say(templates: tuple[str, ...]) -> None:
        template = rng.choice(templates)
        if template == "{background}":
            teller.say(background())
        else:
            several = is_plural(what)
            template = template.replace("a {what}", "some {what}" if several else "a {what}")
            template = template.replace("@what", "@many" if several else "@it").replace("{what}", what)
            teller.say(template, items=sequence)

    say(OPENINGS)
    say(SAYINGS)
    for _ in range(rng.choice((1, 1, 2)) if len(items) < 15 else 1):
        if rng.random() < 0.6:
            say(BETWEEN)
        say(REPEATS)
    say(ENDINGS)


def is_plural(what: str) -> bool:
    return what.endswith(("words", "sounds")) and not what.startswith("list")
