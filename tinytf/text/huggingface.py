"""Tokenizers of Hugging Face model directories, token for token as transformers 5 reads them."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError
from tinytf.files import read_json
from tinytf.text.printable import printable
from tinytf.text.special_tokens import SpecialTokens, put_in, read_special_tokens
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.tokenizer_classes import BERT, GPT2, QWEN2, ROBERTA, Settings, TokenizerClass, choose_class
from tinytf.text.vocabulary_files import nothing_to_read, read_merges, read_words

_READ = ("BPE", "WordPiece", "WordLevel")
_EMPTY = {
    "BPE": {"type": "BPE", "vocab": {}, "merges": []},
    "WordPiece": {
        "type": "WordPiece",
        "vocab": {},
        "unk_token": "",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
}
_SWITCHES = ("add_bos_token", "add_eos_token")


@dataclass(frozen=True)
class DirectoryTokenizer:
    """A tokenizer, and what a banner should say of its files; nothing where it is a tokenizer.json as it stands."""

    tokenizer: Tokenizer
    note: str


def load_tokenizer_directory(directory: Path) -> DirectoryTokenizer:
    """The tokenizer of ``directory``: tokenizer.json, or vocab.json with merges.txt, or vocab.txt.

    Ids, offsets and added tokens are those of ``AutoTokenizer.from_pretrained(directory)``; texts are neither cut nor
    padded. Raises CheckpointError, naming the file, for one that is missing, damaged or of a kind that we do not read.
    """
    config, settings = (_optional(directory / name) for name in ("config.json", "tokenizer_config.json"))
    stored = directory / "tokenizer.json"
    read = _from_tokenizer_json if stored.exists() else _from_vocabulary
    with _library_errors_of(stored if stored.exists() else directory):
        library, special, note = read(directory, config, settings)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = settings.get("split_special_tokens") is True
        ends = _ends(directory, config, library, special)
        return DirectoryTokenizer(Tokenizer(library, ends, special.names.get("mask_token")), note)


def _from_tokenizer_json(directory: Path, config: Settings, settings: Settings) -> tuple[Library, SpecialTokens, str]:
    path = directory / "tokenizer.json"
    data = read_json(path)
    model, added = data.get("model"), data.get("added_tokens") or []
    if not isinstance(model, dict):
        raise CheckpointError(f"{path} is not a tokenizer: it has no model")
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece")
    if kind not in _READ:
        raise CheckpointError(
            f"{path} is a tokenizer of type {printable(str(kind))}, which tinytf does not read",
            f"tinytf reads {', '.join(_READ[:-1])} and {_READ[-1]}",
        )
    # With a tokenizer.json, what stands before and after a text is said there, and the switches say nothing.
    settings = {key: value for key, value in settings.items() if key not in _SWITCHES}
    chosen = choose_class(config.get("model_type"), _declared(config, settings), '"ByteLevel"' in json.dumps(data))
    if chosen is None:
        library = _library(data)
        special = read_special_tokens(directory, settings, added, {})
        put_in(library, special)
        return library, special, ""
    if kind != chosen.model:
        raise CheckpointError(f"{path} has a {kind} model, and a {chosen.name} has {chosen.model}")
    stored = _library({**data, "added_tokens": [], "model": _EMPTY[kind]})
    special = read_special_tokens(directory, settings, added, chosen.specials)
    library = _built(chosen, model, stored.post_processor, settings, special)
    return library, special, _difference(chosen, stored, library)


def _from_vocabulary(directory: Path, config: Settings, settings: Settings) -> tuple[Library, SpecialTokens, str]:
    merges, words = (directory / name for name in ("merges.txt", "vocab.txt"))
    chosen = choose_class(config.get("model_type"), _declared(config, settings), False)
    if merges.exists() and (directory / "vocab.json").exists() and not (chosen is BERT and words.exists()):
        model, note = read_merges(directory), "from vocab.json and merges.txt"
        fits = chosen is not None and chosen.model == "BPE"
        reader = chosen if chosen and fits else _reader_of_merges(model["vocab"], settings)
    elif words.exists():
        model, note, reader = read_words(words), "from vocab.txt", BERT
    else:
        raise nothing_to_read(directory)
    special = read_special_tokens(directory, settings, [], reader.specials)
    return _built(reader, model, None, settings, special), special, note


def _reader_of_merges(vocabulary: Mapping[str, int], settings: Settings) -> TokenizerClass:
    encoder = "cls_token" in settings or {"<s>", "</s>", "<mask>"} <= vocabulary.keys()
    return ROBERTA if encoder else GPT2


def _built(
    chosen: TokenizerClass, model: Mapping[str, Any], stored: Any, settings: Settings, special: SpecialTokens
) -> Library:
    """The vocabulary of ``model`` with everything else from its class; ``stored`` is the file's post-processor."""
    parts = chosen.parts(settings, special.names)
    kept = {key: model[key] for key in ("vocab", "merges") if key in model}
    library = _library({"version": "1.0", "added_tokens": [], "model": {"type": chosen.model, **parts.model, **kept}})
    library.normalizer, library.pre_tokenizer = parts.normalizer, parts.pre_tokenizer
    library.decoder = parts.decoder
    put_in(library, special)
    if chosen is QWEN2:  # it adds its special tokens once more, whatever their flags were
        names = dict.fromkeys([*special.names.values(), *(token.content for token in special.extra)])
        library.add_tokens([AddedToken(name, special=True) for name in names])
    library.post_processor = chosen.ends(stored, settings, special.names, library)
    return library


def _difference(chosen: TokenizerClass, stored: Library, library: Library) -> str:
    """In words, which parts of tokenizer.json the class has put its own in place of."""
    parts = [
        name
        for name in ("normalizer", "pre_tokenizer")
        if _described(getattr(stored, name)) != _described(getattr(library, name))
    ]
    verb = "are" if len(parts) > 1 else "is"
    return f"{' and '.join(parts)} {verb} {chosen.name}'s, not tokenizer.json's, as in transformers 5" if parts else ""


def _described(part: Any) -> str:
    """The library's own description, without a flag that only post-processors heed."""
    return "" if part is None else re.sub(r'"trim_offsets":\w+,?', "", part.__getstate__().decode("utf-8"))


def _declared(config: Settings, settings: Settings) -> object:
    return settings.get("tokenizer_class") or config.get("tokenizer_class")


def _ends(directory: Path, config: Settings, library: Library, special: SpecialTokens) -> list[int]:
    """The ids that end a text: generation_config.json's, else config.json's, else that of the tokenizer's eos_token."""
    for name, said in (
        ("generation_config.json", _optional(directory / "generation_config.json")),
        ("config.json", config),
    ):
        ids = said.get("eos_token_id")
        ids = ids if isinstance(ids, list) else [ids] if ids is not None else []
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in ids):
            raise CheckpointError(
                f"{directory / name}: eos_token_id is {said['eos_token_id']!r}, not a number or several"
            )
        if ids:
            return [number for number in dict.fromkeys(ids) if number >= 0]
    end = library.token_to_id(special.names.get("eos_token", ""))
    return [] if end is None else [end]


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _library(data: Mapping[str, Any]) -> Library:
    return Library.from_str(json.dumps(data))


@contextmanager
def _library_errors_of(path: Path) -> Iterator[None]:
    """The library raises plain Exception, and its own PanicException; here they are CheckpointErrors of ``path``."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise CheckpointError(f"{path} is not a tokenizer: {printable(str(error), spaces=False)}") from None
