"""Tokenizers of Hugging Face model directories, token for token as transformers 5 reads them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import TOKENIZER, read_bytes, read_json, reading
from tinytf.text.chat import directory_template, template_of
from tinytf.text.ids import IdTokenizer
from tinytf.text.library import Stranger, library_errors, stranger_in
from tinytf.text.printable import printable
from tinytf.text.special_tokens import SpecialTokens, put_in, read_special_tokens
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.tokenizer_classes import BERT, ESM, GPT2, QWEN2, ROBERTA, Settings, TokenizerClass, choose_class

_READ = ("BPE", "WordPiece", "WordLevel")
_UNIGRAM, _AS_IT_STANDS = "Unigram", ("PreTrainedTokenizer", "TokenizersBackend")
_EMPTY = {
    _UNIGRAM: {"type": _UNIGRAM, "unk_id": 0, "vocab": [["", 0.0]]},
    "BPE": {"type": "BPE", "vocab": {}, "merges": []},
    "WordPiece": {
        "type": "WordPiece",
        "vocab": {},
        "unk_token": "",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
    "WordLevel": {"type": "WordLevel", "vocab": {}, "unk_token": ""},
}
_SWITCHES = ("add_bos_token", "add_eos_token")
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


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and in ``note`` where it is from when that is worth saying: not of a tokenizer.json as it stands."""

    tokenizer: Tokenizer
    note: str = ""


def load_tokenizer_directory(directory: Path) -> Vocabulary:
    """The tokenizer of ``directory``: tokenizer.json, or vocab.json with merges.txt, or vocab.txt.

    Ids, offsets and added tokens are those of ``AutoTokenizer.from_pretrained(directory)``; texts are not
    truncated or padded. Raises CheckpointError for a file that is missing, damaged or of a kind that we do not read.
    """
    config, settings = (_optional(directory / name) for name in ("config.json", "tokenizer_config.json"))
    stored = directory / "tokenizer.json"
    read = _from_tokenizer_json if stored.exists() else _from_vocabulary
    with library_errors(CheckpointError, f"{stored if stored.exists() else directory} is not a tokenizer"):
        library, special, note, stranger = read(directory, config, settings)
        library.encode_special_tokens = settings.get("split_special_tokens") is True
        generation = directory / "generation_config.json"
        said: dict[Path | str, Settings] = {generation: _optional(generation), directory / "config.json": config}
        ends = _ends(said, library.token_to_id(special.names.get("eos_token", "")))
        start = library.token_to_id(special.names.get("bos_token", ""))
        chat = directory_template(directory, settings, special.names)
        return Vocabulary(Tokenizer(library, ends, special.names.get("mask_token"), start, chat, stranger), note)


def tokenizer_in_memory(given: Any, model: Any) -> Vocabulary:
    """A fast tokenizer of transformers, one of ours or of the tokenizers library, to go with a model of transformers.

    None is the tokenizer of ids. Raises UsageError for one without a backend_tokenizer.
    """
    if given is None:
        return Vocabulary(IdTokenizer(model.config.get_text_config().vocab_size), "none: a text is ids, as 464 3797")
    if isinstance(given, Tokenizer):
        return Vocabulary(given)
    backend = getattr(given, "backend_tokenizer", given)
    if not isinstance(backend, Library):
        raise UsageError(f"a {type(given).__name__} has no backend_tokenizer", _CONVERT)
    with library_errors(CheckpointError, "the tokenizer in memory cannot be read"):
        library = Library.from_str(backend.to_str())
    library.encode_special_tokens = bool(getattr(given, "split_special_tokens", False))
    generation = getattr(model, "generation_config", None)
    said: dict[Path | str, Settings] = {
        "generation_config": {} if generation is None else generation.to_dict(),
        "config": model.config.to_dict(),
    }
    ends = _ends(said, getattr(given, "eos_token_id", None))
    mask, start, templates = (getattr(given, name, None) for name in ("mask_token", "bos_token_id", "chat_template"))
    if isinstance(templates, Mapping):
        templates = [{"name": name, "template": template} for name, template in templates.items()]
    chat = template_of(templates, getattr(given, "special_tokens_map", {}), Path("the tokenizer in memory"))
    return Vocabulary(Tokenizer(library, ends, mask, start, chat))


_Read = tuple[Library, SpecialTokens, str, Stranger | None]
"""A tokenizer, its special tokens, a note, and who does its work where it is strange."""


