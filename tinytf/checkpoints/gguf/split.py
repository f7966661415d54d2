"""A model in several GGUF files, ``NAME-00001-of-00003.gguf`` and so on, as llama-gguf-split writes them.

The first file has the metadata. Each has some of the tensors, and the total number of files and tensors.
"""

import re
from glob import escape
from pathlib import Path

from tinytf.checkpoints.gguf.header import Header, StoredTensor, read_header
from tinytf.errors import CheckpointError
from tinytf.fields import Fields, quoted

_NAME = re.compile(r"(.+)-\d{5}-of-(\d{5})(\.gguf)", re.IGNORECASE)
_MOST_LISTED = 4


def read_parts(path: Path, brief: bool = False) -> Header:
    """The header of the whole model that ``path`` is a part of; ``brief`` as in ``read_header``.

    Raises CheckpointError as ``read_header`` does, and for parts that are missing or inconsistent.
    """
    header = read_header(path, brief)
    count = Fields(header.metadata, path).whole("split.count", 0)
    if count < 2:
        return header
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[2]) != count:
        raise CheckpointError(
            f"{path} is one of {count:,} parts of a model, and its name does not end in -NNNNN-of-{count:05}.gguf",
            "restore the names of all parts, or merge them with llama.cpp: llama-gguf-split --merge",
        )
    stem, total, suffix = match.groups()
    paths = [path.with_name(f"{stem}-{number:05}-of-{total}{suffix}") for number in range(1, count + 1)]
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        more = f" and {len(missing) - _MOST_LISTED:,} more" if len(missing) > _MOST_LISTED else ""
        raise CheckpointError(
            f"{path} is one of {count:,} parts of a model, and {', '.join(missing[:_MOST_LISTED])}{more} "
            f"{'is' if len(missing) == 1 else 'are'} not beside it"
        )
    return _join([header if part == path else read_header(part, brief) for part in paths])


def parts_of(path: Path) -> list[Path]:
    """The existing files of the model that ``path`` is a part of, by name."""
    match = _NAME.fullmatch(path.name)
    return [path] if match is None else sorted(path.parent.glob(f"{escape(match[1])}-*-of-{match[2]}{match[3]}"))


def _join(parts: list[Header]) -> Header:
    tensors: dict[str, StoredTensor] = {}
    for index, part in enumerate(parts):
        keys = Fields(part.metadata, part.path)
        number, count = keys.whole("split.no") + 1, keys.whole("split.count")
        if (number, count) != (index + 1, len(parts)):
            raise CheckpointError(f"{part.path} says that it is part {number:,} of {count:,}")
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise CheckpointError(f"{part.path} holds {quoted(name)}, which {tensors[name].path.name} holds too")
            tensors[name] = tensor
    first = parts[0]
    expected = Fields(first.metadata, first.path).whole("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CheckpointError(
            f"{first.path} says that there are {expected:,} tensors, and its parts hold {len(tensors):,}"
        )
    return Header(first.path, first.metadata, tensors)
