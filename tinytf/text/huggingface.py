"""Tokenizers of Hugging Face model directories, token for token as transformers 5 reads them."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields
from tinytf.files import TOKENIZER, parse_json, read_bytes, read_json, reading
from tinytf.nearest import did_you_mean
from tinytf.text.chat import directory_template, template_of
from tinytf.text.choice import NOTHING, Settings, setting_words
from tinytf.text.hazards import require_ids
from tinytf.text.ids import IdTokenizer
from tinytf.text.library import UntrustedTokenizer, library_errors, untrusted_tokenizer
from tinytf.text.piece_file import CONTROL, USER_DEFINED, merges_of, read_piece_file
from tinytf.text.printable import printable
from tinytf.text.separate_ids import SeparateIds
from tinytf.text.special_tokens import ROLES, SpecialTokens, add_special_tokens, read_special_tokens
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.tokenizer_classes import (
    ALBERT,
    BERT,
    CHARSMAP,
    CLASSES,
    ESM,
    GPT2,
    LLAMA,
    M2M100,
    MARIAN,
    QWEN2,
    REMBERT,
    ROBERTA,
    SOURCE,
    TokenizerClass,
    choose_class,
    is_unchanged,
)

_READ_MODELS = ("BPE", "WordPiece", "WordLevel")
_UNIGRAM = "Unigram"
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
# Unicode's White_Space, which the library strips from the end of a line; Python's rstrip() would strip more.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_CONVERT = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes a tokenizer.json"
_PIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model", "sentencepiece.model")
_UNREAD_FILES = {"tekken.json": "Tekken", "tiktoken.model": "tiktoken"}


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and a ``note`` on its source unless that is an unchanged tokenizer.json."""

    tokenizer: Tokenizer
    note: str = ""


def load_tokenizer_directory(directory: Path, given: Settings = NOTHING) -> Vocabulary:
    """The tokenizer of ``directory``: tokenizer.json, or vocab.json with merges.txt, or vocab.txt.

    Ids, offsets and added tokens are those of ``AutoTokenizer.from_pretrained(directory)``; texts are not
    truncated or padded. Settings that are ``given`` replace those of tokenizer_config.json.

    Raises CheckpointError for a file that is missing, damaged or of an unknown kind, UsageError for a setting that is
    given and not read.
    """
    config, settings = (_optional(directory / name) for name in ("config.json", "tokenizer_config.json"))
    settings = {**settings, **given}
    stored = directory / "tokenizer.json"
    if (directory / "vocab-src.json").exists() and not stored.exists():
        return _ids_of_moses(directory, config, given)
    reader = _from_tokenizer_json if stored.exists() else _from_vocabulary
    with library_errors(CheckpointError, f"{stored if stored.exists() else directory} is not a tokenizer"):
        loaded = reader(directory, config, settings, given)
        source = None if loaded.source is None else _tokenizer(directory, config, settings, loaded.source)
        tokenizer = _tokenizer(directory, config, settings, loaded, source)
        return Vocabulary(tokenizer, ", with ".join(filter(None, (loaded.note, setting_words(given)))))


def _tokenizer(
    directory: Path, config: Settings, settings: Settings, loaded: "_Loaded", source: Tokenizer | None = None
) -> Tokenizer:
    """The tokenizer that the files of ``directory`` make of what was loaded from them."""
    library, names = loaded.library, loaded.special.names
    library.encode_special_tokens = settings.get("split_special_tokens") is True
    generation = directory / "generation_config.json"
    sources: dict[Path | str, Settings] = {generation: _optional(generation), directory / "config.json": config}
    ends = _ends(sources, library.token_to_id(names.get("eos_token", "")))
    start, start_source = _start(sources, library.token_to_id(names.get("bos_token", "")))
    chat = directory_template(directory, settings, names)
    return Tokenizer(
        library, ends, names.get("mask_token"), start, chat, loaded.untrusted, loaded.assumed, start_source,
        _forced(sources), source,
    )  # fmt: skip


def _ids_of_moses(directory: Path, config: Settings, given: Settings) -> Vocabulary:
    """Texts of ids for an FSMT, whose tokenizer follows the rules of Moses, which tinytf does not have."""
    _require_read(given, None)
    fields, why = Fields(config, directory / "config.json"), "the rules of Moses, which cut its words, are not read"
    target, source = (fields.whole(f"{name}_vocab_size", least=1) for name in ("tgt", "src"))
    return Vocabulary(IdTokenizer(target, source, why), f"none: a text is ids, such as 464 3797, since {why}")


