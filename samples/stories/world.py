"""What a story is about: characters, things and places, and the ways to speak of each."""

from dataclasses import dataclass, field
from random import Random

from lexicon import ADJECTIVES, BOYS, GIRLS, NOUNS, NUMBERS, PLACES, Noun

Forms = dict[str, str]

# Pronouns by gender: subject, object, possessive, reflexive.
PRONOUNS = {
    "she": ("she", "her", "her", "herself"),
    "he": ("he", "him", "his", "himself"),
    "it": ("it", "it", "its", "itself"),
    "they": ("they", "them", "their", "themselves"),
}

CHILDLIKE = tuple(trait for trait in ADJECTIVES["trait"] if trait != "old")

# Letter runs that could spell something rude inside a made-up word.
AVOIDED = ("uck", "unt", "shi", "ass", "sex", "cum", "rap", "nig", "fag", "naz", "tit", "slu", "pis", "coc", "dic")
ONSET_TABLE = """b br c ch cl cr d dr f fl fr g gl gr h j k kr l m n p pl pr qu r s sk sl sm sn sp st str sw t th tr
    tw v vl w y z zh"""
NUCLEUS_TABLE = "a a e e i i o o u u ai ea ee oo ou ia"
CODA_TABLE = "b ck d f g k l ll lm m mp n nd ng nk p r rk rn rv s sk st t v x z"
ONSETS, NUCLEI, CODAS = ONSET_TABLE.split(), NUCLEUS_TABLE.split(), CODA_TABLE.split()


@dataclass(frozen=True)
class Entity:
    """Something a story keeps track of; `forms` holds each way to mention it."""

    pronoun: str
    forms: Forms
    descriptions: tuple[str, ...] = ()  # full references that all fit; one is drawn at each mention
    name: str = ""
    gender_is_plain: bool = True  # whether the words for it tell its pronoun

    @property
    def plural(self) -> bool:
        return self.pronoun == "they"

    @property
    def is_place(self) -> bool:
        return "there" in self.forms


