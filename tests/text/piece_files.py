"""SentencePiece files in the layouts of models; the sentencepiece package learns their pieces from a few lines."""

import io
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from directories import added, corpus, write
from sentencepiece import sentencepiece_model_pb2 as messages

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


@cache
def _learned(kind: str, size: int) -> bytes:
    """A Unigram with the real table of nmt_nfkc, or a BPE as of Llama: bytes for unknown characters, no table.

    It has ``size`` pieces.
    """
    llama = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    into = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in corpus() if text.strip()]),
        model_writer=into,
        model_type=kind,
        vocab_size=size,
        character_coverage=0.98,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **(llama if kind == "bpe" else {}),
    )
    return into.getvalue()


LLAMA = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]


def piece_file(kind: str, first: Iterable[tuple[str, int]] = LLAMA, whole: str = "naïve", size: int = 0) -> bytes:
    """A file with the ``first`` pieces before the learned ones, and after them one that is never split, if any."""
    model = messages.ModelProto.FromString(_learned(kind, size or (800 if kind == "bpe" else 500)))
    learned = [piece for piece in model.pieces if piece.type not in (UNKNOWN, CONTROL)]
    del model.pieces[:]
    for name, number in first:
        model.pieces.add(piece=name, score=0.0, type=number)
    model.pieces.extend(learned)
    if whole:
        model.pieces.add(piece=whole, score=0.0, type=USER_DEFINED)
    model.trainer_spec.unk_id = next(number for number, (_, of) in enumerate(first) if of == UNKNOWN)
    return model.SerializeToString()


