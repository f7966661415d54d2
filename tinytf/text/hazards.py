"""Hazards in a tokenizer.json, judged from the file alone: which parts are harmless, which are bombs.

The kinds of parts in the library are harmless, but their settings may not be: regular expressions can backtrack
forever, and replacements can expand a text without bound. The expressions of well-known tokenizers run in linear time.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError
from tinytf.fields import shown
from tinytf.text.printable import printable
from tinytf.text.tokenizer_classes import GPT2_WORDS, words_and, words_by_case

_TIMES, _CHARACTERS = 1000, 2**16
"""The most characters that all parts together may make of one, and that one part may insert."""
_HARMLESS_TIMES, _HARMLESS_CHARACTERS = 8, 1024
_IDS_PER_ENTRY, _GAPS = 2, 65_536
"""Every id is below entries × the first + the second. Published vocabularies leave some hundred ids unused."""
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_PLAIN = frozenset((
    "Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt", "Prepend", "Replace",
    "ByteLevel", "BertNormalizer", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "Split",
    "Punctuation", "Digits", "CharDelimiterSplit", "UnicodeScripts", "TemplateProcessing", "BertProcessing",
    "RobertaProcessing", "WordPiece", "ByteFallback", "Fuse", "BPEDecoder", "CTC",
))  # fmt: skip
_NUMBERS = (r"\p{N}", r"\p{N}{1,3}", r"\p{N}+")
_BY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_EXPRESSIONS = frozenset(
    (
        *_NUMBERS, *map(words_and, _NUMBERS), GPT2_WORDS,
        *(words_by_case(number, after) for number in _NUMBERS for after in ("", _BY_CASE)),
        words_and(r"\p{N}").replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}"),  # Qwen 3.5
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
        " {2,}", r"\s+", r"\s{2,}|[\n\r\t]", r"[\n\r\t]", r"[\r\n]", r"\n", "[0-9][0-9][0-9]", r"[\s\S]", r"\d{1,3}",
    )
)  # fmt: skip


def is_hazardous(data: Mapping[str, Any], path: Path) -> bool:
    """Whether a tokenizer.json has parts that are not known to be harmless, and needs a worker process.

    Raises CheckpointError, with file and field, for a bomb: a short text could become millions of characters, or an
    id is far beyond the number of entries.
    """
    require_ids(*_ids(data), path)
    hazardous = not _is_plain_vocabulary(data)
    for key in _PARTS:
        times = 1.0
        for field, part in _parts(key, data.get(key)):
            factor, n_inserted = _expansion(part)
            times *= factor
            if times > _TIMES:
                raise _bomb(path, field, f"turns one character into {times:,.0f} or more")
            if n_inserted > _CHARACTERS:
                raise _bomb(path, field, f"inserts {n_inserted:,} characters")
            hazardous |= times > _HARMLESS_TIMES or n_inserted > _HARMLESS_CHARACTERS or not _is_plain(part)
    return hazardous


def require_ids(ids: Iterable[tuple[str, Any]], count: int, path: Path) -> None:
    """Raise CheckpointError for the first piece whose id is none, or far beyond the ``count`` of all entries.

    The library allocates memory for every number up to the largest id.
    """
    end = _IDS_PER_ENTRY * count + _GAPS
    for piece, token_id in ids:
        if type(token_id) is not int or token_id < 0:
            raise CheckpointError(f"{path}: {printable(piece)[:60]} has the invalid id {shown(token_id)}")
        if token_id >= end:
            raise CheckpointError(
                f"{path}: {printable(piece)[:60]} has the id {shown(token_id)}, and there are {count:,} entries",
                f"ids of so few have to be below {end:,}",
            )


def _ids(data: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], int]:
    """The pieces of a tokenizer.json with their ids, and the number of entries; the ids of a Unigram are positions."""
    model, added = data.get("model"), data.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.items()) if isinstance(vocabulary, dict) else []
    if isinstance(added, list):
        ids += [(str(entry.get("content")), entry.get("id")) for entry in added if isinstance(entry, dict)]
    return ids, len(ids) + (len(vocabulary) if isinstance(vocabulary, list) else 0)


def _bomb(path: Path, field: str, effect: str) -> CheckpointError:
    limits = f"the limits are {_TIMES:,} for one and {_CHARACTERS:,} inserted"
    return CheckpointError(
        f"{path}: {field} {effect}; {limits}", "no genuine tokenizer does this; do you trust the file?"
    )


def _parts(key: str, stored: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parts under a key in order, each with its path; sequences are flattened."""
    pending = [(key, stored)]
    while pending:
        field, part = pending.pop()
        if not isinstance(part, dict):
            continue
        lists = [(name, value) for name, value in part.items() if name in _SEQUENCES and isinstance(value, list)]
        pending += reversed([(f"{field}.{name}[{n}]", e) for name, entries in lists for n, e in enumerate(entries)])
        yield field, {name: value for name, value in part.items() if name not in _SEQUENCES}


_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")


def _expansion(part: Mapping[str, Any]) -> tuple[float, int]:
    """The most characters that a part makes of one, and the number that it inserts into any text."""
    content, pattern = part.get("content"), part.get("pattern")
    if part.get("type") == "Replace" and isinstance(content, str):
        fields = pattern if isinstance(pattern, dict) else {}
        matched = len(str(fields["String"])) if "String" in fields else str(fields.get("Regex")) in _EXPRESSIONS
        # An unknown expression, or an empty string, may match before every character.
        return max(1.0, len(content) / matched) if matched else 1.0 + len(content), 0
    if part.get("type") == "Prepend" and isinstance(part.get("prepend"), str):
        return 1.0, len(part["prepend"])
    return 1.0, len(json.dumps(part)) if part.get("type") == "TemplateProcessing" else 0


def _is_plain(part: Mapping[str, Any]) -> bool:
    pattern = part.get("pattern")
    if isinstance(pattern, dict):
        expression = pattern.get("Regex", pattern.get("String"))
        if not isinstance(expression, str) or not expression or ("Regex" in pattern and expression not in _EXPRESSIONS):
            return False
    return str(part.get("type")) in _PLAIN


def _is_plain_vocabulary(data: Mapping[str, Any]) -> bool:
    """Whether all entries are short: long ones are searched at every position, or inserted for every character."""
    model, added = data.get("model"), data.get("added_tokens")
    if not isinstance(model, dict) or ("merges" in model and model.get("continuing_subword_prefix")):
        return False  # the library panics on a piece shorter than its prefix
    entries = model.get("vocab") or {}
    if not isinstance(entries, dict):  # a Unigram: [piece, score] pairs
        entries = [e[0] for e in entries if isinstance(e, list) and e] if isinstance(entries, list) else [0]
    names = [model.get(name) for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")]
    names += [e.get("content") for e in added if isinstance(e, dict)] if isinstance(added, list) else []
    longest_word = model.get("max_input_chars_per_word", 100)
    texts = [e for e in (*entries, *names) if e is not None]
    return (
        all(isinstance(e, str) and len(e) <= _HARMLESS_CHARACTERS for e in texts)
        and isinstance(longest_word, int)
        and longest_word <= _HARMLESS_CHARACTERS
    )
