"""Files and folders as a corpus, optionally with weights: ``book.txt=3 code/=1``."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tinytf.errors import UsageError
from tinytf.text.corpus import Corpus, OnRead, Reading, find_files, ignore_progress

_WEIGHTED = re.compile(r"(.+)=(\d+(?:\.\d+)?)")
_LISTS = ("files", "skipped")


def find_corpus(
    paths: Sequence[Path], reading: Reading, *, skip_unreadable: bool = False, on_read: OnRead = ignore_progress
) -> Corpus:
    """The corpus of files and folders, as from ``find_files``; without a weight among weighted ones, a path weighs 1.

    Raises UsageError for a weight of 0, and as ``find_files`` does.
    """
    parts = [weight_of(path) for path in paths]
    if all(weight is None for _, weight in parts):
        return find_files(paths, reading, skip_unreadable=skip_unreadable, on_read=on_read)
    corpora = [find_files([path], reading, skip_unreadable=skip_unreadable, on_read=on_read) for path, _ in parts]
    return weighted(
        [(corpus, 1.0 if weight is None else weight) for corpus, (_, weight) in zip(corpora, parts, strict=True)]
    )


def weight_of(path: Path) -> tuple[Path, float | None]:
    """A path without its weight, and the weight or None; an existing file may have such a name. Raises UsageError."""
    match = None if path.exists() else _WEIGHTED.fullmatch(str(path))
    if match is None:
        return path, None
    if not 0 < (weight := float(match[2])) < math.inf:
        raise UsageError("a weight is above 0", "such as book.txt=3")
    return Path(match[1]), weight


def weighted(corpora: Sequence[tuple[Corpus, float]]) -> Corpus:
    """Several corpora as one; each is sampled by its weight."""
    first, _ = corpora[0]
    files, skipped = (tuple(item for corpus, _ in corpora for item in getattr(corpus, name)) for name in _LISTS)
    weights = tuple((len(corpus.files), weight) for corpus, weight in corpora)
    return replace(first, files=files, skipped=skipped, weights=weights)
