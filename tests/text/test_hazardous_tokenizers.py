"""A tokenizer.json by a stranger: a bomb is named, what may be one works in a process of its own, the rest as ever."""

import json
from pathlib import Path

import pytest
from directories import LAYOUTS
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tinytf.checkpoints.gguf.byte_level import SPLITS
from tinytf.errors import CheckpointError, TinytfError, TokenizerError
from tinytf.text import worker
from tinytf.text.hazards import is_hazardous
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.tokenizer import Tokenizer as Ours
from tinytf.text.tokenizer_classes import GPT2_WORDS, words_and
from tinytf.text.train import train_bpe, train_characters, train_wordpiece

TEXT = "The cat sat on the mat, and the cat ran."
CATASTROPHE = r"(x+x+)+y"


def _stored(**parts):
    """A tokenizer of single letters with these parts, as its file has them."""
    library = Tokenizer(models.BPE({chr(n): n - 32 for n in range(32, 127)}, [], fuse_unk=True, unk_token=" "))
    for name, part in parts.items():
        setattr(library, name, part)
    return json.loads(library.to_str())


def _read(folder, data):
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return load_tokenizer_directory(folder).tokenizer


def _doubling(times):
    return normalizers.Sequence([normalizers.Replace("a", "aa")] * times)


def _nested(content):
    return normalizers.Sequence([normalizers.NFC(), normalizers.Sequence([normalizers.Replace("", content)])])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"normalizer": _doubling(30)}, r"normalizer\.normalizers\[9\] turns one character into 1,024 or more"),
        ({"normalizer": _nested("x" * 1000)}, r"normalizer\.normalizers\[1\] turns one character into 1,001"),
        ({"normalizer": normalizers.Prepend("x" * 2**20)}, r"normalizer inserts 1,048,576 characters"),
        ({"normalizer": normalizers.Replace(Regex("x*"), "y" * 5000)}, r"normalizer turns one character into 5,001"),
        (
            {"decoder": decoders.Sequence([decoders.Replace("a", "a" * 2000)])},
            r"decoder\.decoders\[0\] turns one character into 2,000",
        ),
    ],
)
def test_a_bomb_is_told_by_file_and_field_before_it_is_read(tmp_path, monkeypatch, parts, said):
    monkeypatch.setattr(worker.Worker, "__call__", lambda *given: pytest.fail("it was tried"))
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: {said}") as told:
        _read(tmp_path, _stored(**parts))
    assert str(tmp_path) in told.value.message


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_ordinary_tokenizers_stay_in_this_process(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(worker.Worker, "__call__", lambda *given: pytest.fail("a process of its own"))
    LAYOUTS[layout](tmp_path)
    assert load_tokenizer_directory(tmp_path).tokenizer.encode(TEXT).ids


@pytest.mark.parametrize("train", [lambda: train_bpe([TEXT], 300), lambda: train_wordpiece([TEXT], 120),
                                   lambda: train_characters([TEXT])])  # fmt: skip
def test_our_own_tokenizers_stay_in_this_process(tmp_path, train):
    assert not is_hazardous(json.loads(train().to_json()), tmp_path)


KNOWN = [GPT2_WORDS, *(one for name in ("llama3", "gpt-4o", "smollm", "qwen2") for one in SPLITS[name].expressions)]
RUNS = [" " * 200_000 + "a", "a" * 200_000, "'" * 200_000, " \n" * 100_000 + "x", "A" * 200_000, "1" * 200_000,
        "一" * 100_000 + "!", "\u0301" * 100_000]  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("expression", sorted(set(KNOWN)))
@pytest.mark.parametrize("text", RUNS, ids=lambda text: ascii(text[:2]))
def test_the_expressions_that_are_known_split_long_texts(tmp_path, expression, text):
    """In proportion to the text: one that goes back and forth would reach the library's limit of retries, and raise."""
    data = _stored(pre_tokenizer=pre_tokenizers.Split(Regex(expression), "isolated"))
    assert not is_hazardous(data, tmp_path)
    pieces = pre_tokenizers.Split(Regex(expression), "isolated").pre_tokenize_str(text)
    assert "".join(piece for piece, _ in pieces) == text


STRANGE = {
    "an expression": {"pre_tokenizer": pre_tokenizers.Split(Regex(r"\w+|\W"), "isolated")},
    "some growth": {"normalizer": normalizers.Replace("a", "aaaaaaaaaaaa")},
    "a decoder": {"decoder": decoders.Sequence([decoders.Replace(Regex("a|b"), "c"), decoders.Fuse()])},
}


@pytest.mark.parametrize("name", STRANGE)
def test_in_a_process_of_its_own_it_gives_what_the_library_gives(tmp_path, name):
    data = _stored(**STRANGE[name])
    assert is_hazardous(data, tmp_path)
    ours, library = _read(tmp_path, data), Tokenizer.from_str(json.dumps(data))
    found, expected = ours.encode(TEXT), library.encode(TEXT)
    assert found.ids == expected.ids
    assert [(token.start, token.end) for token in found.tokens] == expected.offsets
    assert ours.ids_of([TEXT, "cat"]) == [library.encode(text).ids for text in (TEXT, "cat")]
    assert ours.decode(found.ids) == library.decode(expected.ids)


def test_a_catastrophic_expression_is_one_line_that_names_the_file(tmp_path, capfd):
    ours = _read(tmp_path, _stored(pre_tokenizer=pre_tokenizers.Split(Regex(CATASTROPHE), "isolated")))
    assert ours.encode("xy").ids
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot take this text: .*retry-limit"):
        ours.encode("x" * 60)
    assert ours.encode("xy").ids  # the next text has a sound process
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("times", "seconds", "size"), [(9, 1, 2**40), (9, 60, 2**26)])
@pytest.mark.slow
def test_a_text_that_takes_too_much_is_one_line_that_names_the_file(tmp_path, monkeypatch, times, seconds, size):
    ours = _read(tmp_path, _stored(normalizer=_doubling(times)))
    monkeypatch.setattr(worker, "SECONDS", seconds)
    monkeypatch.setattr(worker, "GROWTH", size)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json takes more than .*, and was stopped"):
        ours.encode("a" * 100_000)
    assert len(ours.encode("a").ids) == 2**times