def tokenizer_in_memory(tokenizer: Any, model: Any) -> Vocabulary:
    """The tokenizer for a transformers model: a fast one of transformers, one of the tokenizers library, or ours.

    None gives a tokenizer of ids. Raises UsageError for a tokenizer without a backend_tokenizer, and for ids of a model
    whose configuration has no vocab_size.
    """
    if tokenizer is None:
        config = model.config
        size = getattr(config, "decoder_vocab_size", None) or getattr(config.get_text_config(), "vocab_size", None)
        if not size:
            raise UsageError("there is no tokenizer, and the configuration has no vocab_size", _CONVERT)
        read = config.encoder if getattr(config, "encoder", None) is not None else config
        of_source = getattr(read, "src_vocab_size", None) or getattr(read, "vocab_size", None)
        return Vocabulary(IdTokenizer(size, of_source), "none: a text is ids, such as 464 3797")
    if isinstance(tokenizer, Tokenizer):
        return Vocabulary(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Library):
        raise UsageError(f"a {type(tokenizer).__name__} has no backend_tokenizer", _CONVERT)
    with library_errors(CheckpointError, "the tokenizer in memory cannot be read"):
        library = Library.from_str(backend.to_str())
    library.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    generation = getattr(model, "generation_config", None)
    sources: dict[Path | str, Settings] = {
        "generation_config": {} if generation is None else generation.to_dict(),
        "config": model.config.to_dict(),
    }
    ends = _ends(sources, getattr(tokenizer, "eos_token_id", None))
    start, start_source = _start(sources, getattr(tokenizer, "bos_token_id", None))
    mask, templates = (getattr(tokenizer, name, None) for name in ("mask_token", "chat_template"))
    if isinstance(templates, Mapping):
        templates = [{"name": name, "template": template} for name, template in templates.items()]
    chat = template_of(templates, getattr(tokenizer, "special_tokens_map", {}), Path("the tokenizer in memory"))
    forced = _forced(sources)
    return Vocabulary(Tokenizer(library, ends, mask, start, chat, start_source=start_source, forced=forced))


class _Loaded(NamedTuple):
    """A tokenizer, its special tokens, a note, its worker if it is untrusted, and the settings that no file has.

    Where each of two stacks has a tokenizer, this is the decoder's, and ``source`` the encoder's.
    """

    library: Library
    special: SpecialTokens
    note: str
    untrusted: UntrustedTokenizer | None = None
    assumed: Settings = NOTHING
    source: "_Loaded | None" = None


def _from_tokenizer_json(directory: Path, config: Settings, settings: Settings, given: Settings) -> _Loaded:
    path = directory / "tokenizer.json"
    data = read_json(path, TOKENIZER)
    model, added = data.get("model"), data.get("added_tokens") or []
    if not isinstance(model, dict):
        raise CheckpointError(f"{path} is not a tokenizer: it has no model")
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece")
    # A tokenizer.json itself defines the tokens before and after a text; the switches have no effect then.
    settings = {key: value for key, value in settings.items() if key not in _SWITCHES}
    without_model = json.dumps({key: value for key, value in data.items() if key != "model"})
    declared = _declared(config, settings)
    tokenizer_class = _class_of(config, settings, given, '"ByteLevel"' in without_model)
    _require_read(given, tokenizer_class)
    # Most Unigram classes rebuild the parts around the model, each in its own way.
    readable = kind == _UNIGRAM and (tokenizer_class or is_unchanged(config.get("model_type"), declared))
    if kind not in _READ_MODELS and not readable:
        raise CheckpointError(
            f"{path} is a tokenizer of type {printable(str(kind))[:60]}, which tinytf does not read",
            f"tinytf reads {', '.join(_READ_MODELS)}, and Unigram of some classes of transformers",
        )
    _require_complete_templates(data.get("post_processor"), path)
    untrusted = untrusted_tokenizer(data, path)
    if tokenizer_class is None:
        library = Library.from_file(str(reading(path)))
        special = read_special_tokens(directory, settings, added)
        add_special_tokens(library, special)
        return _Loaded(library, special, "", untrusted)
    if kind != tokenizer_class.model:
        raise CheckpointError(f"{path} has a {kind} model, and a {tokenizer_class.name} has {tokenizer_class.model}")
    stored = Library.from_str(json.dumps({**data, "added_tokens": [], "model": _EMPTY[kind]}))
    special = _special_tokens(directory, settings, added, tokenizer_class)
    library = _build(tokenizer_class, model, stored.post_processor, {**settings, **_charsmap(data)}, special)
    return _Loaded(library, special, _replaced_parts(tokenizer_class, stored, library), untrusted)


