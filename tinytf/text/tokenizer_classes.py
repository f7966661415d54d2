"""The tokenizers that transformers 5 rebuilds: which class reads a directory, and the parts that it adds.

For most directories ``tokenizer.json`` is used unchanged. Some classes take only its vocabulary and add their own
normalizer, pre-tokenizer and decoder; we do so too, to get the same ids. Source: the ``__init__`` of each class,
and ``AutoTokenizer.from_pretrained``, in transformers 5.23.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from tinytf.errors import CheckpointError
from tinytf.text.choice import Settings
from tinytf.text.languages import M2M_LANGUAGES, MBART50_LANGUAGES, MBART_LANGUAGES, NLLB_LANGUAGES
from tinytf.text.printable import printable
from tinytf.text.registered import REGISTERED, UNCHANGED

Names = Mapping[str, str]  # the named special tokens: "eos_token" -> "</s>"


@dataclass(frozen=True)
class Parts:
    """The parts around a vocabulary, and the settings of its model."""

    pre_tokenizer: Any
    decoder: Any
    normalizer: Any = None
    model: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenizerClass:
    """One class of transformers.

    ``files`` are read if there is no tokenizer.json; ``specials`` are its special tokens unless a file names others;
    ``ends`` makes the post-processor; its first argument is the post-processor of tokenizer.json. ``settings`` are the
    keys of tokenizer_config.json that it reads, with their defaults; models of the class differ in the ``open`` ones,
    and the ``fixed`` ones cannot be set. ``flags`` are those of special tokens that a file names by their text alone,
    by role; ``extras`` are further special tokens, unless a file lists others. In a SentencePiece file, ``first``
    stands for the first ``skipped`` pieces, and ``last`` follows the others. ``target_files`` are read for the
    targets of two stacks, where those have a tokenizer of their own; ``files`` are then those of the sources.
    """

    name: str
    model: str
    files: tuple[str, ...]
    specials: Names
    make_parts: Callable[[Settings, Names], Parts]
    ends: Callable[[Any, Settings, Names, Library], Any]
    settings: Settings
    open: tuple[str, ...] = ()
    fixed: Settings = field(default_factory=dict)
    flags: Mapping[str, Settings] = field(default_factory=dict)
    extras: tuple[str, ...] = ()
    first: Sequence[tuple[str, float]] = ()
    skipped: int = 0
    last: tuple[str, ...] = ()
    target_files: tuple[str, ...] = ()

    def parts(self, settings: Settings, names: Names) -> Parts:
        """The parts around the vocabulary."""
        return self.make_parts({CHARSMAP: None, **self.settings, **settings, **self.fixed}, names)

    def post_processor(self, stored: Any, settings: Settings, names: Names, library: Library) -> Any:
        """What adds the tokens before and after a text; ``stored`` is the post-processor of tokenizer.json."""
        language = settings.get(SOURCE) or self.settings.get(SOURCE)
        return self.ends(stored, {**settings, SOURCE: language}, names, library)


def _with_id(name: str, library: Library) -> tuple[str, int]:
    token_id = library.token_to_id(name)
    if token_id is None:
        raise CheckpointError(f"the vocabulary has no {printable(name)}")
    return name, token_id


def start_and_end(settings: Settings, names: Names, library: Library) -> Any:
    """The post-processor that adds the tokens requested by ``add_bos_token`` and ``add_eos_token``."""
    requested = {
        key: names[key]
        for key, switch in (("bos_token", "add_bos_token"), ("eos_token", "add_eos_token"))
        if settings.get(switch) and key in names
    }
    single = [role for role in ("bos_token", "$A", "eos_token") if role in ("$A", *requested)]
    # Use roles as ids, since a template cannot hold every name.
    pieces = [{"id": role, "ids": [_with_id(name, library)[1]], "tokens": [name]} for role, name in requested.items()]
    pair = [f"{part if part != '$A' else text}:{kind}" for kind, text in enumerate(("$A", "$B")) for part in single]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=pieces)


def _stored_ends(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
    has_switch = "add_bos_token" in settings or "add_eos_token" in settings
    return start_and_end(settings, names, library) if has_switch or stored is None else stored


def _switched_ends(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
    return start_and_end(settings, names, library)


def _template(single: str, pair: str) -> Callable[[Any, Settings, Names, Library], Any]:
    """Makes a post-processor from templates with roles of special tokens, such as ``$A:0 sep_token:0``.

    The role ``src_lang`` is the code of the source's language, which is a setting.
    """
    roles = {part.split(":")[0] for part in f"{single} {pair}".split()} - {"$A", "$B"}

    def make(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
        # Use roles as ids, since a template cannot hold every name.
        pieces = [(role, *_with_id(str({**settings, **names}.get(role)), library)) for role in sorted(roles)]
        special_tokens = [{"id": role, "ids": [token_id], "tokens": [name]} for role, name, token_id in pieces]
        return processors.TemplateProcessing(single=single.split(), pair=pair.split(), special_tokens=special_tokens)

    return make


_cls_and_sep = _template("cls_token:0 $A:0 sep_token:0", "cls_token:0 $A:0 sep_token:0 $B:1 sep_token:1")
_sep_and_cls = _template("$A:0 sep_token:0 cls_token:2", "$A:0 sep_token:0 $B:1 sep_token:1 cls_token:2")
_bos_and_eos = _template("bos_token $A eos_token", "bos_token $A eos_token eos_token $B eos_token")
_language_before = _template("src_lang $A eos_token", "src_lang $A $B eos_token")
_language_after = _template("$A eos_token src_lang", "$A $B eos_token src_lang")


def _rembert_ends(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
    make = _switched_ends if stored is None else _cls_and_sep
    return make(stored, settings, names, library)


def _m2m_ends(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
    return _language_before(stored, {**settings, SOURCE: f"__{settings[SOURCE]}__"}, names, library)


def _nllb_ends(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
    make = _language_after if settings.get("legacy_behaviour") else _language_before
    return make(stored, settings, names, library)


def _roberta_ends(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
    sep, cls = names.get("sep_token", "</s>"), names.get("cls_token", "<s>")
    trim, prefix = bool(settings.get("trim_offsets", True)), bool(settings.get("add_prefix_space", False))
    ids = _with_id(sep, library), _with_id(cls, library)
    return processors.RobertaProcessing(*ids, trim_offsets=trim, add_prefix_space=prefix)


_NO_AFFIXES = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}


def _gpt2(settings: Settings, names: Names) -> Parts:
    prefix = bool(settings["add_prefix_space"])
    return Parts(pre_tokenizers.ByteLevel(add_prefix_space=prefix), decoders.ByteLevel(), model=_NO_AFFIXES)


def _gpt_neox(settings: Settings, names: Names) -> Parts:
    prefix, trim = bool(settings["add_prefix_space"]), bool(settings["trim_offsets"])
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, trim_offsets=trim)
    return Parts(level, decoders.ByteLevel(), normalizers.NFC(), _NO_AFFIXES)


def words_and(numbers: str) -> str:
    """The regular expression of GPT-4's tokenizer; ``numbers`` is the pattern for a piece of a number."""
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def words_by_case(numbers: str, after: str = "") -> str:
    """The regular expression that also splits words at upper case; text that matches ``after`` belongs to the word."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}{many}{lower}{least}{after}" for many, least in (("*", "+"), ("+", "*")))
    return "|".join(words) + rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The regular expression of GPT-2's tokenizer."""