def _from_tokenizer_json(directory: Path, config: Settings, settings: Settings) -> _Read:
    path = directory / "tokenizer.json"
    data = read_json(path, TOKENIZER)
    model, added = data.get("model"), data.get("added_tokens") or []
    if not isinstance(model, dict):
        raise CheckpointError(f"{path} is not a tokenizer: it has no model")
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece")
    # With a tokenizer.json, what stands before and after a text is said there, and the switches say nothing.
    settings = {key: value for key, value in settings.items() if key not in _SWITCHES}
    around = json.dumps({key: value for key, value in data.items() if key != "model"})
    declared = _declared(config, settings)
    chosen = choose_class(config.get("model_type"), declared, '"ByteLevel"' in around)
    as_it_stands = isinstance(declared, str) and declared.removesuffix("Fast") in _AS_IT_STANDS
    # Most classes of a Unigram build the parts around it anew, each in its own way.
    if kind not in _READ and not (kind == _UNIGRAM and (chosen or as_it_stands)):
        raise CheckpointError(
            f"{path} is a tokenizer of type {printable(str(kind))[:60]}, which tinytf does not read",
            f"tinytf reads {', '.join(_READ)}, and Unigram of DeBERTa",
        )
    _require_whole_templates(data.get("post_processor"), path)
    stranger = stranger_in(data, path)
    if chosen is None:
        library = Library.from_file(str(reading(path)))
        special = read_special_tokens(directory, settings, added, {})
        put_in(library, special)
        return library, special, "", stranger
    if kind != chosen.model:
        raise CheckpointError(f"{path} has a {kind} model, and a {chosen.name} has {chosen.model}")
    stored = Library.from_str(json.dumps({**data, "added_tokens": [], "model": _EMPTY[kind]}))
    special = read_special_tokens(directory, settings, added, chosen.specials)
    library = _built(chosen, model, stored.post_processor, settings, special)
    return library, special, _difference(chosen, stored, library), stranger


def _require_whole_templates(stored: Any, path: Path) -> None:
    """Refuse special tokens without ids: the library loads such a template, and panics at the first text."""
    parts = stored.get("processors") if isinstance(stored, dict) and "processors" in stored else [stored]
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and isinstance(part.get("single"), list):
            used = [item["SpecialToken"].get("id") for item in part["single"] if "SpecialToken" in item]
            lacking = [name for name in used if name not in part["special_tokens"]]
            if lacking:
                raise CheckpointError(f"{path}: the post_processor adds {printable(str(lacking[0]))} without an id")


def _from_vocabulary(directory: Path, config: Settings, settings: Settings) -> _Read:
    chosen = choose_class(config.get("model_type"), _declared(config, settings), False)
    there = [files for files in (("vocab.json", "merges.txt"), ("vocab.txt",)) if _all_in(directory, files)]
    if not there:
        raise _nothing_to_read(directory)
    files = chosen.files if chosen and chosen.files in there else there[0]
    if chosen and chosen.files != files:
        raise CheckpointError(f"{directory} has no tokenizer.json, and a {chosen.name} is not read from {files[0]}")
    if files == ("vocab.txt",):
        model, reader = _read_words(directory / "vocab.txt"), chosen or BERT
    else:
        model = _read_merges(directory)
        reader = chosen or _reader_of_merges(model["vocab"], settings)
    special = read_special_tokens(directory, settings, [], reader.specials)
    return _built(reader, model, None, settings, special), special, f"from {' and '.join(files)}", None


def _all_in(directory: Path, files: tuple[str, ...]) -> bool:
    return all((directory / name).exists() for name in files)


def _reader_of_merges(vocabulary: Mapping[str, int], settings: Settings) -> TokenizerClass:
    encoder = "cls_token" in settings or {"<s>", "</s>", "<mask>"} <= vocabulary.keys()
    return ROBERTA if encoder else GPT2