def _charsmap(data: Settings) -> Settings:
    """SentencePiece's table of characters in the normalizer of a tokenizer.json, which some classes keep."""
    normalizer = data.get("normalizer") or {}
    parts = normalizer.get("normalizers", [normalizer])
    return {CHARSMAP: next((part[CHARSMAP] for part in parts if CHARSMAP in part), None)}


def _require_complete_templates(stored: Any, path: Path) -> None:
    """Refuse templates with special tokens without ids, which the library loads, but panics on at the first text."""
    parts = stored.get("processors") if isinstance(stored, dict) and "processors" in stored else [stored]
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and isinstance(part.get("single"), list):
            used = [item["SpecialToken"].get("id") for item in part["single"] if "SpecialToken" in item]
            missing = [name for name in used if name not in part["special_tokens"]]
            if missing:
                raise CheckpointError(f"{path}: the post_processor adds {printable(str(missing[0]))} without an id")


def _from_vocabulary(directory: Path, config: Settings, settings: Settings, given: Settings) -> _Loaded:
    tokenizer_class = _class_of(config, settings, given, False)
    available = [files for files in (("vocab.json", "merges.txt"), ("vocab.txt",)) if _has_all(directory, files)]
    if tokenizer_class in (MARIAN, M2M100):
        return _from_separate_ids(directory, tokenizer_class, settings, given)
    piece_file = next((directory / name for name in _PIECE_FILES if (directory / name).exists()), None)
    if piece_file and not (tokenizer_class.files if tokenizer_class else available):
        declared = CLASSES.get(str(_declared(config, settings)).removesuffix("Fast"))
        return _from_pieces(piece_file, tokenizer_class or declared, settings, given)
    if not available:
        raise _no_vocabulary(directory)
    if tokenizer_class is ALBERT and not _declared(config, settings):  # chemists pair it with words of BERT
        tokenizer_class = None
    files = tokenizer_class.files if tokenizer_class and tokenizer_class.files in available else available[0]
    if tokenizer_class and tokenizer_class.files != files:
        raise CheckpointError(
            f"{directory} has no tokenizer.json, and a {tokenizer_class.name} cannot be read from {files[0]}"
        )
    if files == ("vocab.txt",):
        model, used_class = _read_words(directory / "vocab.txt"), tokenizer_class or BERT
    else:
        model = _read_merges(directory)
        used_class = tokenizer_class or _reader_of_merges(model["vocab"], settings)
    _require_read(given, used_class)
    for role in (role for role in ROLES if given.get(role, "") not in ("", *model["vocab"])):
        raise UsageError(f"{role} {given[role]!r} is not in {files[0]}", did_you_mean(given[role], model["vocab"]))
    named = read_special_tokens(directory, settings, []).names
    special = _special_tokens(directory, settings, [], used_class)
    assumed = {key: used_class.settings[key] for key in used_class.open if key not in settings}
    if tokenizer_class is None:  # then everything that the class brings is assumed with it
        defaults = {key: default for key, default in used_class.settings.items() if default is not None}
        assumed = {"tokenizer_class": used_class.name, **defaults, **used_class.specials}
        assumed = {key: default for key, default in assumed.items() if key not in {**settings, **named}}
    library = _build(used_class, model, None, settings, special)
    return _Loaded(library, special, f"from {' and '.join(files)}", None, assumed)