@dataclass
class World:
    """Draws the entities of one story so that no two can be confused."""

    rng: Random
    invented: str = ""  # a made-up name that waits to be given to the first character or place
    invented_name: str = ""  # the one that was given
    used: set[str] = field(default_factory=set)

    def fresh(self, words: tuple[str, ...]) -> str:
        """Draws a word that this story has not used yet."""
        left = [word for word in words if word not in self.used]
        word = self.rng.choice(left or words)
        self.used.add(word)
        return word

    def fresh_noun(self, group: str) -> Noun:
        left = [noun for noun in NOUNS[group] if noun.singular not in self.used]
        noun = self.rng.choice(left or NOUNS[group])
        self.used.add(noun.singular)
        return noun

    def take_invented(self) -> str:
        name, self.invented = self.invented, ""
        self.invented_name = name or self.invented_name
        return name

    def character(self) -> Entity:
        return self.animal() if self.rng.random() < 0.35 else self.person()

    def person(self) -> Entity:
        """A person with a given name, or one known by what they are."""
        if self.invented or self.rng.random() < 0.72:
            return self.named_person()
        return self.described("person", self.rng.choice(("she", "he")))

    def named_person(self) -> Entity:
        pronoun = self.rng.choice(("she", "he"))
        invented = self.take_invented()
        name = invented or self.fresh(GIRLS if pronoun == "she" else BOYS)
        trait = self.fresh(CHILDLIKE)
        child = "girl" if pronoun == "she" else "boy"
        new = self.rng.choice((name, name, f"a {child} called {name}", f"a {trait} {child} called {name}"))
        forms = {"new": new, "noun": child, "adjective": trait, "gen": f"{name}'s", "name": name, "address": name}
        return Entity(pronoun, forms, (name,), name, gender_is_plain=not invented or child in new)

    def animal(self) -> Entity:
        if self.invented or self.rng.random() < 0.3:
            return self.named_animal()
        return self.described("animal", self.rng.choice(("she", "he", "it")))

    def named_animal(self) -> Entity:
        pronoun = self.rng.choice(("she", "he"))
        invented = self.take_invented()
        name = invented or self.fresh(GIRLS if pronoun == "she" else BOYS)
        kind = self.fresh_noun("animal").singular
        trait = self.fresh(ADJECTIVES["trait"])
        new = self.rng.choice((f"a {trait} {kind} called {name}", f"a {kind} called {name}", f"{name} the {kind}"))
        forms = {"new": new, "noun": kind, "adjective": trait, "gen": f"{name}'s", "name": name, "address": name}
        return Entity(pronoun, forms, (name, name, f"the {kind}"), name, gender_is_plain=not invented)

    def described(self, group: str, pronoun: str) -> Entity:
        """Somebody without a name: `the old baker`, `the fox`."""
        kind = self.fresh_noun(group)
        plain = kind in NOUNS["woman"] or kind in NOUNS["man"]
        if kind in NOUNS["woman"] or kind in NOUNS["man"]:
            pronoun = "she" if kind in NOUNS["woman"] else "he"
        elif kind.singular == "robot":
            pronoun = "it"
        trait = self.fresh(ADJECTIVES["trait"])
        the = f"the {kind.singular}"
        forms = {"new": f"a {trait} {kind.singular}", "noun": kind.singular, "adjective": trait, "gen": f"{the}'s"}
        forms |= {"name": the, "address": kind.singular.capitalize() if group == "animal" else kind.singular}
        return Entity(pronoun, forms, (the, the, f"the {trait} {kind.singular}"), gender_is_plain=plain)

    def herd(self) -> Entity:
        """Several animals of a kind, which stay together."""
        kind = self.fresh_noun("animal")
        number = self.rng.choice(NUMBERS[:5])
        forms = {
            "new": f"{number} {kind.plural}",
            "noun": kind.plural,
            "adjective": number,
            "gen": f"the {kind.plural}'",
        }
        forms["name"] = f"the {kind.plural}"
        return Entity("they", forms, (f"the {kind.plural}", f"the {number} {kind.plural}"))

    def thing(self, group: str = "thing", plural_share: float = 0.15) -> Entity:
        kind = self.fresh_noun(group)
        looks = {"thing": ("colour", "look"), "food": ("flavour",), "vehicle": ("colour",)}[group]
        adjective = self.fresh(ADJECTIVES[self.rng.choice(looks)])
        plural = self.rng.random() < plural_share
        noun = kind.plural if plural else kind.singular
        number = self.rng.choice((*NUMBERS[:4], "some", "some")) if plural else "a"
        forms = {"new": f"{number} {adjective} {noun}", "noun": noun, "adjective": adjective}
        forms |= {"name": f"the {noun}", "kind": kind.singular, "gen": f"the {noun}'s"}
        forms["that"] = f"{'those' if plural else 'that'} {adjective} {noun}"
        forms["this"] = f"{'these' if plural else 'this'} {adjective} {noun}"
        return Entity("they" if plural else "it", forms, (f"the {noun}", f"the {noun}", f"the {adjective} {noun}"))

    def one_thing(self) -> Entity:
        return self.thing(plural_share=0.0)

    def vehicle(self) -> Entity:
        return self.thing("vehicle", plural_share=0.0)

    def food(self) -> Entity:
        return self.thing("food")

    def place(self) -> Entity:
        noun = self.fresh(tuple(PLACES))
        plain = self.rng.random() < 0.6
        the = f"the {noun}" if plain else f"the {self.fresh(ADJECTIVES['scenery'])} {noun}"
        preposition = self.rng.choice(PLACES[noun].split())
        return self._place(the, f"{preposition} {the}", noun)

    def town(self) -> Entity:
        """A place with a made-up name."""
        name = self.take_invented() or invent_name(self.rng)
        noun = self.rng.choice(("village", "town", "island", "valley", "castle", "kingdom", "planet"))
        at = "on" if noun in ("island", "planet") else "in"
        return self._place(name, f"{at} {name}", noun, name)

    def _place(self, the: str, there: str, noun: str, name: str = "") -> Entity:
        return Entity(
            "it", {"there": there, "to": f"to {the}", "noun": noun, "name": the, "gen": f"{the}'s"}, (the,), name
        )

    def surface(self) -> Entity:
        """Something to sit on; more often than not, and by old custom, the mat."""
        noun = "mat" if self.rng.random() < 0.3 and "mat" not in self.used else self.fresh_noun("surface").singular
        self.used.add(noun)
        the = f"the {noun}"
        forms = {
            "new": f"a {noun}",
            "noun": noun,
            "there": f"on {the}",
            "to": f"to {the}",
            "name": the,
            "gen": f"{the}'s",
        }
        return Entity("it", forms, (the,))


def is_mild(word: str) -> bool:
    return not any(run in word.lower() for run in AVOIDED)


def syllable(rng: Random) -> str:
    onset = rng.choice(ONSETS) if rng.random() < 0.88 else ""
    return onset + rng.choice(NUCLEI) + (rng.choice(CODAS) if rng.random() < 0.6 else "")


def made_up_word(rng: Random, fewest: int, most: int) -> str:
    """Returns a word of so many random syllables."""
    while True:
        word = "".join(syllable(rng) for _ in range(rng.randint(fewest, most)))
        if 2 < len(word) < 11 and is_mild(word):
            return word


def invent_name(rng: Random) -> str:
    """Returns a name that nobody has, such as Zorvik."""
    while True:
        name = made_up_word(rng, 2, 3).capitalize()
        if len(name) > 3:
            return name
