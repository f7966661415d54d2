"""Two hundred ordinary sentences, made from a seed: what people type to try a model."""

import random

HAND = (
    "The capital of France is Paris",
    "The cat sat on the mat",
    "Once upon a time there was a king who had three daughters.",
    "2 + 2 = 4, and 3 + 3 = 6.",
    "I have never seen such a thing in all my life!",
    "def add(a, b):\n    return a + b",
    "the the the the the the the the",
    "To be, or not to be, that is the question.",
    "Die Katze saß auf der Matte.",
    "Yes.",
)
_WHO = ("The old man", "My sister", "A young doctor", "The children", "Our neighbour", "The teacher", "Nobody", "She")
_DOES = ("bought", "found", "painted", "forgot", "carried", "sold", "looked at", "talked about", "hid", "repaired")
_WHAT = ("a red bicycle", "the broken clock", "two loaves of bread", "an old map", "the letter", "some flowers")
_WHERE = ("in the garden", "near the river", "at the market", "behind the school", "on the train", "in Berlin")
_WHEN = ("yesterday", "before dinner", "in the summer of 1998", "on Monday morning", "when it rained", "at last")
_ENDS = (".", "?", "!", ", and then went home.", ", because it was late.", ".")


def sentences(count: int = 200) -> list[str]:
    """The first of the two hundred."""
    draw = random.Random(32)
    parts = (_WHO, _DOES, _WHAT, _WHERE, _WHEN)
    made = (" ".join(draw.choice(part) for part in parts[: draw.randint(3, 5)]) for _ in range(200))
    return [*HAND, *(one + draw.choice(_ENDS) for one in made)][:count]