def _names(*names: str, unknown: str = "<unk>", words: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    return [(name, UNKNOWN if name == unknown else USER_DEFINED if name in words else CONTROL) for name in names]


T5 = _names("<pad>", "</s>", "<unk>")
_ALBERT = _names("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", words=("[MASK]",))
_REMBERT = _names("<pad>", "[CLS]", "<unk>", "[SEP]", "[MASK]")
_DEBERTA = _names("[PAD]", "[CLS]", "[SEP]", "[UNK]", unknown="[UNK]")
_XLNET = _names("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>", words=("<mask>",))
_BIG_BIRD = [*LLAMA, ("<pad>", CONTROL), ("[SEP]", CONTROL), ("[MASK]", USER_DEFINED), ("[CLS]", CONTROL)]


def _layout(
    name: str,
    file: str,
    model_type: str,
    kind: str = "unigram",
    first: list[tuple[str, int]] = LLAMA,
    whole: str = "naïve",
    **settings: Any,
) -> tuple[str, Callable[[Path], None]]:
    def make(directory: Path) -> None:
        (directory / file).write_bytes(piece_file(kind, first, whole))
        files = {"tokenizer_config": settings} if settings else {}
        write(directory, config={"model_type": model_type}, **files)

    return f"{name}_pieces", make


def _nllb_listed(directory: Path) -> None:
    """Without the list of its added tokens, transformers 5.23 reads NLLB's file without a language."""
    from tinytf.text.languages import NLLB_LANGUAGES

    _nllb[1](directory)
    size = len(messages.ModelProto.FromString(piece_file("bpe")).pieces) + 1
    names = [*NLLB_LANGUAGES, "<mask>"]
    listed = {str(size + number): added(name, lstrip=name == "<mask>") for number, name in enumerate(names)}
    settings = {"tokenizer_class": "NllbTokenizer", "src_lang": "fra_Latn", "added_tokens_decoder": listed}
    write(directory, tokenizer_config={**settings, "additional_special_tokens": names[:-1]})


_SPM, _BPE = "spiece.model", "sentencepiece.bpe.model"
_nllb = _layout("nllb", _BPE, "m2m_100", "bpe", tokenizer_class="NllbTokenizer")
PIECE_LAYOUTS = dict([
    _layout("t5", _SPM, "t5", first=T5),
    _layout("t5_settings", _SPM, "mt5", first=T5, tokenizer_class="T5Tokenizer", extra_ids=100,
            additional_special_tokens=[f"<extra_id_{number}>" for number in range(100)]),
    _layout("xlm_roberta", _BPE, "xlm-roberta"),
    _layout("camembert", _BPE, "camembert"),
    _layout("mbart", _BPE, "mbart", src_lang="de_DE"),
    _layout("mbart50", _BPE, "mbart", tokenizer_class="MBart50Tokenizer"),
    _layout("pegasus", _SPM, "pegasus", first=T5, whole=""),
    _layout("big_bird", _SPM, "big_bird", first=_BIG_BIRD),
    _layout("deberta_v3", "spm.model", "deberta-v2", first=_DEBERTA, tokenizer_class="DebertaV2Tokenizer"),
    _layout("xlnet", _SPM, "xlnet", first=_XLNET),
    _layout("albert", _SPM, "albert", first=_ALBERT),
    _layout("rembert", "sentencepiece.model", "rembert", first=_REMBERT),
    _layout("llama", "tokenizer.model", "llama", "bpe", tokenizer_class="LlamaTokenizer", add_bos_token=True),
    _layout("llama_legacy", "tokenizer.model", "llama", "bpe", tokenizer_class="LlamaTokenizer", legacy=True,
            add_bos_token=True, add_eos_token=True),
    _layout("gemma", "tokenizer.model", "gemma", "bpe",
            first=_names("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", words=("<mask>",))),
    ("nllb_pieces", _nllb_listed),
])  # fmt: skip


def _saved(layout: str) -> Callable[[Path], None]:
    """A layout's tokenizer as transformers saves it, in a tokenizer.json."""

    def make(directory: Path) -> None:
        from transformers import AutoTokenizer

        PIECE_LAYOUTS[layout](directory)
        AutoTokenizer.from_pretrained(directory).save_pretrained(directory)
        for file in directory.glob("*.model"):
            file.unlink()

    return make


PIECE_LAYOUTS |= {f"{layout}_saved": _saved(layout) for layout in tuple(PIECE_LAYOUTS)}


def _normal_pieces(file: bytes) -> list[str]:
    return sorted(piece.piece for piece in messages.ModelProto.FromString(file).pieces if piece.type == NORMAL)


def _of_two_languages(directory: Path, **vocabularies: list[str]) -> None:
    """Two files, of which the target's has more pieces, and vocabularies whose special tokens have the same ids.

    Theirs takes the ids of special tokens from the source's vocabulary, in targets too.
    """
    (directory / "source.spm").write_bytes(piece_file("unigram", whole=""))
    (directory / "target.spm").write_bytes(piece_file("unigram", whole="été", size=700))
    for name, pieces in vocabularies.items():
        names = dict.fromkeys(["</s>", "<unk>", "<pad>", ">>fra<<", *pieces])
        write(directory, **{name: {piece: number for number, piece in enumerate(names)}})


def marian(directory: Path) -> None:
    """Pieces of both languages in another order, some missing, and a code of a language."""
    source, target = piece_file("unigram", whole=""), piece_file("unigram", whole="", size=700)
    write(directory, config={"model_type": "marian"})
    _of_two_languages(directory, vocab=["été", *_normal_pieces(target)[:9:-1], *_normal_pieces(source)[5:], "ꙮ"])


def marian_of_two_vocabularies(directory: Path) -> None:
    """Ids of their own for each language, the target's in the opposite order."""
    source, target = piece_file("unigram", whole=""), piece_file("unigram", whole="", size=700)
    write(directory, config={"model_type": "marian"}, tokenizer_config={"separate_vocabs": True})
    _of_two_languages(directory, vocab=_normal_pieces(source)[5:], target_vocab=["été", *_normal_pieces(target)[:9:-1]])


def m2m_100(directory: Path) -> None:
    model = piece_file("bpe", whole="")
    names = ["<s>", "<pad>", "</s>", "<unk>", *(piece.piece for piece in messages.ModelProto.FromString(model).pieces)]
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    settings = {"tokenizer_class": "M2M100Tokenizer", "src_lang": "fr"}
    write(directory, config={"model_type": "m2m_100"}, vocab=vocabulary, tokenizer_config=settings)
