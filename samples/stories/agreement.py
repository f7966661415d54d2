"""Sentences whose verb agrees with a noun that stands some words before it.

"The cats near the old house are hungry." Between the two stands another noun, of either number, so that the nearest
noun is no guide. Each returns a whole sentence about the background of a story, never about its characters.
"""

from collections.abc import Callable
from random import Random

from lexicon import ADJECTIVES, ADVERBS, NOUNS, NUMBERS, PLACES, VERB_GROUPS, VERBS, VOWELS, Noun, Verb

# What belongs to what: a head noun, the preposition, and the nouns that can follow.
PARTS = (
    ("key", "to", ("box", "door", "gate", "house", "castle", "shop")),
    ("door", "of", ("house", "barn", "shop", "castle", "cottage")),
    ("window", "of", ("house", "cottage", "library", "school", "bus", "train")),
    ("picture", "of", ("cat", "dog", "lion", "boat", "castle", "flower", "queen")),
    ("book", "about", ("star", "bear", "rocket", "wizard", "whale", "island")),
    ("story", "about", ("dragon", "princess", "robot", "pirate", "fox", "king")),
    ("song", "about", ("river", "sailor", "moon", "owl", "road")),
    ("button", "on", ("coat", "cushion", "drum")),
    ("bell", "of", ("tower", "school", "bicycle")),
    ("wheel", "of", ("tractor", "lorry", "bicycle", "train")),
    ("leaf", "of", ("tree", "flower")),
    ("branch", "of", ("tree",)),
    ("letter", "from", ("sailor", "queen", "teacher", "uncle", "friend")),
    ("boat", "on", ("river", "lake", "pond")),
    ("plate", "on", ("table", "shelf", "tray")),
    ("apple", "in", ("basket", "box", "bucket")),
    ("bank", "of", ("river", "stream")),
)
PART_ADJECTIVES = {
    "story": ("long", "short", "strange", "new", "famous", "funny"),
    "song": ("long", "short", "strange", "new", "famous", "lovely"),
    "bank": ("green", "wide", "stony", "quiet", "sunny", "dry", "wet"),
    "leaf": ("green", "red", "golden", "brown", "dry", "small"),
}
SIGHTS = (
    "blue",
    "red",
    "green",
    "white",
    "old",
    "new",
    "small",
    "big",
    "clean",
    "dusty",
    "shiny",
    "pretty",
    "lost",
    "broken",
)
EXTRA_NOUNS = {"pirate": Noun("pirate", "pirates"), "tray": Noun("tray", "trays")}
BY_NAME = {noun.singular: noun for group in NOUNS.values() for noun in group} | EXTRA_NOUNS


def inflect(verb: Verb, plural: bool, tense: str) -> str:
    """Inflects a verb of the third person."""
    if tense == "past":
        return "were" if verb.base == "be" and plural else verb.past
    if verb.base == "be":
        return "are" if plural else "is"
    return verb.base if plural else verb.third


def number_of(noun: Noun, plural: bool) -> str:
    return noun.plural if plural else noun.singular


def maybe_adjective(rng: Random, adjectives: tuple[str, ...], share: float = 0.4) -> str:
    return rng.choice(adjectives) + " " if rng.random() < share else ""


def someone(rng: Random, plural: bool) -> str:
    """Draws `The small cats` or `The teacher`."""
    noun = rng.choice(NOUNS["animal"] if rng.random() < 0.6 else NOUNS["person"])
    the = rng.choice(("The", "The", "The", "The", *(("Some", rng.choice(NUMBERS[:5]).capitalize()) if plural else ())))
    return f"{the} {maybe_adjective(rng, ADJECTIVES['trait'], 0.25)}{number_of(noun, plural)}"


def article(words: str) -> str:
    return "an" if words.startswith((*VOWELS, "honest")) and not words.startswith("useful") else "a"


def any_thing(rng: Random, group: str = "thing") -> str:
    """Draws `a red kite` or `the kites`."""
    adjectives = ADJECTIVES["flavour" if group == "food" else "colour"]
    words = maybe_adjective(rng, adjectives) + number_of(rng.choice(NOUNS[group]), plural := rng.random() < 0.3)
    return f"{'the' if plural or rng.random() < 0.4 else article(words)} {words}"


def any_place(rng: Random) -> str:
    return f"the {maybe_adjective(rng, ADJECTIVES['scenery'], 0.2)}{rng.choice(tuple(PLACES))}"