def _from_pieces(path: Path, tokenizer_class: TokenizerClass | None, settings: Settings, given: Settings) -> _Loaded:
    """The tokenizer of a SentencePiece file, with the class's own pieces before and after those of the file."""
    file = read_piece_file(path)
    assumed: Settings = NOTHING
    if tokenizer_class is None:
        if file.kind != LLAMA.model:
            raise CheckpointError(
                f"no file in {path.parent} says which tokenizer of transformers reads {path.name}",
                "say it, as in --tokenizer tokenizer_class=T5Tokenizer",
            )
        guesses = {"tokenizer_class": LLAMA.name, "add_prefix_space": file.prefix}
        assumed = {key: guess for key, guess in guesses.items() if key not in settings}
        tokenizer_class = LLAMA
    _require_read(given, tokenizer_class)
    if file.kind != tokenizer_class.model:
        raise CheckpointError(
            f"{path} has a {file.kind} model, and a {tokenizer_class.name} has {tokenizer_class.model}"
        )
    pieces = [*tokenizer_class.first, *file.pieces[tokenizer_class.skipped :]]
    pieces += [(name, 0.0) for name in tokenizer_class.last]
    model: dict[str, Any] = {"vocab": pieces}
    if file.kind == LLAMA.model:  # transformers 5.23 merges by ids, which are in another order in files of Llama
        order = {piece: number for number, (piece, _) in enumerate(file.pieces)}
        merges = merges_of(order, [score for _, score in file.pieces])
        model = {"vocab": {piece: number for number, (piece, _) in enumerate(pieces)}, "merges": merges}
    types = file.of_types(CONTROL, USER_DEFINED)
    extras = [AddedToken(piece, normalized=False, special=kind == CONTROL) for piece, kind in types.items()]
    extras += [AddedToken(name, special=True) for name in tokenizer_class.extras if name in dict(pieces)]
    settings = {"unk_id": file.unknown_id, **settings, CHARSMAP: file.charsmap}
    special = _special_tokens(path.parent, settings, [], tokenizer_class, extras)
    library = _build(tokenizer_class, model, None, {**assumed, **settings}, special)
    untrusted = untrusted_tokenizer(parse_json(library.to_str()), path)
    return _Loaded(library, special, f"from {path.name}", untrusted, assumed)


def _from_separate_ids(
    directory: Path, tokenizer_class: TokenizerClass, settings: Settings, given: Settings
) -> _Loaded:
    """The tokenizer of a SentencePiece file whose pieces have the ids of the vocab.json beside it.

    The targets of a Marian have a file of their own, and with ``separate_vocabs`` a vocabulary too.
    """
    _require_read(given, tokenizer_class)
    if settings.get("language_codes", "m2m100") != "m2m100":
        raise CheckpointError(f"tinytf does not know the languages of {settings['language_codes']!r:.60}", _CONVERT)
    source, target = tokenizer_class.files, tokenizer_class.target_files
    if target and settings.get("separate_vocabs") is True:
        target = (target[0], "target_vocab.json")
    used = tuple(dict.fromkeys((*source, *target)))
    missing = [name for name in used if not (directory / name).exists()]
    if missing:
        raise CheckpointError(f"there is no {missing[0]} in {directory}, and a {tokenizer_class.name} needs it")
    note = f"from {', '.join(used[:-1])} and {used[-1]}"
    of_source = _separate_ids(directory, tokenizer_class, source, settings, used)._replace(note=note)
    if not target:
        return of_source
    return _separate_ids(directory, tokenizer_class, target, settings, used)._replace(note=note, source=of_source)


def _separate_ids(
    directory: Path, tokenizer_class: TokenizerClass, files: tuple[str, ...], settings: Settings, used: tuple[str, ...]
) -> _Loaded:
    """The tokenizer of two files: one of SentencePiece, and the ids of its pieces."""
    piece_file, id_file = (directory / name for name in files)
    vocabulary = _read_vocabulary(id_file)
    by_id = {token_id: piece for piece, token_id in vocabulary.items()}
    if sorted(by_id) != list(range(len(vocabulary))):
        raise CheckpointError(f"the ids in {id_file} are not 0 to {len(vocabulary) - 1:,}, each once")
    special = _special_tokens(directory, settings, [], tokenizer_class)
    model = {"vocab": [(by_id[token_id], 0.0) for token_id in range(len(by_id))]}
    library = _build(tokenizer_class, model, None, settings, special)
    unknown = library.token_to_id(special.names.get("unk_token", "")) or 0
    settings = {"tokenizer_class": tokenizer_class.name, **settings}
    codes = tokenizer_class is MARIAN
    untrusted = SeparateIds(piece_file, library, unknown, codes=codes, used=used, settings=settings)
    return _Loaded(library, special, "", untrusted)


def _special_tokens(
    directory: Path,
    settings: Settings,
    added: Any,
    tokenizer_class: TokenizerClass,
    extras: Sequence[AddedToken | str] | None = None,
) -> SpecialTokens:
    """The special tokens in the files of ``directory``; where they have none, ``extras`` or those of the class."""
    extras = tokenizer_class.extras if extras is None else extras
    return read_special_tokens(directory, settings, added, tokenizer_class.specials, tokenizer_class.flags, extras)


