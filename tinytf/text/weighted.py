"""Files and folders as a corpus, some with a weight: ``book.txt=3 code/=1``."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tinytf.errors import UsageError
from tinytf.text.corpus import Corpus, OnRead, Reading, find_files, unheard

_WEIGHTED = re.compile(r"(.+)=(\d+(?:\.\d+)?)")
_LISTS = ("files", "skipped")


def find_corpus(
    paths: Sequence[Path], reading: Reading, *, skip_unreadable: bool = False, on_read: OnRead = unheard
) -> Corpus:
    """The corpus of files and folders, as ``find_files`` has it; one without a weight among others weighs 1.

    Raises UsageError for a weight of 0, and what ``find_files`` raises.
    """
    parts = [weight_of(path) for path in paths]
    if all(weight is None for _, weight in parts):
        return find_files(paths, reading, skip_unreadable=skip_unreadable, on_read=on_read)
    found = [find_files([path], reading, skip_unreadable=skip_unreadable, on_read=on_read) for path, _ in parts]
    return weighted([(one, 1.0 if weight is None else weight) for one, (_, weight) in zip(found, parts, strict=True)])


def weight_of(path: Path) -> tuple[Path, float | None]:
    """The file or folder that is meant, and its weight; a file may be named so itself. Raises UsageError."""
    found = None if path.exists() else _WEIGHTED.fullmatch(str(path))
    if found is None:
        return path, None
    if not 0 < (weight := float(found[2])) < math.inf:
        raise UsageError("a weight is above 0", "such as book.txt=3")
    return Path(found[1]), weight


def weighted(corpora: Sequence[tuple[Corpus, float]]) -> Corpus:
    """Several corpora as one, each with its share of what is drawn."""
    first, _ = corpora[0]
    files, skipped = (tuple(one for corpus, _ in corpora for one in getattr(corpus, name)) for name in _LISTS)
    weights = tuple((len(corpus.files), weight) for corpus, weight in corpora)
    return replace(first, files=files, skipped=skipped, weights=weights)
