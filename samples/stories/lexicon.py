"""Every word the stories know, as plain tables, with the rules that inflect them.

A noun is written `singular` or `singular/plural`; a verb `base`, `base/past` or `base/past/ing`.
What is not written follows the ordinary English rules below.
"""

from dataclasses import dataclass

VOWELS = "aeiou"


@dataclass(frozen=True)
class Noun:
    singular: str
    plural: str


@dataclass(frozen=True)
class Verb:
    base: str
    third: str  # she finds
    past: str
    ing: str


def noun(entry: str) -> Noun:
    """Reads a table entry, `fox` or `mouse/mice`."""
    singular, _, plural = entry.partition("/")
    return Noun(singular, plural or add_s(singular))


def verb(entry: str) -> Verb:
    """Reads a table entry, `walk`, `find/found` or `begin/began/beginning`."""
    base, past, ing = (*entry.split("/"), "", "")[:3]
    stem = base + base[-1] if doubles_last_letter(base) else base
    if not past:
        if base.endswith("e"):
            past = base + "d"
        elif ends_in_consonant_y(base):
            past = base[:-1] + "ied"
        else:
            past = stem + "ed"
    if not ing:
        silent_e = base.endswith("e") and not base.endswith(("ee", "oe", "ye")) and base != "be"
        ing = (base[:-1] if silent_e else stem) + "ing"
    return Verb(base, add_s(base), past, ing)


