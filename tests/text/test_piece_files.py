"""SentencePiece files: ids of their own, the codes of languages, and files that cannot be read."""

import base64
import contextlib
import logging
import random

import pytest
from directories import write
from hard_strings import hard_strings

from tinytf.errors import CheckpointError, UsageError
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.piece_file import read_piece_file
from tinytf.text.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

import piece_files  # noqa: E402  (it needs sentencepiece)
from sentencepiece import sentencepiece_model_pb2 as messages  # noqa: E402

TEXTS = [*hard_strings()[::8], ">>fra<< the cat", ">>fra<<", ">>xyz<<the", "a >>fra<< b"]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("layout", [piece_files.marian, piece_files.m2m_100])
def test_a_vocabulary_beside_the_file_gives_the_ids_of_transformers(layout, tmp_path):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers import AutoTokenizer

    layout(tmp_path)
    tokenizer, reference = load_tokenizer_directory(tmp_path).tokenizer, AutoTokenizer.from_pretrained(tmp_path)
    assert [text for text in TEXTS if tokenizer.of_source.encode(text).ids != reference(text)["input_ids"]] == []
    names = {i: tokenizer.library.id_to_token(i) for i in tokenizer.special_ids}
    assert {token_id: reference.convert_tokens_to_ids(name) for token_id, name in names.items()} == {
        i: i for i in names
    }
    assert tokenizer.decode(tokenizer.encode("the cat").ids) == "the cat"
    with pytest.raises(UsageError, match=r"no tokenizer\.json can hold the tokenizer of .*\.(spm|model)"):
        tokenizer.to_json()


def _decoded(reference, ids):
    return reference.decode(ids, skip_special_tokens=True)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("layout", [piece_files.marian, piece_files.marian_of_two_vocabularies])
def test_each_stack_of_a_marian_has_the_ids_of_its_own_tokenizer(layout, tmp_path):
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers import AutoTokenizer

    layout(tmp_path)
    of_target, reference = load_tokenizer_directory(tmp_path).tokenizer, AutoTokenizer.from_pretrained(tmp_path)
    sources, targets = ([reference(**{name: text})["input_ids"] for text in TEXTS] for name in ("text", "text_target"))
    assert sum(map(list.__ne__, sources, targets)) > len(TEXTS) / 3
    assert [t for t, ids in zip(TEXTS, sources, strict=True) if of_target.of_source.encode(t).ids != ids] == []
    assert [t for t, ids in zip(TEXTS, targets, strict=True) if of_target.encode(t).ids != ids] == []
    dice, count = random.Random(2), of_target.vocab_size
    written = [*targets, *([dice.randrange(count) for _ in range(dice.randrange(1, 9))] for _ in range(200))]
    assert [ids for ids in written if of_target.decode(ids) != _decoded(reference, ids)] == []


@pytest.mark.share(8)
@pytest.mark.parametrize("layout", [layout for layout in piece_files.PIECE_LAYOUTS if not layout.endswith("_saved")])
def test_what_a_file_gives_is_kept_in_a_tokenizer_json(layout, tmp_path):
    piece_files.PIECE_LAYOUTS[layout](tmp_path)
    tokenizer = load_tokenizer_directory(tmp_path).tokenizer
    (tmp_path / "own.json").write_text(tokenizer.to_json(), "utf-8")
    again = Tokenizer.load(tmp_path / "own.json")
    assert [text for text in TEXTS[::5] if again.encode(text) != tokenizer.encode(text)] == []


