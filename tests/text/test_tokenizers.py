"""Tokenizers: text that comes back, bytes and offsets that are those of the text, refusals by name."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models

from tinytf.errors import CheckpointError, TinytfError, TokenizerError, UsageError
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import END_OF_TEXT, TRAINERS, train_bpe, train_characters, train_wordpiece
from tinytf.text.words import find_token

STORY = "The cat sat on the mat. A dog ran to the cat, and the cat ran. Then they all sat down, again and again.\n"
everything = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
texts = everything.filter(lambda text: END_OF_TEXT not in text)  # hypothesis tries words of the source, this one too
quickly = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

bpe = train_bpe([STORY * 5], 290)
wordpiece = train_wordpiece([STORY * 5], 150)
characters = train_characters([STORY])


@quickly
@given(texts)
def test_any_text_comes_back_from_byte_level_bpe(text):
    encoding = bpe.encode(text)
    assert bpe.decode(encoding.ids) == text
    assert b"".join(token.data for token in encoding.tokens) == text.encode("utf-8")


@quickly
@given(texts)
def test_offsets_of_bpe_cover_the_text_in_order_and_slice_it(text):
    last = 0
    for token in bpe.encode(text).tokens:
        covered = text[token.start : token.end].encode("utf-8")
        assert token.data in covered
        assert token.start <= last <= token.end
        last = token.end
        if len(token.data) == len(covered):
            assert token.data == covered
    assert last == len(text)


@quickly
@given(st.text(st.sampled_from(sorted(set(STORY))), max_size=80))
def test_characters_come_back_with_their_bytes_and_places(text):
    encoding = characters.encode(text)
    assert characters.decode(encoding.ids) == text
    assert [text[token.start : token.end] for token in encoding.tokens] == list(text)
    assert [token.data.decode() for token in encoding.tokens] == list(text)


@quickly
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), st.randoms())
def test_characters_of_any_script_come_back_and_keep_their_ids_when_shuffled(text, order: random.Random):
    tokenizer = train_characters([text])
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    shuffled = list(text)
    order.shuffle(shuffled)
    again = train_characters(shuffled)
    assert again.library.get_vocab() == tokenizer.library.get_vocab()
    assert tokenizer.encode(text).ids == [sorted(set(text)).index(char) for char in text]


@quickly
@given(texts)
def test_wordpiece_offsets_slice_the_text_that_was_given(text):
    """Lower-cased and stripped of accents inside, but data and offsets are of the text as it stands."""
    for token in wordpiece.encode(text).tokens:
        if not token.special:
            assert token.data == text[token.start : token.end].encode("utf-8")


def test_wordpiece_puts_in_cls_and_sep_and_says_so():
    encoding = wordpiece.encode("The CAT sat")
    assert [token.shown for token in encoding.tokens] == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert [token.special for token in encoding.tokens] == [True, False, False, False, True]
    assert [(token.start, token.end) for token in encoding.tokens] == [(0, 0), (0, 3), (4, 7), (8, 11), (0, 0)]
    assert encoding.added == "[CLS] added before, [SEP] added after"
    assert wordpiece.encode("the cat", special=False).added == "no start or end token added"
    assert bpe.encode("the cat").added == "no start or end token added"


def test_an_end_token_in_the_text_is_one_special_token_that_covers_its_word():
    encoding = bpe.encode(f"cat{END_OF_TEXT}dog")
    (end,) = (token for token in encoding.tokens if token.special)
    assert (end.id, end.start, end.end, end.data) == (bpe.end_id, 3, 16, END_OF_TEXT.encode())
    assert bpe.decode(encoding.ids) == "catdog"


def test_a_mask_in_the_text_is_one_special_token_that_covers_its_word():
    masked = wordpiece.encode("the [MASK] sat").tokens[2]
    assert (masked.id, masked.special, masked.data) == (wordpiece.mask_id, True, b"[MASK]")
    assert (masked.start, masked.end) == (4, 10)


def test_an_empty_text_stands_between_what_was_added():
    assert wordpiece.encode("").added == "[CLS] added before, [SEP] added after"


@pytest.mark.parametrize(("limit", "words"), [(4, ["[CLS]", "the", "cat", "[SEP]"]), (2, ["[CLS]", "[SEP]"])])
def test_a_cut_keeps_the_end_token_and_says_how_much_went(limit, words):
    encoding = wordpiece.encode("the cat sat on the mat").truncated(limit)
    assert [token.shown for token in encoding.tokens] == words
    assert encoding.added.endswith(f", {8 - limit} tokens cut from the end, beyond {limit}")


def test_a_cut_that_is_not_needed_changes_nothing():
    encoding = bpe.encode("the cat")
    assert encoding.truncated(len(encoding.tokens)) is encoding
    assert encoding.truncated(1).ids == encoding.ids[:1]


def test_one_token_cut_is_spoken_of_in_the_singular():
    encoding = bpe.encode("the cat")
    assert encoding.truncated(len(encoding.tokens) - 1).added.endswith(", 1 token cut from the end, beyond 2")


@pytest.mark.parametrize("tokenizer", [bpe, wordpiece, characters], ids=["bpe", "wordpiece", "characters"])
@pytest.mark.parametrize("code", [0xD800, 0xDFFF])
def test_a_lone_surrogate_is_refused_by_number_and_place(tokenizer, code):
    with pytest.raises(TokenizerError) as caught:
        tokenizer.encode("cat " + chr(code))
    assert caught.value.message == f"the text has a lone surrogate (U+{code:04X}) at character 4"


@pytest.mark.parametrize("tokenizer", [bpe, wordpiece, characters], ids=["bpe", "wordpiece", "characters"])
def test_a_word_that_is_no_unicode_is_no_entry_of_a_vocabulary(tokenizer):
    assert tokenizer.id_of("\udc80") is None
    with pytest.raises(TinytfError, match="lone surrogate"):
        find_token(tokenizer, "\udc80", causal=True)


def test_the_dropout_of_a_vocabulary_is_switched_off_and_said():
    library = LibraryTokenizer.from_str(bpe.library.to_str())
    library.model.dropout = 0.5
    dropping = Tokenizer(library)
    found = [dropping.encode("the cat sat on the mat") for _ in range(20)]
    assert {tuple(one.ids) for one in found} == {tuple(bpe.encode("the cat sat on the mat").ids)}
    assert found[0].added.endswith("BPE dropout of 0.5 off")


def test_an_unknown_character_is_refused_by_name():
    with pytest.raises(TokenizerError) as caught:
        train_characters(["ab c\n"]).encode("abx")
    assert caught.value.message == "the character 'x' at 2 is not among the 5 characters known"
    assert caught.value.hint == "known: ↵·abc"


def test_a_character_that_a_terminal_would_act_on_is_refused_in_print():
    with pytest.raises(TokenizerError, match=r"the character '\\\\x1b' at 0"):
        train_characters(["ab"]).encode("\x1b[2J")


def test_tokens_are_shown_as_they_are_printed():
    assert [token.shown for token in bpe.encode("the cat").tokens][-1].startswith("·")
    assert [token.shown for token in bpe.encode("\x1b").tokens] == ["\\x1b"]
    assert [token.shown for token in bpe.encode("🙂", special=False).tokens] == ["\\xf0", "\\x9f", "\\x99", "\\x82"]
    assert bpe.shown(10_000) == "#10000"


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_saved_tokenizer_gives_the_same_ids(kind, tmp_path):
    tokenizer = TRAINERS[kind]([STORY], 300)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.encode(STORY) == tokenizer.encode(STORY)
    assert (again.kind, again.vocab_size) == (tokenizer.kind, tokenizer.vocab_size)
    assert again.to_json() == tokenizer.to_json()


@pytest.mark.parametrize("kind", TRAINERS)
def test_training_a_tokenizer_twice_gives_the_same_one(kind):
    assert TRAINERS[kind]([STORY * 3], 300).to_json() == TRAINERS[kind]([STORY * 3], 300).to_json()


def test_ids_are_below_the_vocabulary_and_the_vocabulary_is_as_large_as_asked():
    assert bpe.vocab_size == 290
    assert wordpiece.vocab_size <= 150
    assert all(token_id < bpe.vocab_size for token_id in bpe.encode(STORY + "\x00🙂").ids)


def test_special_tokens_are_found_by_name():
    assert wordpiece.mask_id == 4
    assert wordpiece.end_id == wordpiece.special_id("[SEP]") == 3
    assert (bpe.mask_id, bpe.end_id) == (None, bpe.special_id("<|endoftext|>"))
    assert (characters.mask_id, characters.end_id) == (None, None)


def test_ends_and_the_mask_can_be_given():
    given = Tokenizer(bpe.library, ends=(7, 3), mask=END_OF_TEXT)
    assert (given.end_ids, given.end_id, given.mask_id) == ((7, 3), 7, bpe.end_id)
    assert (bpe.end_ids, characters.end_ids) == ((bpe.end_id,), ())
    assert wordpiece.special_ids == frozenset(range(5))


def test_a_piece_of_text_that_looks_like_a_special_token_is_none():
    library = LibraryTokenizer(models.BPE({"</s>": 0, "<mask>": 1}, []))
    assert (Tokenizer(library).end_id, Tokenizer(library).mask_id) == (None, None)


@pytest.mark.parametrize(("trainer", "size", "least"), [(train_bpe, 256, 257), (train_wordpiece, 99, 100)])
def test_a_vocabulary_without_room_says_both_numbers(trainer, size, least):
    with pytest.raises(UsageError, match=f"a vocabulary of {size} is too small: it needs at least {least}"):
        trainer([STORY], size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no tokenizer.json in"),
        ("{", "tokenizer.json is not JSON"),
        ("[]", "tokenizer.json holds a list, not a JSON object"),
        ("[" * 100_000, "tokenizer.json is not JSON"),
        (json.dumps({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}}), "is not a tokenizer"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(content, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(path)