def _class_of(config: Settings, settings: Settings, given: Settings, byte_level: bool) -> TokenizerClass | None:
    """The class that is given, or else that of the files; None for a tokenizer.json that is used unchanged."""
    if (name := given.get("tokenizer_class")) is None:
        return choose_class(config.get("model_type"), _declared(config, settings), byte_level)
    if name not in CLASSES:
        raise UsageError(f"there is no tokenizer_class {str(name)!r}", did_you_mean(str(name), CLASSES))
    return CLASSES[name]


def _require_read(given: Settings, tokenizer_class: TokenizerClass | None) -> None:
    """Raise UsageError for a setting that is given, but not read, or of another type."""
    settings = {"split_special_tokens": False, **(tokenizer_class.settings if tokenizer_class else {})}
    switches = {name for name, default in settings.items() if not isinstance(default, str)}
    for name, value in given.items():
        if name not in (known := ("tokenizer_class", *settings, *ROLES)):
            kind = f"a {tokenizer_class.name}" if tokenizer_class else "this tokenizer.json"
            raise UsageError(f"{kind} has no setting {name!r}", did_you_mean(name, known))
        if isinstance(value, bool) != (name in switches):
            raise UsageError(f"{name} is not {value!r}", "give true or false" if name in switches else "give a token")
        languages = [token.strip("_") for token in tokenizer_class.extras] if tokenizer_class else []
        if name == SOURCE and value not in languages:
            raise UsageError(f"there is no language {value!r}", did_you_mean(value, languages))


def _has_all(directory: Path, files: tuple[str, ...]) -> bool:
    return all((directory / name).exists() for name in files)


def _reader_of_merges(vocabulary: Mapping[str, int], settings: Settings) -> TokenizerClass:
    encoder = "cls_token" in settings or {"<s>", "</s>", "<mask>"} <= vocabulary.keys()
    return ROBERTA if encoder else GPT2


def _build(
    tokenizer_class: TokenizerClass, model: Mapping[str, Any], stored: Any, settings: Settings, special: SpecialTokens
) -> Library:
    """The vocabulary of ``model`` with the parts of its class around it; ``stored`` is the file's post-processor."""
    parts = tokenizer_class.parts(settings, special.names)
    if tokenizer_class.model == _UNIGRAM:
        otherwise = parts.model.get("otherwise", settings.get("unk_id", 1))
        unknown = special.names.get("unk_token")
        library = Library(_unigram(model.get("vocab"), unknown, parts.model.get("unk_id"), otherwise))
    else:
        stored_model = {key: model[key] for key in ("vocab", "merges") if key in model}
        model = {"type": tokenizer_class.model, **parts.model, **stored_model}
        library = Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    library.normalizer, library.pre_tokenizer = parts.normalizer, parts.pre_tokenizer
    library.decoder = parts.decoder
    add_special_tokens(library, special)
    if tokenizer_class in (QWEN2, REMBERT):  # these add their special tokens again, whatever their flags were
        names = dict.fromkeys([*special.names.values(), *(token.content for token in special.extra)])
        library.add_tokens([AddedToken(name, special=True) for name in names])
    if tokenizer_class is ESM:  # residues have no spaces between them: make every piece an added token
        named = set(special.names.values())
        library.add_tokens([AddedToken(p, normalized=False, special=p in named) for p in stored_model["vocab"]])
    library.post_processor = tokenizer_class.post_processor(stored, settings, special.names, library)
    return library


def _unigram(vocabulary: Any, unknown: str | None, unknown_id: int | None, otherwise: int) -> models.Unigram:
    """A Unigram model from pieces and scores; reading the scores from JSON, the library would change last digits.

    A class that gives an ``unknown_id`` takes that whatever the vocabulary has there, but for 0: the ``unknown`` piece.
    One that gives none takes the id of that piece, or ``otherwise``.
    """
    if not isinstance(vocabulary, list) or not all(
        isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in vocabulary
    ):
        raise CheckpointError("the vocabulary of a Unigram tokenizer is not a list of pieces and scores")
    pieces = [(piece, score) for piece, score in vocabulary]
    if unknown_id is None:
        unknown_id = pieces.index((unknown, 0.0)) if (unknown, 0.0) in pieces else otherwise
    elif not unknown_id:
        unknown_id = next((number for number, (piece, _) in enumerate(pieces) if piece == unknown), 0)
    return models.Unigram(pieces, unk_id=unknown_id, byte_fallback=False)