def byte_level_after(*expressions: str, prefix: bool = False) -> Any:
    """The byte-level pre-tokenizer after splits by these ``expressions``, one after another."""
    splits = [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in expressions]
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    return pre_tokenizers.Sequence([*splits, level])


def _qwen2(settings: Settings, names: Names) -> Parts:
    words = byte_level_after(words_and(r"\p{N}"), prefix=bool(settings["add_prefix_space"]))
    return Parts(words, decoders.ByteLevel(), normalizers.NFC(), _NO_AFFIXES)


_PIECES_TO_TEXT = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def _llama(settings: Settings, names: Names) -> Parts:
    setting = settings["add_prefix_space"]
    prefix = True if setting is None else bool(setting)
    scheme = ("always" if settings["legacy"] else "first") if prefix else "never"
    without_prefix = [decoders.Strip(content=" ", left=1)] if prefix else []
    return Parts(
        pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False),
        decoders.Sequence([*_PIECES_TO_TEXT, *without_prefix]),
        model={"fuse_unk": True, "byte_fallback": True},
    )


def _gemma(settings: Settings, names: Names) -> Parts:
    return Parts(
        pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False),
        decoders.Sequence(_PIECES_TO_TEXT),
        normalizers.Replace(" ", "▁"),
        {"fuse_unk": True, "byte_fallback": True, "unk_token": names.get("unk_token")},
    )