def test_its_offsets_are_those_of_the_package(tmp_path):
    """The package counts bytes; the text that a token covers is the same."""
    piece_files.marian(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.spm"))
    tokenizer = load_tokenizer_directory(tmp_path).tokenizer.of_source
    for text in ("The é🙂 café", "½ ꙮꙮ  x²\n", "e\u0301a\u0308\u0304 你好"):
        data, tokens = text.encode(), tokenizer.encode(text, special=False).tokens
        theirs = [
            data[piece.begin : piece.end].decode() for piece in processor.encode(text, return_type="proto").pieces
        ]
        assert [text[token.start : token.end] for token in tokens] == theirs


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_every_piece_is_read_with_its_score_and_type(kind, tmp_path):
    data = piece_files.piece_file(kind)
    (tmp_path / "spiece.model").write_bytes(data)
    model, file = messages.ModelProto.FromString(data), read_piece_file(tmp_path / "spiece.model")
    assert list(file.pieces) == [(piece.piece, piece.score) for piece in model.pieces]
    assert list(file.types) == [piece.type for piece in model.pieces]
    assert file.kind.lower() == kind
    assert file.prefix == model.normalizer_spec.add_dummy_prefix
    assert file.unknown_id == model.trainer_spec.unk_id
    assert base64.b64decode(file.charsmap or "") == model.normalizer_spec.precompiled_charsmap


@pytest.mark.parametrize("prefix", [True, False])
def test_a_llama_without_settings_follows_the_rules_in_its_file(prefix, tmp_path):
    """A model was trained on what the sentencepiece package gives, which transformers 5.23 does not in two ways.

    It puts no space before a text, and merges by ids, while the first pieces of Llama have the worst scores.
    """
    model = messages.ModelProto.FromString(piece_files.piece_file("bpe", whole=""))
    for spaces in (2, 4, 3):
        model.pieces.insert(3, messages.ModelProto.SentencePiece(piece="▁" * spaces, score=-1e9))
    model.normalizer_spec.add_dummy_prefix = prefix
    (tmp_path / "tokenizer.model").write_bytes(model.SerializeToString())
    write(tmp_path, config={"model_type": "llama"})
    tokenizer = load_tokenizer_directory(tmp_path).tokenizer
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    plain = [text for text in TEXTS if text[:1] not in " ▁" and not any(name in text for name, _ in piece_files.LLAMA)]
    assert [text for text in plain if tokenizer.encode(text).ids != processor.encode(text)] == []
    assert tokenizer.assumed == {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": prefix}


@pytest.mark.parametrize(
    ("model_type", "given", "around"),
    [
        ("mbart", {}, ([], ["</s>", "en_XX"])),
        ("mbart", {"src_lang": "de_DE"}, ([], ["</s>", "de_DE"])),
        ("mbart50", {"src_lang": "uk_UA"}, (["uk_UA"], ["</s>"])),
        ("nllb", {"src_lang": "fra_Latn"}, (["fra_Latn"], ["</s>"])),
        ("nllb", {"legacy_behaviour": True}, ([], ["</s>", "eng_Latn"])),
        ("xglm", {}, (["</s>"], [])),
    ],
)
def test_a_source_has_the_code_of_its_language_and_the_end_of_a_text(model_type, given, around, tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(
        piece_files.piece_file("bpe" if model_type == "nllb" else "unigram")
    )
    write(tmp_path, config={"model_type": model_type})
    tokenizer = load_tokenizer_directory(tmp_path, given).tokenizer
    before, after = tokenizer.surrounding_ids()
    assert ([tokenizer.shown(i) for i in before], [tokenizer.shown(i) for i in after]) == around
    with pytest.raises(UsageError, match=r"no language 'en_US'|has no setting 'src_lang'"):
        load_tokenizer_directory(tmp_path, {"src_lang": "en_US"})


def _of(**trainer: int) -> bytes:
    model = messages.ModelProto.FromString(piece_files.piece_file("unigram"))
    for name, value in trainer.items():
        setattr(model.trainer_spec, name, value)
    return model.SerializeToString()


T5, LLAMA = {"model_type": "t5"}, {"model_type": "llama"}


@pytest.mark.parametrize(
    ("data", "config", "message", "hint"),
    [
        (b"", T5, "DIR/spiece.model is not a SentencePiece vocabulary, or is cut off", "compare"),
        (b"IQ== 0\nIg== 1\n", T5, "DIR/spiece.model is not a SentencePiece vocabulary, or is cut off", "compare"),
        (_of(model_type=3), T5, "DIR/spiece.model is a SentencePiece vocabulary of words", "tinytf reads"),
        (piece_files.piece_file("bpe"), T5, "DIR/spiece.model has a BPE model, and a T5Tokenizer has Unigram", ""),
        (_of(), LLAMA, "no file in DIR says which tokenizer of transformers reads spiece.model", "say it, as in"),
        (piece_files.piece_file("bpe", whole="a" * 600), LLAMA, "DIR/spiece.model: the piece aaaa", "at most 512"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_line(data, config, message, hint, tmp_path):
    (tmp_path / "spiece.model").write_bytes(data)
    write(tmp_path, config=config)
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer_directory(tmp_path)
    assert caught.value.message.replace(str(tmp_path), "DIR").startswith(message)
    assert (caught.value.hint[: len(hint)], "\n" in caught.value.message) == (hint, False)


def test_a_file_that_is_cut_or_garbled_opens_or_is_refused(tmp_path):
    """A cut one never opens: what follows the pieces is missing."""
    data, dice = piece_files.piece_file("unigram", piece_files.T5), random.Random(1)
    write(tmp_path, config=T5)
    for _ in range(20):
        (tmp_path / "spiece.model").write_bytes(data[: dice.randrange(len(data))])
        with pytest.raises(CheckpointError, match="or is cut off"):
            read_piece_file(tmp_path / "spiece.model")
        garbled = bytearray(data)
        for _ in range(3):
            garbled[dice.randrange(9_000)] = dice.randrange(256)
        (tmp_path / "spiece.model").write_bytes(garbled)
        with contextlib.suppress(CheckpointError):
            read_piece_file(tmp_path / "spiece.model")


@pytest.mark.parametrize("missing", ["source.spm", "vocab.json", "target.spm", "target_vocab.json"])
def test_a_vocabulary_beside_the_file_needs_both(missing, tmp_path):
    piece_files.marian_of_two_vocabularies(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointError, match=f"there is no {missing} in .*, and a MarianTokenizer needs it"):
        load_tokenizer_directory(tmp_path)


def test_without_the_package_marian_names_it(monkeypatch, tmp_path):
    piece_files.marian(tmp_path)
    monkeypatch.setattr("tinytf.text.separate_ids.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="needs the sentencepiece package") as caught:
        load_tokenizer_directory(tmp_path)
    assert caught.value.hint == 'pip install "tinytf[sentencepiece]"'
