"""The vocabularies of before tokenizer.json: vocab.json with merges.txt, and vocab.txt."""

from pathlib import Path
from typing import Any

from tinytf.errors import CheckpointError
from tinytf.files import read_json
from tinytf.text.printable import printable

# Unicode's White_Space, which the library strips from the end of a line; Python's rstrip() would take more.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_CONVERT = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes a tokenizer.json"
_UNREAD = {
    "tokenizer.model": "SentencePiece",
    "spiece.model": "SentencePiece",
    "sentencepiece.bpe.model": "SentencePiece",
    "spm.model": "SentencePiece",
    "tekken.json": "Tekken",
    "tiktoken.model": "tiktoken",
}


def read_merges(directory: Path) -> dict[str, Any]:
    """The BPE model of vocab.json and merges.txt, as tokenizer.json would hold it.

    Raises CheckpointError for an id that is no number, and for a merge of or into pieces that the vocabulary lacks.
    """
    vocabulary = read_vocabulary(directory / "vocab.json")
    path = directory / "merges.txt"
    merges = []
    for number, line in enumerate(_lines(path), 1):
        if line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise CheckpointError(f"{path}: line {number} is not two pieces with a space between: {printable(line)}")
        lacking = [piece for piece in (*pair, "".join(pair)) if piece not in vocabulary]
        if lacking:
            raise CheckpointError(
                f"{path}: line {number} needs {printable(lacking[0])}, which vocab.json does not have"
            )
        merges.append(pair)
    return {"type": "BPE", "vocab": vocabulary, "merges": merges}


def read_vocabulary(path: Path) -> dict[str, int]:
    """Pieces and their ids; CheckpointError names the first id that is none."""
    vocabulary = read_json(path)
    for piece, number in vocabulary.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**32:
            raise CheckpointError(f"{path}: {printable(piece)} has {number!r} for an id")
    return vocabulary


def read_words(path: Path) -> dict[str, Any]:
    """The WordPiece model of a vocab.txt: one piece a line, its id the line's number from 0."""
    vocabulary = {line.rstrip(_WHITE_SPACE): number for number, line in enumerate(_lines(path))}
    if not vocabulary:
        raise CheckpointError(f"{path} is empty")
    return {"type": "WordPiece", "vocab": vocabulary}


def nothing_to_read(directory: Path) -> CheckpointError:
    """What to say of a directory without a vocabulary that we read."""
    for name, kind in _UNREAD.items():
        if (directory / name).exists():
            return CheckpointError(f"{directory / name} is a {kind} vocabulary, which tinytf does not read", _CONVERT)
    for name, other in (("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")):
        if (directory / name).exists():
            return CheckpointError(f"there is no {other} in {directory}, and {name} needs it")
    looked_for = "no tokenizer.json, no vocab.json with merges.txt, and no vocab.txt"
    return CheckpointError(f"there is no tokenizer in {directory}: {looked_for}")


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