def _built(
    chosen: TokenizerClass, model: Mapping[str, Any], stored: Any, settings: Settings, special: SpecialTokens
) -> Library:
    """The vocabulary of ``model`` with everything else from its class; ``stored`` is the file's post-processor."""
    parts = chosen.parts(settings, special.names)
    if chosen.model == _UNIGRAM:
        library = Library(_unigram(model.get("vocab"), special.names.get("unk_token")))
    else:
        kept = {key: model[key] for key in ("vocab", "merges") if key in model}
        model = {"type": chosen.model, **parts.model, **kept}
        library = Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    library.normalizer, library.pre_tokenizer = parts.normalizer, parts.pre_tokenizer
    library.decoder = parts.decoder
    put_in(library, special)
    if chosen is QWEN2:  # it adds its special tokens once more, whatever their flags were
        names = dict.fromkeys([*special.names.values(), *(token.content for token in special.extra)])
        library.add_tokens([AddedToken(name, special=True) for name in names])
    if chosen is ESM:  # residues stand without spaces between: each token of the vocabulary is cut out of a text
        named = set(special.names.values())
        library.add_tokens([AddedToken(one, normalized=False, special=one in named) for one in kept["vocab"]])
    library.post_processor = chosen.ends(stored, settings, special.names, library)
    return library


def _unigram(vocabulary: Any, unknown: str | None) -> models.Unigram:
    """Pieces with their scores, of which the library would read some from JSON a last digit off."""
    if not isinstance(vocabulary, list) or not all(isinstance(one, list) and len(one) == 2 for one in vocabulary):
        raise CheckpointError("the vocabulary of a Unigram tokenizer is no list of pieces and their scores")
    pieces = [(piece, score) for piece, score in vocabulary]
    at = pieces.index((unknown, 0.0)) if (unknown, 0.0) in pieces else 1
    return models.Unigram(pieces, unk_id=at, byte_fallback=False)


def _difference(chosen: TokenizerClass, stored: Library, library: Library) -> str:
    """In words, which parts of tokenizer.json the class replaces."""
    parts = [
        name
        for name in ("normalizer", "pre_tokenizer")
        if _described(getattr(stored, name)) != _described(getattr(library, name))
    ]
    verb = "are" if len(parts) > 1 else "is"
    return f"{' and '.join(parts)} {verb} {chosen.name}'s, not tokenizer.json's, as in transformers 5" if parts else ""


def _described(part: Any) -> str:
    """The library's own description, without a flag that only post-processors use."""
    return "" if part is None else re.sub(r'"trim_offsets":\w+,?', "", part.__getstate__().decode("utf-8"))


def _declared(config: Settings, settings: Settings) -> object:
    return settings.get("tokenizer_class") or config.get("tokenizer_class")


def _ends(said: Mapping[Path | str, Settings], otherwise: int | None) -> list[int]:
    """The ids that end a text: those of the first file that names any, else that of the tokenizer's eos_token."""
    for source, settings in said.items():
        ids = settings.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [ids] if ids is not None else []
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in ids):
            raise CheckpointError(
                f"{source}: eos_token_id is {settings['eos_token_id']!r:.60}, not a number or several"
            )
        if ids:
            return [number for number in dict.fromkeys(ids) if number >= 0]
    return [] if otherwise is None else [otherwise]


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _read_merges(directory: Path) -> dict[str, Any]:
    """The BPE model of vocab.json and merges.txt, as tokenizer.json would hold it.

    Raises CheckpointError for an id that is no number, and for a merge with pieces that are not in the vocabulary.
    """
    vocabulary = _read_vocabulary(directory / "vocab.json")
    path = directory / "merges.txt"
    merges = []
    for number, line in enumerate(_lines(path), 1):
        if line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise CheckpointError(
                f"{path}: line {number} is not two pieces with a space between: {printable(line)[:60]}"
            )
        lacking = [piece for piece in (*pair, "".join(pair)) if piece not in vocabulary]
        if lacking:
            raise CheckpointError(
                f"{path}: line {number} needs {printable(lacking[0])[:60]}, which vocab.json does not have"
            )
        merges.append(pair)
    return {"type": "BPE", "vocab": vocabulary, "merges": merges}


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Pieces and their ids; CheckpointError names the first id that is none."""
    vocabulary = read_json(path, TOKENIZER)
    for piece, number in vocabulary.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**32:
            raise CheckpointError(f"{path}: {printable(piece)[:60]} has {number!r:.60} for an id")
    return vocabulary


def _read_words(path: Path) -> dict[str, Any]:
    """The WordPiece model of a vocab.txt: one piece per line; its id is the line's number, from 0."""
    vocabulary = {line.rstrip(_WHITE_SPACE): number for number, line in enumerate(_lines(path))}
    if not vocabulary:
        raise CheckpointError(f"{path} is empty")
    return {"type": "WordPiece", "vocab": vocabulary}


def _nothing_to_read(directory: Path) -> CheckpointError:
    """The error for a directory without a vocabulary that we read."""
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
        text = read_bytes(path, TOKENIZER).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
