"""Write pairs of a date in words and in ISO 8601, every date once: python samples/dates.py --seed 1 --out dates.tsv

A year of two digits means one from 1970 to 2069.
"""

import argparse
import random
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAIRS, FIRST, LAST = 24_000, date(1900, 1, 1), date(2099, 12, 31)
END = "<|endoftext|>"
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
ORDINALS = [
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth",
]  # fmt: skip
FORMS = (
    "the {ordinal} of {month} {year}", "the {number} of {month} {year}", "{month} {number}, {year}",
    "{month} {ordinal}, {year}", "{month} {day}, {year}", "{day} {month} {year}", "{day} {short} {two}",
    "{short} {day}, {two}", "{weekday}, {day} {month} {year}", "{weekday} the {ordinal} of {month}, {year}",
    "in {year}, on the {ordinal} of {month}", "on {month} {number} of {year}",
)  # fmt: skip


def ordinal(day: int) -> str:
    """A day of the month in words: first … thirty-first."""
    tens = {20: "twenty", 30: "thirty"}
    if day <= 20:
        return ORDINALS[day - 1]
    return "thirtieth" if day == 30 else f"{tens[day // 10 * 10]}-{ORDINALS[day % 10 - 1]}"


def number(day: int) -> str:
    """A day of the month as 1st … 31st."""
    return f"{day}{'th' if day in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


def pairs(seed: int, count: int = PAIRS) -> Iterator[tuple[str, str]]:
    """Dates in words and in ISO 8601. No date comes twice, so one that is held out was never seen in another form."""
    generator = random.Random(seed)
    for days in generator.sample(range((LAST - FIRST).days + 1), count):
        day = FIRST + timedelta(days)
        forms = [form for form in FORMS if "{two}" not in form or 1970 <= day.year < 2070]
        month = MONTHS[day.month - 1]
        words = generator.choice(forms).format(
            ordinal=ordinal(day.day), number=number(day.day), day=day.day, month=month, short=month[:3], year=day.year,
            two=f"{day.year % 100:02d}", weekday=WEEKDAYS[day.weekday()],
        )  # fmt: skip
        yield words, day.isoformat()


def spans(words: str) -> dict[str, tuple[int, int]]:
    """Where the year, the month and the day stand in a date in words."""
    year = re.search(r"\d{4}|\d\d$", words)
    month = re.search("|".join((*MONTHS, *(month[:3] for month in MONTHS))), words)
    days = sorted((ordinal(day) for day in range(1, 32)), key=len, reverse=True)
    day = re.search(rf"\b(?:{'|'.join(days)}|\d\d?(?:st|nd|rd|th)?)\b(?!$)|\b(?:{'|'.join(days)})$", words)
    return {name: found.span() for name, found in (("year", year), ("month", month), ("day", day)) if found}


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE whose pieces are words and single digits, with an end token after every text."""
    library = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(texts, trainer)
    end = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, library.token_to_id(END))])
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), end])
    return library


def write(path: Path, seed: int, count: int = PAIRS) -> None:
    """Write the pairs as a table."""
    path.write_text("".join(f"{a}\t{b}\n" for a, b in (("source", "target"), *pairs(seed, count))), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write(options.out, options.seed, options.pairs)


if __name__ == "__main__":
    main()