def test_an_expression_that_cannot_be_compiled_is_told_by_the_file(tmp_path):
    data = _stored(pre_tokenizer=pre_tokenizers.Split(Regex("a"), "isolated"))
    data["pre_tokenizer"]["pattern"]["Regex"] = "((a{1,9999}){1,9999}){1,9999}("
    with pytest.raises(TinytfError, match=r"tokenizer\.json"):
        _read(tmp_path, data)


def test_a_panic_of_the_library_stays_off_the_screen(tmp_path, capfd):
    """The second piece of a merge is shorter than the prefix that is cut from it."""
    data = _stored() | {"model": {"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": [["a", "a"]],
                                  "continuing_subword_prefix": "###"}}  # fmt: skip
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer: range end index"):
        _read(tmp_path, data)
    assert capfd.readouterr() == ("", "")


def test_padding_that_a_file_asks_for_is_not_made(tmp_path):
    data = _stored() | {"padding": {"strategy": {"Fixed": 1000}, "direction": "Right", "pad_to_multiple_of": None,
                                    "pad_id": 0, "pad_type_id": 0, "pad_token": " "}}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    assert len(Ours.load(tmp_path / "tokenizer.json").encode("cat").ids) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"normalizer": 3},
        {"pre_tokenizer": {"type": []}},
        {"added_tokens": 7},
        {"model": {"vocab": 1}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": []}, "content": "x"}},
        {"decoder": {"type": "Sequence", "decoders": [[[]], 1, None]}},
    ],
)
def test_odd_types_are_left_to_the_library(tmp_path, changed):
    is_hazardous(_stored() | changed, Path("tokenizer.json"))
    with pytest.raises(TinytfError):
        _read(tmp_path, _stored() | changed)


def test_words_and_is_what_llama_3_ships(tmp_path):
    """The expression of Llama 3's tokenizer.json, written down from it."""
    written = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert words_and(r"\p{N}{1,3}") == written


def _with_id(place, token_id):
    data = _stored()
    if place == "vocab":
        data["model"]["vocab"]["a"] = token_id
    else:
        data["added_tokens"] = [{"id": token_id, "content": "<far>", "single_word": False, "lstrip": False,
                                 "rstrip": False, "normalized": False, "special": True}]  # fmt: skip
    return data


FAR = [-1, 2 * 96 + 65_536, 2**31, 2**32 - 2, 2**32, 10**30, True, 1.5, None, "7"]


@pytest.mark.parametrize("place", ["vocab", "added"])
@pytest.mark.parametrize("token_id", FAR)
def test_an_id_far_beyond_the_entries_is_refused_before_the_library_reads_it(tmp_path, monkeypatch, place, token_id):
    monkeypatch.setattr("tinytf.text.huggingface.Library", None)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: (a|<far>) has the (invalid )?id"):
        _read(tmp_path, _with_id(place, token_id))


@pytest.mark.parametrize("token_id", FAR)
def test_an_id_far_beyond_the_entries_of_a_vocab_json_is_refused(tmp_path, token_id):
    LAYOUTS["gpt2_files"](tmp_path)
    path = tmp_path / "vocab.json"
    vocabulary = json.loads(path.read_text("utf-8"))
    token_id = 2 * len(vocabulary) + 65_536 if token_id == FAR[1] else token_id
    path.write_text(json.dumps(vocabulary | {"a": token_id}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"vocab\.json: a has the (invalid )?id"):
        load_tokenizer_directory(tmp_path)


def test_a_vocabulary_may_leave_ids_unused(tmp_path):
    tokenizer = _read(tmp_path, _with_id("vocab", 65_536))
    assert tokenizer.encode("cat").ids == [ord("c") - 32, 65_536, ord("t") - 32]
    assert (tokenizer.vocab_size, tokenizer.largest_id) == (95, 65_536)
