"""Texts and words that nobody would type, and that somebody will send."""

from random import Random

NASTY = (
    "\x1b[31m", "\x1b]0;owned\x07", "\x1b]52;c;aGk=\x07", "\x1bP+q\x1b\\", "\x9b2J", "\x9d0;x\x9c", "\x07", "\x08\x08",
    "\r", "\n", "\t", "\x0b\x0c", "\x7f", "\x85", "\u202e", "\u202dabc\u202c", "\u2066\u2069", "\u200e\u200f",
    "\u200b", "\u200d", "\ufeff", "\u2028", "\u2029", "\u00ad", "\u061c", "\u180e", "\U000e0041\U000e007f",
    "\ufff9a\ufffb",
    "❤\ufe0f", "☎\ufe0e", "\U000e0100", "e\u0301", "a" + "\u0301" * 40, "\u0301", "👩\u200d👩\u200d👧", "🇩🇪",
    "👍🏽", "猫", "ﾈ", "نَص",
    "\ue000", "\U0010ffff", "\ufdd0", "\u0378", "\U0001f98a", "\ud800", "\udfff", "\udc80", "\ud83d\ude00",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</pre></svg>", "&lt;&amp;", "]]>", "<!--", "\"'><b>",
    "javascript:x", "%s%n%1000000d", "{}", "{0.__class__}", "{{7*7}}", "{% for x in y %}", "$(id)", "`id`", "\\x1b",
    "../../etc/passwd", "~", "-", "--", "--help", "[red]x[/red]", "[/]", "[link=file:///]", "L0H0", "L99",
    "logits", "*",
    "#", "#0", "#-1", "#99999999999999999999", "0", "-1", "1e309", "nan", "inf", "1" * 400, "0x1f", "٣", "½", "", " ",
    "[MASK]", "<|endoftext|>", "<s>", "[CLS]", "null", "true", "=", ",", "a=b", "L0-9999999999",
    "L0H0.scores[a,b]", "[,]",
)  # fmt: skip
"""What could act on a terminal, hide, become markup or a format, or be taken for an option, number or address."""

_PLAIN = ("the", " cat", " sat", "on", " mat", "a", ".", " ", "The")


def word(rng: Random) -> str:
    """A word: something nasty, alone or among letters."""
    match rng.randrange(6):
        case 0:
            return rng.choice(NASTY)
        case 1:
            return "x" + rng.choice(NASTY) + "y"
        case 2:
            return "".join(chr(rng.randrange(1, 0x300)) for _ in range(rng.randrange(1, 12)))
        case 3:
            return "".join(chr(rng.randrange(1, 0x110000)) for _ in range(rng.randrange(1, 6)))
        case 4:
            return rng.choice(NASTY) + rng.choice(NASTY)
        case _:
            return rng.choice(_PLAIN) + rng.choice(NASTY) * rng.choice((1, 2, 50))


def text(rng: Random) -> str:
    """A text: mostly short, now and then one word of a hundred thousand characters."""
    if not rng.randrange(100):
        return (rng.choice(_PLAIN) or "x") * rng.choice((1_000, 20_000, 100_000))
    return "".join(rng.choice((word, lambda rng: rng.choice(_PLAIN)))(rng) for _ in range(rng.randrange(1, 12)))


def argument(rng: Random, made: str) -> str:
    """The same as the operating system passes it: without NUL, and with no surrogate but those of single bytes."""
    passed = made.replace("\0", "\x01").encode("utf-8", rng.choice(("surrogatepass", "replace")))
    return passed.decode("utf-8", "surrogateescape")