def add_s(word: str) -> str:
    """Spells `word` with its plural or third-person ending."""
    if ends_in_consonant_y(word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")


def ends_in_consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in VOWELS


def doubles_last_letter(base: str) -> bool:
    """Whether a verb of one short syllable doubles its last letter, as in hop, hopped."""
    one_syllable = sum(letter in VOWELS for letter in base) == 1
    return one_syllable and len(base) > 2 and base[-2] in VOWELS and base[-1] not in VOWELS + "wxy"


NOUN_TABLE = {
    "animal": """cat dog mouse/mice rabbit fox bear duck goose/geese hen frog horse pony sheep/sheep lamb cow goat
        donkey pig owl robin crow squirrel hedgehog badger otter mole turtle snail bee butterfly wolf/wolves lion tiger
        elephant monkey penguin puppy kitten deer/deer parrot whale dragon beetle""",
    "woman": "girl woman/women queen princess witch/witches grandmother aunt sister mother",
    "man": "boy man/men king prince wizard grandfather uncle brother father postman/postmen fisherman/fishermen",
    "worker": """teacher baker farmer sailor doctor nurse painter gardener captain shepherd tailor child/children
        neighbour pupil robot""",
    "thing": """kite ball hat key box coin lamp cup spoon book map rope bell drum flute basket bucket candle clock ring
        scarf/scarves coat button feather shell stone brush watch whistle marble ribbon blanket pillow letter parcel
        pencil puzzle doll teapot jug umbrella lantern mirror telescope wheel leaf/leaves violin trumpet compass medal
        mug plate flower toy picture""",
    "food": """apple pear plum cake biscuit egg orange berry cherry potato/potatoes tomato/tomatoes loaf/loaves pie
        sandwich nut carrot pancake onion""",
    # Twice or more: so much more often.
    "vehicle": "aeroplane aeroplane aeroplane aeroplane train ship bus car bicycle tractor lorry balloon rocket boat",
    "surface": "mat chair bench rug bed step sofa wall log stool cushion roof branch shelf/shelves",
    "place": """house bridge river hill forest garden barn pond lake beach market shop school castle tower mill village
        field meadow cave harbour island library bank kitchen attic stable park street station tree gate fence well
        door window cottage orchard farm table""",
    "time": "day morning evening",
    "period": "night week year",
    "speaker": "teacher robot",
    "tool": "hammer needle rope ribbon brush",
    "nature": "star cloud moon sun road stream wind",
    "body": "foot/feet tooth/teeth hand eye ear",
    "talk": "name word song story question game secret friend",
}
NOUNS = {group: tuple(noun(entry) for entry in table.split()) for group, table in NOUN_TABLE.items()}
NOUNS["person"] = NOUNS["woman"] + NOUNS["man"] + NOUNS["worker"]

VERB_TABLE = {
    # What one can do alone, anywhere.
    "act": """sleep/slept laugh sing/sang dance smile yawn wait whistle work play rest hum giggle nap read/read dream
        think/thought""",
    "move": "run/ran walk hurry skip wander crawl hop ride/rode",
    "say": "say/said",
    "tell": "shout whisper reply call answer cry explain",
    "cry": "shout whisper call cry",
    "ask": "ask",
    # What one can do to a thing, and still have it.
    "handle": "carry hold/held polish wash admire shake/shook lift clean touch wrap draw/drew show hug keep/kept love",
    "own": """take/took give/gave pass put/put pack
        lend/lent swap want need like make/made open close leave/left forget/forgot/forgetting send/sent get/got""",
    # What one can do to somebody.
    "regard": """like help follow see/saw watch hear/heard meet/met visit thank teach/taught know/knew miss greet
        feed/fed love remember""",
    "eat": "eat/ate bake cook share buy/bought",
    "skill": "swim/swam fly/flew climb jump",
    "handicraft": """find/found lose/lost hide/hid drop bring/brought buy/bought sell/sold need want paint mend
        break/broke choose/chose count build/built draw/drew catch/caught throw/threw""",
    "thing_act": "fall/fell shine/shone roll float stand/stood glow sparkle",
    "other": """sit/sat go/went come/came look live learn start stop begin/began/beginning turn point wave
        blow/blew grow/grew rain drink/drank plant win/won try listen write/wrote repeat promise hope feel/felt
        stay tell/told stroke""",
}
VERB_GROUPS = {group: tuple(verb(entry) for entry in table.split()) for group, table in VERB_TABLE.items()}
VERBS = {each.base: each for group in VERB_GROUPS.values() for each in group} | {
    "be": Verb("be", "is", "was", "being"),
    "have": Verb("have", "has", "had", "having"),
    "do": Verb("do", "does", "did", "doing"),
}

ADJECTIVE_TABLE = {
    "colour": "red blue green yellow white black brown purple pink orange golden silver grey",
    "look": """small big little large old new tiny huge round wooden shiny pretty heavy light soft long short plain
        dusty striped clean thin thick flat strange smooth""",
    "trait": """kind brave shy clever quiet cheerful gentle lazy polite careful curious honest friendly funny patient
        wise young old small busy silly noisy""",
    "feeling": """happy sad hungry tired sleepy proud excited thirsty cold warm calm glad worried pleased lonely bored
        cross surprised awake safe ready""",
    "judgement": """dangerous useful beautiful expensive interesting special fast slow famous ordinary important
        wonderful lovely strong""",
    "scenery": "old quiet narrow empty green dark tall little big pretty dusty sunny cool stony wide",
    "weather": "sunny rainy windy snowy cloudy cold warm foggy bright dry wet",
    "comparative": "bigger smaller taller shorter faster slower older younger stronger kinder braver happier wiser",
    "flavour": "sweet sour fresh ripe delicious hot salty juicy tasty",
}
ADJECTIVES = {group: tuple(table.split()) for group, table in ADJECTIVE_TABLE.items()}

ADVERB_TABLE = {
    "manner": """quickly slowly quietly loudly happily sadly gently softly carefully bravely proudly politely kindly
        eagerly calmly cheerfully neatly patiently silently warmly brightly""",
    "sequence": "then soon later afterwards next finally",
    "frequency": "always often usually sometimes",
}
OTHER_ADVERBS = "never very quite too again together home away outside inside nearby there here now"
ADVERBS = {group: tuple(table.split()) for group, table in ADVERB_TABLE.items()}

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PREPOSITIONS = (
    "in",
    "on",
    "under",
    "behind",
    "near",
    "beside",
    "by",
    "above",
    "below",
    "with",
    "from",
    "into",
    "around",
)

# A place and the prepositions under which somebody or something can be there.
PLACES = {
    "house": "in behind near beside",
    "bridge": "under near beside on",
    "river": "near beside by",
    "hill": "on behind",
    "forest": "in near",
    "garden": "in behind",
    "barn": "in behind near",
    "pond": "near beside by",
    "lake": "near beside by",
    "beach": "on near",
    "market": "at near",
    "shop": "in near behind",
    "school": "at behind near",
    "castle": "in near behind",
    "tower": "in behind beside",
    "mill": "in behind near",
    "village": "in near",
    "field": "in near",
    "meadow": "in near",
    "cave": "in near",
    "harbour": "in near",
    "island": "on",
    "library": "in near behind",
    "bank": "in near beside",
    "kitchen": "in",
    "attic": "in",
    "stable": "in behind",
    "park": "in near",
    "street": "in",
    "station": "at near behind",
    "tree": "under behind near",
    "gate": "behind near beside",
    "fence": "behind near beside",
    "well": "behind near beside",
    "door": "behind near beside",
    "window": "near beside under",
    "cottage": "in behind near",
    "orchard": "in near",
    "farm": "on near",
    "table": "under near beside",
}

GIRL_NAMES = """
    Mia Ada Alice Amy Anna Bella Beth Carla Clara Daisy Ella Elsie Emily Emma Eva Fatima Fiona Flora Freya Grace
    Greta Hannah Harriet Hazel Helen Holly Iris Isla Ivy Jane Jasmine Joan Julia Kate Leah Lena Lily Lottie Lucy
    Mabel Maria Martha Mary Matilda Maya Megan Milly Molly Nell Nina Nora Olive Olivia Pippa Polly Priya Rachel Rosa
    Rosie Ruby Ruth Sally Sara Sofia Sophie Susan Tessa Tilly Vera Violet Wendy Yasmin Zara Zoe
"""
BOY_NAMES = """
    Tom Ben Adam Alan Albert Alex Amir Andrew Arthur Ali Bill Charlie Colin Dan Daniel David Dylan Eddie Edward Eric
    Ethan Felix Finn Frank Fred George Harry Henry Hugo Isaac Jack Jacob James Jamie Joe John Josh Kai Kofi Leo Leon
    Lewis Liam Louis Luca Luke Marco Martin Matthew Max Michael Milo Mohammed Ned Noah Oliver Oscar Owen Patrick
    Paul Peter Ralph Ravi Robert Robin Sam Samuel Simon Stanley Theo Thomas Tim Toby Victor Will
"""

GIRLS = tuple(GIRL_NAMES.split())
BOYS = tuple(BOY_NAMES.split())

GROUPS: dict[str, tuple[Noun | Verb | str, ...]] = {
    **NOUNS,
    **VERB_GROUPS,
    **ADJECTIVES,
    **ADVERBS,
    "number": NUMBERS,
    "weekday": DAYS,
    "girl": GIRLS,
    "boy": BOYS,
}


def every_word() -> tuple[str, ...]:
    """Returns each form of each word once, in a fixed order; memory games draw from it."""
    forms: list[str] = [*PREPOSITIONS, *OTHER_ADVERBS.split()]
    for words in (VERBS.values(), *GROUPS.values()):
        for word in words:
            match word:
                case Noun():
                    forms += [word.singular, word.plural]
                case Verb():
                    forms += [word.base, word.third, word.past, word.ing]
                case str():
                    forms.append(word)
    return tuple(dict.fromkeys(forms))
