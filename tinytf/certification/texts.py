"""Hard texts: characters that tokenizers split wrongly, and lengths at which masks, windows and caches go wrong."""

from typing import NamedTuple


class HardText(NamedTuple):
    """A text, named after its difficulty; ``repeated`` texts are repeated up to the longest length."""

    name: str
    text: str
    repeated: bool = False


_PLAIN = "The cat sat on the mat, and the dog lay under the table while it rained. "

HARD_TEXTS = (
    HardText("plain words", "The quick brown fox jumps over the lazy dog."),
    HardText("one letter", "a"),
    HardText("spaces around and between", "  two  spaces   three    four "),
    HardText("tabs and line ends", "one\ttwo\nthree\r\nfour\n\n\nfive\t\t six"),
    HardText("capitals and clitics", "DON'T WE'LL I'm they'Re HTTPServer2XX iPhone"),
    HardText("numbers", "3.14159 1,000,000 1e-9 0x1F 2026-11-22 ½ x² ⅫⅣ ١٢٣"),
    HardText("code", "def f(x):\n    return {'a': [x ** 2 != 0, None]}  # squared\n"),
    HardText("an address", "https://example.org/a/b?c=d&e=%20#f <me@example.org>"),
    HardText("accents, composed and not", "café cafe\u0301 naïve Straße ÅNGSTRÖM İstanbul ﬁne"),
    HardText("Chinese, Japanese, Korean", "你好，世界！東京タワー ｶﾀｶﾅ 한국어 문장 𠀋"),
    HardText("right to left", "שלום עולם مرحبا بالعالم \u202babc\u202c"),
    HardText("Indic and Thai", "हिन्दी क्षत्रिय தமிழ் ภาษาไทย"),
    HardText("emoji and joiners", "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 1️⃣ ❤️"),
    HardText("signs", "∑∫√∞≠≈ → ⇒ ·×÷ “quotes” ‘single’ – — … €£¥ 𝔘𝔫𝔦"),
    HardText("invisible characters", "a\u200bb\u00adc\ufeffd\u2028e\u00a0f\u3000g"),
    HardText("controls and noncharacters", "a\x01b\x7fc\ufffdd\ufffee\U0010ffff"),
    HardText("one letter, many times", "a" * 300),
    HardText(
        "a word that nobody knows", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
    ),
    HardText("the same again and again", "na " * 60),
    HardText("long", _PLAIN, repeated=True),
)
"""Add a line for any text or length that has broken a tokenizer or a model somewhere."""