def _bert(settings: Settings, names: Names) -> Parts:
    accents = settings["strip_accents"]
    return Parts(
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(prefix="##"),
        normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=bool(settings["tokenize_chinese_chars"]),
            strip_accents=None if accents is None else bool(accents),
            lowercase=bool(settings["do_lower_case"]),
        ),
        {
            "unk_token": names.get("unk_token", "[UNK]"),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    )


def _deberta_v2(settings: Settings, names: Names) -> Parts:
    scheme = "always" if settings["add_prefix_space"] else "first"
    lower = [normalizers.Lowercase()] if settings["do_lower_case"] else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    cut = [pre_tokenizers.Punctuation(behavior="isolated")] if settings["split_by_punct"] else []
    return Parts(
        pre_tokenizers.Sequence([*cut, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]),
        decoders.Metaspace(replacement="▁", prepend_scheme=scheme),
        normalizers.Sequence([*lower, spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)]),
    )


_ONE_SPACE = normalizers.Replace(Regex(" {2,}"), " ")


def _around_pieces(
    settings: Settings,
    before: Sequence[Any] = (),
    after: Sequence[Any] = (),
    *,
    words: bool = False,
    table: bool = True,
    **model: Any,
) -> Parts:
    """SentencePiece's parts: changes ``before`` and ``after`` the file's ``table`` of characters, then ▁ for spaces.

    With ``words`` the text is split at white space first.
    """
    stored = settings[CHARSMAP] if table else None
    changes = [*before, *([normalizers.Precompiled(base64.b64decode(str(stored)))] if stored else []), *after]
    scheme = "always" if settings["add_prefix_space"] else "never"
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    return Parts(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space]) if words else space,
        decoders.Metaspace(replacement="▁", prepend_scheme=scheme),
        changes[0] if len(changes) == 1 and stored else normalizers.Sequence(changes),
        model,
    )


def _plain_pieces(
    before: Sequence[Any] = (), after: Sequence[Any] = (), **rules: Any
) -> Callable[[Settings, Names], Parts]:
    return lambda settings, names: _around_pieces(settings, before, after, **rules)


def _pegasus(settings: Settings, names: Names) -> Parts:
    lines = [] if settings[CHARSMAP] else [normalizers.Replace(Regex(r"\n"), " ")]
    return _around_pieces(settings, lines, [_ONE_SPACE])


def _nllb(settings: Settings, names: Names) -> Parts:
    after = [_ONE_SPACE] if settings[CHARSMAP] else []
    return _around_pieces(settings, (), after, unk_token=names.get("unk_token"), fuse_unk=True)


def _folded_pieces(*, spaces: bool = False, **model: Any) -> Callable[[Settings, Names], Parts]:
    """Quotes are made one kind, and unless the settings say otherwise accents and capitals are taken away.

    With ``spaces`` several spaces become one, and the text is not split at white space.
    """

    def make(settings: Settings, names: Names) -> Parts:
        changes: list[Any] = [normalizers.Replace(pair, '"') for pair in ("``", "''")]
        changes += [_ONE_SPACE] if spaces else []
        changes += [] if settings["keep_accents"] else [normalizers.NFKD(), normalizers.StripAccents()]
        changes += [normalizers.Lowercase()] if settings["do_lower_case"] else []
        return _around_pieces(settings, changes, words=not spaces, **model)

    return make


def _esm(settings: Settings, names: Names) -> Parts:
    return Parts(pre_tokenizers.WhitespaceSplit(), None, model={"unk_token": names.get("unk_token", "<unk>")})