def doing(rng: Random) -> tuple[Verb, str]:
    """Draws a verb and what follows it."""
    kind = rng.random()
    if kind < 0.35:
        how = (" all day", " every evening", " in the sun", " alone", " nearby", f" {rng.choice(ADVERBS['manner'])}")
        return rng.choice(VERB_GROUPS["act"] + VERB_GROUPS["skill"]), rng.choice(("", "", *how))
    if kind < 0.5:
        where = rng.choice(("to", "to", "around", "past"))
        return rng.choice(VERB_GROUPS["move"]), f" {where} {any_place(rng)}"
    if kind < 0.6:
        return rng.choice(VERB_GROUPS["eat"]), " " + any_thing(rng, "food")
    if kind < 0.7:
        return rng.choice(VERB_GROUPS["cry"]), f" {rng.choice(ADVERBS['manner'])}"
    return rng.choice(VERB_GROUPS["handle"] + VERB_GROUPS["handicraft"]), " " + any_thing(rng)


def predicate(rng: Random, plural: bool, tense: str) -> str:
    """Draws what somebody does or how they feel."""
    be = inflect(VERBS["be"], plural, tense)
    kind = rng.random()
    if kind < 0.36:
        very = rng.choice(("", "", "", "very ", "always ", "never ", "quite "))
        return f"{be} {very}{rng.choice(ADJECTIVES['feeling'])}"
    verb, rest = doing(rng)
    if kind < 0.7:
        return inflect(verb, plural, tense) + rest
    if kind < 0.78:
        return f"{rng.choice(ADVERBS['frequency'])} {inflect(verb, plural, tense)}{rest}"
    if kind < 0.9 and verb.base not in ("love", "need", "want"):
        return f"{be} {verb.ing}{rest.removesuffix(' every evening')}"
    if verb.base in ("love", "need", "want", "lose", "drop"):
        return inflect(verb, plural, tense) + rest
    wish = rng.choice(("want", "like", "hope", "begin", "try", "start", "learn"))
    return f"{inflect(VERBS[wish], plural, tense)} to {verb.base}{rest}"


def near_a_place(rng: Random, tense: str) -> str:
    """The cats near the old house are hungry."""
    plural = rng.random() < 0.5
    place = rng.choice(tuple(PLACES))
    where = rng.choice(PLACES[place].split())
    several = where in ("near", "behind", "beside") and rng.random() < 0.35
    words = number_of(BY_NAME[place], several)
    where = f"{where} the {maybe_adjective(rng, ADJECTIVES['scenery'])}{words}"
    return f"{someone(rng, plural)} {where} {predicate(rng, plural, tense)}."


def with_a_thing(rng: Random, tense: str) -> str:
    """The girl with the red kites is happy."""
    plural, several = rng.random() < 0.5, rng.random() < 0.5
    thing = number_of(rng.choice(NOUNS["thing"]), several)
    words = maybe_adjective(rng, ADJECTIVES["colour"], 0.6) + thing
    the = "the" if several or rng.random() < 0.5 else article(words)
    return f"{someone(rng, plural)} with {the} {words} {predicate(rng, plural, tense)}."


def who_likes(rng: Random, tense: str) -> str:
    """The boy who likes the dogs sleeps."""
    plural, several = rng.random() < 0.5, rng.random() < 0.6
    liked = number_of(rng.choice(NOUNS["animal"] + NOUNS["worker"]), several)
    likes = inflect(rng.choice(VERB_GROUPS["regard"]), plural, tense)
    people = number_of(rng.choice(NOUNS["person"]), plural)
    return f"The {people} who {likes} the {liked} {predicate(rng, plural, tense)}."


def whom_they_like(rng: Random, tense: str) -> str:
    """The fox that the children see smiles."""
    plural, several = rng.random() < 0.5, rng.random() < 0.5
    other = number_of(rng.choice(NOUNS["person"]), several)
    likes = inflect(rng.choice(VERB_GROUPS["regard"]), several, tense)
    animal = number_of(rng.choice(NOUNS["animal"]), plural)
    return f"The {animal} that the {other} {likes} {predicate(rng, plural, tense)}."


def part_of(rng: Random, tense: str) -> str:
    """The keys to the wooden box were lost."""
    plural, several = rng.random() < 0.6, rng.random() < 0.4
    head, preposition, owners = rng.choice(PARTS)
    several = several and head not in ("bank", "bell", "button") and preposition != "in"
    owner = number_of(BY_NAME[rng.choice(owners)], several)
    plural = plural or (several and preposition in ("of", "to") and head != "picture")
    adjectives = PART_ADJECTIVES.get(head, SIGHTS)
    described = maybe_adjective(rng, ("old", "little", "big", "wooden") if head == "key" else ("old", "little", "big"))
    verb = inflect(VERBS["be"], plural, tense)
    very = rng.choice(("", "", "", "very ", "quite "))
    adjective = rng.choice(adjectives)
    if adjective in (*ADJECTIVES["colour"], "lost", "broken"):
        very = ""
    return f"The {number_of(BY_NAME[head], plural)} {preposition} the {described}{owner} {verb} {very}{adjective}."


