"""Tokenizers whose ids are not those of their SentencePiece file: Marian and M2M-100 keep a vocabulary beside it.

transformers cuts these with the sentencepiece package itself, so we do too, in a process of its own.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError
from tinytf.files import TOKENIZER, read_bytes, to_json
from tinytf.text.choice import Settings
from tinytf.text.library import DEFAULT_LIMIT, Limit, Pieces, UntrustedTokenizer
from tinytf.text.piece_file import message_fields, read_piece_file
from tinytf.text.worker import Worker

_PIECES, _PIECE, _BEGIN, _END = 2, 1, 4, 5  # fields of SentencePieceText
_CODE = re.compile(r">>.*?<<", re.DOTALL)


class SeparateIds(UntrustedTokenizer):
    """Cuts a text as the SentencePiece file at ``path`` does, and looks its pieces up in the vocabulary of a library.

    With ``codes``, a text may begin with the code of a language, as in ``>>fra<<``. ``used`` are the files beside it
    that make up the tokenizer, and ``settings`` those of its tokenizer_config.json. Raises CheckpointError where the
    sentencepiece package is missing, and for a file that is damaged.
    """

    in_json = False

    def __init__(
        self, path: Path, library: Library, unknown: int, *, codes: bool, used: Sequence[str], settings: Settings
    ) -> None:
        if find_spec("sentencepiece") is None:
            raise CheckpointError(
                f"{path} needs the sentencepiece package, which is not installed", 'pip install "tinytf[sentencepiece]"'
            )
        read_piece_file(path)
        self.path, self._worker, self._rules = str(path), Worker(str(path)), (unknown, codes)
        self._used, self._settings = used, settings
        self.follow(library)

    def follow(self, library: Library) -> None:
        """Use the vocabulary of ``library`` from now on."""
        file, whole = read_bytes(Path(self.path), TOKENIZER), library.encode_special_tokens
        self._worker.begin_with(_load, file, library.to_str(), self.path, whole, *self._rules)

    @property
    def files(self) -> dict[str, bytes]:
        folder = Path(self.path).parent
        own = {name: read_bytes(folder / name, TOKENIZER) for name in self._used}
        return {**own, "tokenizer_config.json": to_json(self._settings)}

    def split(self, text: str, special: bool, limit: Limit = DEFAULT_LIMIT) -> Pieces:
        return self._worker(_split, text, special, limit)

    def decode(self, ids: list[int]) -> str:
        return self._worker(_decode, ids)


class _Loaded:
    """In the worker process: the file and the vocabulary that it serves."""

    def __init__(self, file: bytes, stored: str, path: str, whole: bool, unknown: int, codes: bool) -> None:
        import sentencepiece

        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=file)
        except (RuntimeError, OSError) as error:
            raise CheckpointError(f"{path} is not a SentencePiece vocabulary: {error}") from None
        self.library, self.unknown, self.codes = Library.from_str(stored), unknown, codes
        added = [] if whole else [token.content for token in self.library.get_added_tokens_decoder().values()]
        self.cuts = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or r"(?!)")
        self.around = self.library.encode("").ids  # the last one stands after a text

    def id_of(self, piece: str) -> int:
        token_id = self.library.token_to_id(piece)
        return self.unknown if token_id is None else token_id

    def pieces(self, text: str, start: int) -> list[tuple[int, tuple[int, int]]]:
        """The ids and offsets of a part of the text, which begins at ``start`` in the whole."""
        code = _CODE.match(text) if self.codes else None
        found = [(self.id_of(code[0]), (start, start + code.end()))] if code else []
        start, text = (start + code.end(), text[code.end() :]) if code else (start, text)
        place = {byte: start + n for n, byte in enumerate(accumulate((len(c.encode()) for c in text), initial=0))}
        for number, value in message_fields(self.processor.encode(text, out_type="serialized_proto")):
            if number == _PIECES:
                piece = dict(message_fields(value))
                offsets = place[piece.get(_BEGIN, 0)], place[piece.get(_END, 0)]
                found.append((self.id_of(piece[_PIECE].decode("utf-8")), offsets))
        return found


_loaded: list[_Loaded] = []


def _load(file: bytes, stored: str, path: str, whole: bool, unknown: int, codes: bool) -> None:
    _loaded[:] = [_Loaded(file, stored, path, whole, unknown, codes)]


def _split(text: str, special: bool, limit: Limit) -> Pieces:
    loaded, start = _loaded[0], 0
    found: list[tuple[int, tuple[int, int]]] = []
    for cut in loaded.cuts.finditer(text):
        found += loaded.pieces(text[start : cut.start()], start) if cut.start() > start else []
        found.append((loaded.id_of(cut[0]), cut.span()))
        start = cut.end()
    found += loaded.pieces(text[start:], start) if start < len(text) else []
    before, after = (loaded.around[:-1], loaded.around[-1:]) if special else ([], [])
    limit.require(len(before) + len(found) + len(after))
    return Pieces(
        [*before, *(token_id for token_id, _ in found), *after],
        [*((0, 0) for _ in before), *(offsets for _, offsets in found), *((0, 0) for _ in after)],
        [*(1 for _ in before), *(0 for _ in found), *(1 for _ in after)],
    )


def _decode(ids: list[int]) -> str:
    return str(_loaded[0].library.decode(ids, skip_special_tokens=True)).strip()  # as transformers does