def _cls_and_eos(stored: Any, settings: Settings, names: Names, library: Library) -> Any:
    roles = [role for role in ("cls_token", "eos_token") if role in names]
    ids = [_with_id(names[role], library) for role in roles]
    single = [*(name for name, _ in ids[:1]), "$A", *(name for name, _ in ids[1:])]
    return processors.TemplateProcessing(single=single, special_tokens=ids)


CHARSMAP, SOURCE = "precompiled_charsmap", "src_lang"
"""The key of SentencePiece's table of characters in a normalizer, and the setting with the code of a language."""
_MERGES = ("vocab.json", "merges.txt")
_SWITCHES = {"add_bos_token": False, "add_eos_token": False}
_PREFIX, _TRIM = {"add_prefix_space": False}, {"trim_offsets": True}
_END_OF_TEXT = "<|endoftext|>"
_GPT2_SPECIALS = {"bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT, "unk_token": _END_OF_TEXT}
_LLAMA_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_BERT_SPECIALS = {f"{word}_token": f"[{word.upper()}]" for word in ("unk", "sep", "pad", "cls", "mask")}
_GEMMA_SPECIALS = {f"{word}_token": f"<{word}>" for word in ("bos", "eos", "unk", "pad", "mask")}
_ROBERTA_SPECIALS = {
    **_LLAMA_SPECIALS,
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_XLNET_SPECIALS = {
    **_LLAMA_SPECIALS,
    **{f"{word}_token": f"<{word}>" for word in ("sep", "pad", "cls", "mask")},
}
_ALBERT_SPECIALS = {
    **_BERT_SPECIALS, "unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "[CLS]", "eos_token": "[SEP]",
}  # fmt: skip
_PIECES = {"add_prefix_space": True}
_FOLDS = {"do_lower_case": False, "keep_accents": False}
_T5_SPECIALS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_FAIRSEQ = tuple((piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>"))
_MASK = {"mask_token": {"lstrip": True}}  # it takes the space before it
_ESM_SPECIALS = {f"{word}_token": f"<{word}>" for word in ("unk", "cls", "pad", "mask", "eos")}
_QWEN2_SPECIALS = {"eos_token": _END_OF_TEXT, "unk_token": _END_OF_TEXT, "pad_token": _END_OF_TEXT}

GPT2 = TokenizerClass("GPT2Tokenizer", "BPE", _MERGES, _GPT2_SPECIALS, _gpt2, _stored_ends, _PREFIX | _SWITCHES)
ROBERTA = TokenizerClass("RobertaTokenizer", "BPE", _MERGES, _ROBERTA_SPECIALS, _gpt2, _roberta_ends, _PREFIX | _TRIM)
BERT = TokenizerClass(
    "BertTokenizer",
    "WordPiece",
    ("vocab.txt",),
    _BERT_SPECIALS,
    _bert,
    _cls_and_sep,
    {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
    open=("do_lower_case",),
)
QWEN2 = TokenizerClass("Qwen2Tokenizer", "BPE", _MERGES, _QWEN2_SPECIALS, _qwen2, _stored_ends, _PREFIX | _SWITCHES)
LLAMA = TokenizerClass(
    "LlamaTokenizer",
    "BPE",
    (),
    _LLAMA_SPECIALS,
    _llama,
    _stored_ends,
    {"add_prefix_space": True, "legacy": False, **_SWITCHES},
)
GEMMA = TokenizerClass("GemmaTokenizer", "BPE", (), _GEMMA_SPECIALS, _gemma, _stored_ends, _SWITCHES)
ESM = TokenizerClass("EsmTokenizer", "WordLevel", ("vocab.txt",), _ESM_SPECIALS, _esm, _cls_and_eos, {})
GPT_NEOX = TokenizerClass(
    "GPTNeoXTokenizer",
    "BPE",
    _MERGES,
    {**_GPT2_SPECIALS, "pad_token": "<|padding|>"},
    _gpt_neox,
    _switched_ends,
    _PREFIX | _TRIM | _SWITCHES,
)
DEBERTA_V2 = TokenizerClass(
    "DebertaV2Tokenizer",
    "Unigram",
    (),
    {**_BERT_SPECIALS, "bos_token": "[CLS]", "eos_token": "[SEP]"},
    _deberta_v2,
    _cls_and_sep,
    {"add_prefix_space": True, "do_lower_case": False, "split_by_punct": False},
)
XLNET = TokenizerClass(
    "XLNetTokenizer", "Unigram", (), _XLNET_SPECIALS, _folded_pieces(), _sep_and_cls, {"do_lower_case": False},
    fixed={**_PIECES, "keep_accents": False}, flags=_MASK, extras=("<eop>", "<eod>"),
)  # fmt: skip
XLM_ROBERTA = TokenizerClass(
    "XLMRobertaTokenizer", "Unigram", (), _ROBERTA_SPECIALS, _plain_pieces(words=True, unk_id=3), _bos_and_eos,
    _PIECES, first=_FAIRSEQ, skipped=3, last=("<mask>",),
)  # fmt: skip
_NOT_USED = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
CAMEMBERT = TokenizerClass(
    "CamembertTokenizer", "Unigram", (), _ROBERTA_SPECIALS, _plain_pieces(words=True, unk_id=0), _bos_and_eos,
    _PIECES, flags=_MASK, extras=_NOT_USED,
    first=[(_NOT_USED[0], 0.0), ("<pad>", 0.0), (_NOT_USED[1], 0.0), ("<unk>", 0.0), (_NOT_USED[2], -100.0)],
    skipped=1, last=("<mask>",),
)  # fmt: skip
ALBERT = TokenizerClass(
    "AlbertTokenizer", "Unigram", (), _ALBERT_SPECIALS, _folded_pieces(unk_id=1), _cls_and_sep,
    {**_PIECES, **_FOLDS, "do_lower_case": True},
)  # fmt: skip
REMBERT = TokenizerClass(
    "RemBertTokenizer", "Unigram", (), _ALBERT_SPECIALS, _folded_pieces(spaces=True, unk_id=2), _rembert_ends,
    {**_PIECES, **_FOLDS, "keep_accents": True},
)  # fmt: skip
_BIG_BIRD_SPECIALS = {**_BERT_SPECIALS, **_LLAMA_SPECIALS, "pad_token": "<pad>"}
BIG_BIRD = TokenizerClass(
    "BigBirdTokenizer", "Unigram", (), _BIG_BIRD_SPECIALS,
    _plain_pieces([normalizers.Replace(Regex(" {2,}"), "▁")], table=False, otherwise=100), _cls_and_sep, _PIECES,
    flags=_MASK,
)  # fmt: skip
_SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))
T5 = TokenizerClass(
    "T5Tokenizer", "Unigram", (), _T5_SPECIALS, _plain_pieces(words=True, unk_id=2),
    _template("$A eos_token", "$A eos_token $B eos_token"), {}, fixed=_PIECES, extras=_SENTINELS,
    last=_SENTINELS[::-1],
)  # fmt: skip
_PEGASUS_MASKS = ("<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, 103)))
PEGASUS = TokenizerClass(
    "PegasusTokenizer", "Unigram", (), {**_T5_SPECIALS, "mask_token": "<mask_2>"}, _pegasus,
    _template("$A eos_token", "$A $B eos_token"), {}, fixed=_PIECES, extras=_PEGASUS_MASKS,
    first=[("<pad>", 0.0), ("</s>", 0.0), *((name, -100.0 if "unk" in name else 0.0) for name in _PEGASUS_MASKS)],
    skipped=2,
)  # fmt: skip
_MADE_UP = tuple(f"<madeupword{number}>" for number in range(7))
XGLM = TokenizerClass(
    "XGLMTokenizer", "Unigram", (), {role: name for role, name in _ROBERTA_SPECIALS.items() if role != "mask_token"},
    _plain_pieces((), [_ONE_SPACE], unk_id=3), _template("eos_token $A", "eos_token $A eos_token eos_token $B"),
    _PIECES, extras=_MADE_UP, first=_FAIRSEQ, skipped=3, last=_MADE_UP,
)  # fmt: skip
MBART = TokenizerClass(
    "MBartTokenizer", "Unigram", (), _ROBERTA_SPECIALS, _plain_pieces(words=True, table=False, unk_id=3),
    _language_after, {SOURCE: "en_XX"}, fixed=_PIECES, flags=_MASK, extras=MBART_LANGUAGES,
    first=_FAIRSEQ, skipped=3, last=(*MBART_LANGUAGES, "<mask>"),
)  # fmt: skip
_FIFTY_LANGUAGES = (*MBART_LANGUAGES, *MBART50_LANGUAGES)
MBART50 = TokenizerClass(
    "MBart50Tokenizer", "Unigram", (), _ROBERTA_SPECIALS, _plain_pieces((), [_ONE_SPACE], unk_id=3),
    _language_before, {SOURCE: "en_XX"}, fixed=_PIECES, flags=_MASK, extras=_FIFTY_LANGUAGES,
    first=_FAIRSEQ, skipped=3, last=(*_FIFTY_LANGUAGES, "<mask>"),
)  # fmt: skip
NLLB = TokenizerClass(
    "NllbTokenizer", "BPE", (), _ROBERTA_SPECIALS, _nllb, _nllb_ends,
    {SOURCE: "eng_Latn", "legacy_behaviour": False}, fixed=_PIECES,
    flags={"mask_token": {"lstrip": True, "normalized": True}}, extras=NLLB_LANGUAGES,
    first=_FAIRSEQ, skipped=3, last=(*NLLB_LANGUAGES, "<mask>"),
)  # fmt: skip
MARIAN = TokenizerClass(
    "MarianTokenizer", "Unigram", ("source.spm", "vocab.json"), _T5_SPECIALS, _plain_pieces(),
    _template("$A eos_token", "$A $B eos_token"), {}, fixed=_PIECES, target_files=("target.spm", "vocab.json"),
)  # fmt: skip
M2M100 = TokenizerClass(
    "M2M100Tokenizer", "Unigram", ("sentencepiece.bpe.model", "vocab.json"),
    {**_LLAMA_SPECIALS, "sep_token": "</s>", "pad_token": "<pad>"}, _plain_pieces(), _m2m_ends, {SOURCE: "en"},
    fixed=_PIECES, extras=tuple(f"__{code}__" for code in M2M_LANGUAGES),
)  # fmt: skip

CLASSES: Mapping[str, TokenizerClass] = {
    **{c.name: c for c in (GPT2, ROBERTA, BERT, QWEN2, LLAMA, GEMMA, ESM, GPT_NEOX)},
    **{c.name: c for c in (DEBERTA_V2, XLNET, XLM_ROBERTA, CAMEMBERT, ALBERT, REMBERT, BIG_BIRD)},
    **{c.name: c for c in (T5, PEGASUS, XGLM, MBART, MBART50, NLLB, MARIAN, M2M100)},
    "BartTokenizer": ROBERTA,
    "DistilBertTokenizer": BERT,
    "ElectraTokenizer": BERT,
    "MobileBertTokenizer": BERT,
}

_IGNORES_DECLARED = {"qwen2"}
_UNCHANGED_CLASSES = ("PreTrainedTokenizer", UNCHANGED)


def choose_class(model_type: object, declared: object, byte_level: bool) -> TokenizerClass | None:
    """The class that rebuilds a tokenizer; None if its tokenizer.json is used unchanged.

    ``model_type`` is config.json's, ``declared`` the ``tokenizer_class`` of tokenizer_config.json or config.json,
    ``byte_level`` whether tokenizer.json contains ByteLevel, which no LlamaTokenizer has.
    """
    name = declared.removesuffix("Fast") if isinstance(declared, str) else ""
    family = model_type if isinstance(model_type, str) else ""
    registered = REGISTERED.get(family)
    if not name or family in _IGNORES_DECLARED or registered == UNCHANGED:
        return CLASSES.get(registered or "")
    if name == LLAMA.name and byte_level:
        return None
    return CLASSES.get(name)


def is_unchanged(model_type: object, declared: object) -> bool:
    """Whether transformers is known to use a tokenizer.json unchanged, for such a model or such a declared class."""
    return (isinstance(declared, str) and declared.removesuffix("Fast") in _UNCHANGED_CLASSES) or (
        isinstance(model_type, str) and REGISTERED.get(model_type) == UNCHANGED
    )