def somebody_sits(rng: Random, tense: str) -> str:
    """The cat sat on the mat."""
    plural = rng.random() < 0.12
    noun = BY_NAME["cat"] if rng.random() < 0.35 else rng.choice(NOUNS["animal"] + NOUNS["person"])
    mat = rng.random() < (0.5 if noun.singular == "cat" else 0.2)
    seat = BY_NAME["mat"] if mat else rng.choice(NOUNS["surface"])
    words = maybe_adjective(rng, ADJECTIVES["colour"], 0.0 if mat else 0.15) + seat.singular
    where = f" on {'the' if rng.random() < 0.85 else article(words)} {words}"
    base = "sit" if rng.random() < (0.85 if tense == "past" else 0.5) else "sleep"
    if base == "sleep" and rng.random() < 0.25:
        where = rng.choice(("", " all day", " quietly"))
    trait = maybe_adjective(rng, ADJECTIVES["trait"], 0.15)
    return f"The {trait}{number_of(noun, plural)} {inflect(VERBS[base], plural, tense)}{where}."


def that_thing(rng: Random, tense: str) -> str:
    """That blue aeroplane is very dangerous."""
    plural = rng.random() < 0.25
    noun = rng.choice(NOUNS["vehicle" if rng.random() < 0.7 else "thing"])
    that = rng.choice(("those", "these") if plural else ("that", "that", "this")).capitalize()
    colour = "blue" if rng.random() < 0.25 else rng.choice(ADJECTIVES["colour"])
    judgement = "dangerous" if rng.random() < 0.25 else rng.choice(ADJECTIVES["judgement"])
    very = rng.choice(("very ", "very ", "very ", "quite ", ""))
    if tense == "past" and rng.random() < 0.5:
        speaker = rng.choice(NOUNS["person"]).singular
        be = inflect(VERBS["be"], plural, "present")
        return f'"{that} {colour} {number_of(noun, plural)} {be} {very}{judgement}," said the {speaker}.'
    return f"{that} {colour} {number_of(noun, plural)} {inflect(VERBS['be'], plural, tense)} {very}{judgement}."


def there_is(rng: Random, tense: str) -> str:
    """There are three old maps in the box near the windows."""
    plural = rng.random() < 0.5
    noun = rng.choice(NOUNS["animal"] + NOUNS["thing"] + NOUNS["food"])
    words = maybe_adjective(rng, ADJECTIVES["colour"], 0.3 if noun in NOUNS["thing"] else 0.0) + number_of(noun, plural)
    number = rng.choice((*NUMBERS, "some", "many")) if plural else article(words)
    place = rng.choice(tuple(PLACES))
    where = f"{rng.choice(PLACES[place].split())} the {maybe_adjective(rng, ADJECTIVES['scenery'], 0.3)}{place}"
    return f"There {inflect(VERBS['be'], plural, tense)} {number} {words} {where}."


def nature(rng: Random, tense: str) -> str:
    """The stars above the hill shine."""
    heads = {
        "star": "glow shine sparkle",
        "cloud": "float stand",
        "leaf": "fall float",
        "stone": "fall roll",
        "lamp": "glow shine",
    }
    head = rng.choice(tuple(heads))
    plural = rng.random() < 0.6
    verb = inflect(VERBS[rng.choice(heads[head].split())], plural, tense)
    place, several = rng.choice(NOUNS["place"]), rng.random() < 0.4
    where = "above" if head in ("star", "cloud") else rng.choice(("near", "by", "below"))
    how = rng.choice(("", "", f" {rng.choice(('softly', 'slowly', 'gently', 'quietly', 'silently'))}", " every night"))
    return f"The {number_of(BY_NAME[head], plural)} {where} the {number_of(place, several)} {verb}{how}."


def two_together(rng: Random, tense: str) -> str:
    """The fox and the teachers are proud."""
    first, second = rng.sample(NOUNS["animal"] + NOUNS["person"], 2)
    first_words, second_words = (number_of(noun, rng.random() < 0.25) for noun in (first, second))
    return f"The {first_words} and the {second_words} {predicate(rng, True, tense)}."


KINDS: tuple[Callable[[Random, str], str], ...] = (
    near_a_place,
    near_a_place,
    with_a_thing,
    who_likes,
    whom_they_like,
    part_of,
    part_of,
    somebody_sits,
    somebody_sits,
    somebody_sits,
    that_thing,
    there_is,
    nature,
    two_together,
)


def background(rng: Random, tense: str) -> str:
    """Draws one sentence of any kind."""
    return rng.choice(KINDS)(rng, tense)
