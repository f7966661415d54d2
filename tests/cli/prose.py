"""What no sentence on a screen may hold: wrong plurals, two equal shares, unfilled placeholders, numbers too exact."""

import re

LONGEST = 200
"""Letters of a report's sentence: two lines of a usual terminal."""
_NOUNS = (
    "token|head|layer|step|text|pair|edge|node|feature|number|weight|word|part|unit|row|column|file|model|document|way|"
    "tensor|parameter|expert|sample|beam|cell|time|bit|nat|check|position|character|byte|window|frame|setting|shard|"
    "level|prediction|passage|probe|image|scale|seed|choice|letter|difference|summand|term"
)
_FAULTS = {
    "a plural of one": rf"(?<![\d.,:^\[\-/×*])\b1 (?:(?!of )\w+ )?(?:{_NOUNS})s\b(?!')",
    "a singular of many": rf"(?<![\w.,:/#\-])(?:[2-9]|[1-9][\d,]*\d) (?:{_NOUNS})\b(?![-'\w]| \d)",
    "two equal shares": r"\b((?:over |under )?[\d.]+ %) (?:and|to|beside|in A,|of) \1",
    "an unfilled placeholder": r"\{[a-z_.:]+\}|<[\w.]+ object|(?<!else )\b(?:None|True|False)\b(?![,\])])",
}
_NUMBER = re.compile(r"(?<![\w.#-])\d+\.\d+(?![\w.])")


def faults(text: str) -> list[str]:
    """What is wrong with a line of prose: each fault, with the words that have it."""
    found = ((name, re.search(pattern, text)) for name, pattern in _FAULTS.items())
    return [f"{name}: {match[0]!r} in {text!r}" for name, match in found if match]


def faults_of_sentence(sentence: str) -> list[str]:
    """What is wrong with the sentence that a report begins with; empty for none."""
    wrong = faults(sentence)
    wrong += [f"too exact: {number!r}" for number in _NUMBER.findall(sentence) if len(re.sub(r"\D", "", number)) > 6]
    if sentence and not sentence.endswith("."):
        wrong.append(f"no end: {sentence!r}")
    if "  " in sentence:
        wrong.append(f"spaces: {sentence!r}")
    if len(sentence) > LONGEST:
        wrong.append(f"{len(sentence)} letters: {sentence!r}")
    return wrong
