"""The template language of the plots, and the narrator who fills it in.

    (a|b|c)        one of the alternatives
    {A}            the entity A as a subject: its name or description, or a pronoun where that is clear
    {A:obj}        the same as an object: Mia, the fox, her, it
    {A:full}       never a pronoun
    {A:own} {A:self}   her, herself
    {A:new} ...    any other form of the entity, see `world.Entity.forms`
    {AB}           both, or "they"
    {find@A}       the verb in the story's tense, agreeing with A; with ! present, with < past
    {?animal}      a random word of a group of the lexicon; +s plural, +ing, +ed; @A agreeing; #1 to remember it

The first letter of an entity says what it is: A B C characters, E an animal, H a herd, K L M things, O one thing,
P Q R places, T a town, S U surfaces, F food, V a vehicle. It is made when first mentioned.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random

from lexicon import GROUPS, VERBS, Noun, Verb
from world import PRONOUNS, Entity, World

ALTERNATIVES = re.compile(r"\(([^()]*)\)")
SENTENCE_END = re.compile(r'(?<=[.!?]) |(?<=\.") ')
SLOT = re.compile(r"\{([^{}]+)\}")
ENTITIES = re.compile(r"[A-Z]{1,2}")
WORD_SLOT = re.compile(r"\?(?P<group>\w+)(?P<key>#\d)?(?P<form>\+\w+)?(?:@(?P<agree>\w+)(?P<tense>[!<])?)?")
VERB_SLOT = re.compile(r"(?P<base>[a-z]+)@(?P<agree>\w+)(?P<tense>[!<])?")
ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU](?!seful)|honest)")

MAKERS: dict[str, Callable[[World], Entity]] = {
    **dict.fromkeys("ABC", World.character),
    **dict.fromkeys("KLM", World.thing),
    **dict.fromkeys("PQR", World.place),
    **dict.fromkeys("SU", World.surface),
    "E": World.animal,
    "H": World.herd,
    "O": World.one_thing,
    "T": World.town,
    "V": World.vehicle,
    "F": World.food,
}
PEOPLE = "ABCEH"
TIMES = {
    "past": """One day|One morning|One evening|Yesterday|Once|Last summer|Last winter|One {?weather} day|On {?weekday}|
        Long ago|Last week""",
    "present": "Today|This morning|Every day|Every {?weekday}|Every morning|On {?weather} days|In summer",
}


@dataclass
class Teller:
    """Tells one story, sentence by sentence, and remembers who was mentioned last."""

    rng: Random
    world: World
    tense: str = "past"
    cast: dict[str, Entity] = field(default_factory=dict)
    memory: dict[str, Noun | Verb | str] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)  # keys of what the last sentence mentioned
    current: list[str] = field(default_factory=list)

    def say(self, template: str, **literals: str) -> None:
        """Adds the sentences of a template; `literals` are put into their slots untouched."""
        for sentence in SENTENCE_END.split(self.choose(template)):
            if not sentence:
                continue
            text = SLOT.sub(lambda slot: slot[0] if slot[1] in literals else self.fill(slot[1]), sentence)
            text = capitalise(ARTICLE.sub(r"\1n ", text))
            for name, literal in literals.items():
                text = text.replace("{" + name + "}", literal)
            self.sentences.append(text)
            self.earlier, self.current = self.current, []

    def choose(self, template: str) -> str:
        while "(" in template:
            template = ALTERNATIVES.sub(lambda match: self.rng.choice(match[1].split("|")), template)
        return template

    def text(self) -> str:
        return " ".join(self.sentences)

    def entity(self, key: str) -> Entity:
        if key not in self.cast:
            self.cast[key] = MAKERS[key](self.world)
        return self.cast[key]

    def fill(self, slot: str) -> str:
        """Returns the words for what stands between two braces."""
        if slot == "time":
            times = " ".join(TIMES[self.tense].split()).split("|")
            return SLOT.sub(lambda inner: self.fill(inner[1]), self.rng.choice(times).strip())
        head, _, form = slot.partition(":")
        if ENTITIES.fullmatch(head):
            return self.mention(head, form or "subject")
        if slot.startswith("?"):
            return self.random_word(parse(WORD_SLOT, slot))
        parts = parse(VERB_SLOT, slot)
        return self.agree(VERBS[parts["base"]], parts["agree"], parts["tense"])

    def mention(self, key: str, form: str) -> str:
        if len(key) == 2:
            return self.mention_pair(key, form)
        is_new = key not in self.cast
        entity = self.entity(key)
        if is_new and key in PEOPLE and form in ("subject", "obj", "full"):
            form = "new"
        if form in ("own", "self"):
            return PRONOUNS[entity.pronoun][2 if form == "own" else 3]
        if form not in ("subject", "obj", "full"):
            if form in ("new", "name", "that", "this"):
                self.note(key)
            return entity.forms[form]
        by_pronoun = form != "full" and self.is_clear(key) and self.rng.random() < 0.6
        self.note(key)
        if by_pronoun:
            return PRONOUNS[entity.pronoun][form == "obj"]
        return self.rng.choice(entity.descriptions)

    def mention_pair(self, key: str, form: str) -> str:
        by_pronoun = form != "full" and all(map(self.is_recent, key)) and not self.rivals("they", key)
        names = [self.mention(each, "name" if each in self.cast else "new") for each in key]
        if by_pronoun and self.rng.random() < 0.7:
            return PRONOUNS["they"][form == "obj"]
        return " and ".join(names)

    def note(self, key: str) -> None:
        if not self.entity(key).is_place:
            self.current.append(key)

    def is_recent(self, key: str) -> bool:
        return key in self.earlier or key in self.current

    def is_clear(self, key: str) -> bool:
        """Whether the pronoun of `key` can mean nothing else that was mentioned of late."""
        return self.is_recent(key) and not self.rivals(self.entity(key).pronoun, key)

    def rivals(self, pronoun: str, keys: str) -> list[str]:
        """Returns what else a reader could take `pronoun` for, and so whoever might be a she or a he."""
        others = [each for each in self.earlier + self.current if each not in keys]
        same = [each for each in others if self.cast[each].pronoun == pronoun]
        if pronoun not in ("she", "he"):
            return same
        all_plain = all(self.cast[key].gender_is_plain for key in keys)
        unclear = [each for each in others if each in PEOPLE and not (all_plain and self.cast[each].gender_is_plain)]
        return same + unclear

    def agree(self, verb: Verb, key: str, tense: str | None = None) -> str:
        """Inflects a verb for its subject: an entity, a pair, `one`, `many`, `I` or `you`."""
        plural = key in ("many", "you") or (len(key) == 2 and key.isupper()) or (len(key) == 1 and self.is_plural(key))
        if {"!": "present", "<": "past"}.get(tense or "", self.tense) == "past":
            return "were" if verb.base == "be" and plural else verb.past
        if verb.base == "be":
            return "am" if key == "I" else "are" if plural else "is"
        return verb.base if plural or key == "I" else verb.third

    def is_plural(self, key: str) -> bool:
        return key != "I" and self.entity(key).plural

    def random_word(self, parts: dict[str, str]) -> str:
        remembered = parts["group"] + (parts["key"] or "")
        word = self.memory.get(remembered) if parts["key"] else None
        if word is None:
            options = GROUPS[parts["group"]]
            taken = self.memory.values()
            word = self.rng.choice([option for option in options if option not in taken] or options)
            if parts["key"]:
                self.memory[remembered] = word
        if isinstance(word, Noun):
            return word.plural if parts["form"] == "+s" else word.singular
        if isinstance(word, Verb):
            if parts["agree"]:
                return self.agree(word, parts["agree"], parts["tense"])
            return {"+ing": word.ing, "+ed": word.past}.get(parts["form"] or "", word.base)
        return word


@cache
def _parsed(pattern: re.Pattern[str], slot: str) -> tuple[tuple[str, str], ...]:
    match = pattern.fullmatch(slot)
    if match is None:
        raise ValueError(f"cannot read the slot {{{slot}}}")
    return tuple(match.groupdict().items())


def parse(pattern: re.Pattern[str], slot: str) -> dict[str, str]:
    return dict(_parsed(pattern, slot))


def capitalise(sentence: str) -> str:
    """Gives a sentence, and the speech that it opens or introduces, a capital."""
    sentence = re.sub(r'(?<=[,:] ")[a-z]', lambda letter: letter[0].upper(), sentence)
    first = 1 if sentence.startswith('"') else 0
    return sentence[:first] + sentence[first : first + 1].upper() + sentence[first + 1 :]
