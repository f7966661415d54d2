"""Texts that tokenizers get wrong: 2,000 of them, the same each time for the same seed."""

import random

SEED = 20_240_229
COUNT = 2_000

_WORDS = "the The THE cat don't I'll we've café naïve Straße ÅNGSTRÖM ﬁne x² ½ i̇stanbul İ ǆ résumé 3.14 1e-9".split()
_CODE = [
    "def f(x):\n    return x ** 2  # squared\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i];\n}\r\n",
    '{"key": [1, 2.5e-3, null, "\\u00e9"]}',
    "<div class='a'>&nbsp;</div>",
    "SELECT * FROM t WHERE a<>'b' AND c>=10;",
    "x=y==z!=w->*p...//",
    "https://example.org/a?b=c&d=%20#e",
]
_EMOJI = ["🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇯🇵", "❤️", "1️⃣", "🧑🏿‍🚀", "☺", "🫠", "\U0001faea"]
_SCRIPTS = [
    "你好，世界！",
    "東京タワー",
    "한국어 문장",
    "カタカナｶﾀｶﾅ",
    "𠀋𡈽",
    "שלום עולם",
    "مرحبا بالعالم",
    "\u202bשלום abc\u202c",
    "हिन्दी क्षत्रिय",
    "ภาษาไทย",
    "Привет, мир",
    "Ἀθῆναι",
    "ᚠᛇᚻ",
    "ⅫⅣ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "ＦＵＬＬｗｉｄｔｈ",
]
_SPACES = [
    " ",
    "  ",
    "    ",
    " " * 17,
    "\t",
    "\t\t ",
    "\n",
    "\n\n",
    " \n ",
    "\r\n",
    "\r",
    "\v\f",
    "\xa0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\x85",
]
_CONTROLS = [
    "\x00",
    "\x07",
    "\x1b[31m",
    "\x7f",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u202e",
    "\ufffd",
    "\ufffe",
    "\U0010ffff",
    "\ue000",
    "\xad",
    "\u061c",
]
_MARKS = [
    "e\u0301",
    "a\u0308\u0304",
    "\u0301",
    "o\u0327\u0323\u0302",
    "Z\u0351\u036b\u0343",
    "\u0644\u0651\u064e",
    "\u212b",
    "\u1e9b\u0323",
    "\uac00\u11a8",
]
_DIGITS = ["0", "42", "2024-02-29", "1,000,000.00", "٣٤٥", "१२३", "³", "①", "1" * 30, "0x1F"]
_LOOK_ALIKES = [
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", " <mask> ", "<s", "< s >", "<<s>>", "</s></s>",
    "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "[mask]", "[ MASK ]", "[MASK][MASK]", " [MASK] ", "x[SEP]y",
    "<|endoftext|>", "<|endoftext|", "<|im_start|>user\n", "<|im_end|>", "<tool_call>", "<|begin_of_text|>", "<|eot_id|>",
    "<0x0A>", "<0xF0>", "▁", "▁▁the", "Ġ", "Ċ", "##ing", "@@", "</w>",
]  # fmt: skip
_PUNCTUATION = ["...", "?!", "—", "“x”", "'s", "'S", "’s", "$€£", "~`^|\\", "--", "#", "_", "a_b", "C++", "@user", "%"]
_KINDS = (_WORDS, _CODE, _EMOJI, _SCRIPTS, _SPACES, _CONTROLS, _MARKS, _DIGITS, _LOOK_ALIKES, _PUNCTUATION)


def hard_strings(count: int = COUNT, seed: int = SEED) -> list[str]:
    """Every piece by itself, then mixtures of one kind, of all kinds, of any characters, and very long words."""
    dice = random.Random(seed)
    makers = (_of_one_kind, _of_all_kinds, _of_all_kinds, _of_any_characters, _very_long)
    texts = ["", *(piece for kind in _KINDS for piece in kind)]
    while len(texts) < count:
        texts.append(dice.choice(makers)(dice))
    return texts[:count]


def _of_one_kind(dice: random.Random) -> str:
    kind = dice.choice(_KINDS)
    return dice.choice(["", " ", "\n"]).join(dice.choice(kind) for _ in range(dice.randint(2, 12)))


def _of_all_kinds(dice: random.Random) -> str:
    pieces = [dice.choice(dice.choice(_KINDS)) for _ in range(dice.randint(2, 12))]
    return "".join(piece + dice.choice(["", "", " ", "  "]) for piece in pieces)


def _of_any_characters(dice: random.Random) -> str:
    planes = (
        (0x20, 0x7E),
        (0x0, 0x2FF),
        (0x300, 0x36F),
        (0x0, 0xD7FF),
        (0xE000, 0xFFFF),
        (0x1F300, 0x1FAFF),
        (0x0, 0x1F),
    )
    return "".join(chr(dice.randint(*dice.choice(planes))) for _ in range(dice.randint(1, 30)))


def _very_long(dice: random.Random) -> str:
    piece = dice.choice([*_WORDS, "a", "ab", "é", "好", "🙂", "-", " ", "\n", "9", "e\u0301"])
    return (piece * 600)[: dice.choice([99, 100, 101, 250, 600])] + dice.choice(["", " end"])