def _replaced_parts(tokenizer_class: TokenizerClass, stored: Library, library: Library) -> str:
    """A note on the parts of tokenizer.json that the class replaces, in words."""
    parts = [
        name
        for name in ("normalizer", "pre_tokenizer")
        if _description(getattr(stored, name)) != _description(getattr(library, name))
    ]
    verb = "are" if len(parts) > 1 else "is"
    return (
        f"{' and '.join(parts)} {verb} {tokenizer_class.name}'s, not tokenizer.json's, as in transformers 5"
        if parts
        else ""
    )


def _description(part: Any) -> str:
    """The library's description of a part, without a flag that only post-processors use."""
    return "" if part is None else re.sub(r'"trim_offsets":\w+,?', "", part.__getstate__().decode("utf-8"))


def _declared(config: Settings, settings: Settings) -> object:
    return settings.get("tokenizer_class") or config.get("tokenizer_class")


def _ends(sources: Mapping[Path | str, Settings], default: int | None) -> list[int]:
    """The ids that end a text: from the first source that names any, else the ``default``, if any."""
    for source, settings in sources.items():
        ids = settings.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [ids] if ids is not None else []
        if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
            raise CheckpointError(
                f"{source}: eos_token_id is {settings['eos_token_id']!r:.60}, not a number or a list of numbers"
            )
        if ids:
            return [token_id for token_id in dict.fromkeys(ids) if token_id >= 0]
    return [] if default is None else [default]


def _start(sources: Mapping[Path | str, Settings], default: int | None) -> tuple[int | None, str]:
    """The id that begins a text, and what names it: the first source that names any, else the tokenizer."""
    for source, settings in sources.items():
        token_id = settings.get("bos_token_id")
        if isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0:
            return token_id, Path(source).name
    return default, "the tokenizer"


def _forced(sources: Mapping[Path | str, Settings]) -> int | None:
    """The id that generation writes first, whatever the model predicts: of the first source that names any."""
    named = (settings.get("forced_bos_token_id") for settings in sources.values())
    return next((i for i in named if isinstance(i, int) and not isinstance(i, bool) and i >= 0), None)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _read_merges(directory: Path) -> dict[str, Any]:
    """The BPE model of vocab.json and merges.txt, as tokenizer.json would hold it.

    Raises CheckpointError for an invalid id, and for a merge with pieces that are not in the vocabulary.
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
                f"{path}: line {number} is not two pieces separated by a space: {printable(line)[:60]}"
            )
        missing = [piece for piece in (*pair, "".join(pair)) if piece not in vocabulary]
        if missing:
            raise CheckpointError(
                f"{path}: line {number} needs {printable(missing[0])[:60]}, which is not in vocab.json"
            )
        merges.append(pair)
    return {"type": "BPE", "vocab": vocabulary, "merges": merges}


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Pieces and their ids. Raises CheckpointError for the first invalid id."""
    vocabulary = read_json(path, TOKENIZER)
    require_ids(vocabulary.items(), len(vocabulary), path)
    return vocabulary


def _read_words(path: Path) -> dict[str, Any]:
    """The WordPiece model of a vocab.txt: one piece a line; its id is the number of the line, from 0."""
    vocabulary = {line.rstrip(_WHITE_SPACE): number for number, line in enumerate(_lines(path))}
    if not vocabulary:
        raise CheckpointError(f"{path} is empty")
    return {"type": "WordPiece", "vocab": vocabulary}


def _no_vocabulary(directory: Path) -> CheckpointError:
    """The error for a directory without a vocabulary that tinytf reads."""
    for name, kind in _UNREAD_FILES.items():
        if (directory / name).exists():
            return CheckpointError(f"{directory / name} is a {kind} vocabulary, which tinytf does not read", _CONVERT)
    for name, missing in (("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")):
        if (directory / name).exists():
            return CheckpointError(f"there is no {missing} in {directory}, and {name} needs it")
    expected = "no tokenizer.json, no vocab.json with merges.txt, no vocab.txt, and no tokenizer.model"
    hint = "--tokenizer names another place for it"
    return CheckpointError(f"there is no tokenizer in {directory}: {expected}", hint)


def _lines(path: Path) -> list[str]:
    try:
        text = read_bytes(path, TOKENIZER).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
