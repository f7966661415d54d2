"""Tokenizers from GGUF metadata, against transformers' own for the same file and llama.cpp's rules written out."""

from pathlib import Path
from typing import Any

import pytest
import regex
import transformers
from gguf_files import Parts, byte_level_keys, sentencepiece_parts, small_parts
from hard_strings import hard_strings
from llama_cpp import EXPRESSIONS, cut, scored

from tinytf.checkpoints.gguf import gguf_tokenizer
from tinytf.errors import CheckpointError

TEXTS = hard_strings()


def theirs(path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def differing(path: Path, texts: list[str] = TEXTS) -> list[str]:
    reference, ours = theirs(path), gguf_tokenizer(path)
    pairs = zip(texts, reference(texts)["input_ids"], strict=True)
    return [text for text, ids in pairs if ours.encode(text).ids != ids]


def byte_level(tmp_path: Path, pre: str, **keys: Any) -> Path:
    parts = small_parts(vocab_size=500)
    parts.keys |= byte_level_keys(500, pre) | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return parts.write(tmp_path / "a.gguf")


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "deepseek-r1-qwen"])
def test_byte_level_ids_are_those_of_transformers(tmp_path, pre):
    path = byte_level(tmp_path, pre)
    assert differing(path) == []
    assert gguf_tokenizer(path).kind == "byte-level BPE"


def test_ids_of_llama_3_are_those_of_transformers_but_for_the_start_that_it_forgets(tmp_path):
    """The learned vocabulary has no word that its merges would not make, so whole words change nothing here."""
    assert differing(byte_level(tmp_path, "llama-bpe", add_bos_token=False)) == []
    assert differing(byte_level(tmp_path, "llama-bpe", add_bos_token=True)) == []
    assert gguf_tokenizer(byte_level(tmp_path, "llama-bpe")).encode("cat").ids[0] == 498


@pytest.mark.parametrize("pre", EXPRESSIONS)
def test_texts_are_cut_as_llama_cpp_cuts_them(tmp_path, pre):
    library = gguf_tokenizer(byte_level(tmp_path, pre)).library
    for text in TEXTS:
        if "ſ" in text:  # a long s is an s to the original expressions, which ignore case, and not to llama.cpp's
            continue
        found = [text[start:end] for _, (start, end) in library.pre_tokenizer.pre_tokenize_str(text)]
        assert found == cut(text, EXPRESSIONS[pre]), ascii(text)


def test_single_digits_let_a_space_before_them_alone(tmp_path):
    """transformers reads smollm files with GPT-2's cut, in which numbers stay whole, with the space before them."""
    path = byte_level(tmp_path, "smollm")
    assert [token.shown for token in gguf_tokenizer(path).encode("a  12").tokens] == ["a", "··", "1", "2"]
    assert differing(path, ["a  12"]) == ["a  12"]
    assert differing(path, [text for text in TEXTS if not regex.search(r"[\s\p{N}]\p{N}", text)]) == []


def test_a_whole_word_of_llama_3_needs_no_merges(tmp_path):
    parts = small_parts()
    parts.keys |= byte_level_keys(300, "llama-bpe") | {"tokenizer.ggml.add_bos_token": False}
    parts.keys["tokenizer.ggml.tokens"][297] = "zebra"  # the last that was learned
    del parts.keys["tokenizer.ggml.merges"][-1]
    assert gguf_tokenizer(parts.write(tmp_path / "a.gguf")).encode("zebra").ids == [297]
    parts.keys["tokenizer.ggml.pre"] = "qwen2"
    assert len(gguf_tokenizer(parts.write(tmp_path / "b.gguf")).encode("zebra").ids) == 5


def test_control_tokens_and_those_of_users_stand_for_themselves(tmp_path):
    tokenizer = gguf_tokenizer(byte_level(tmp_path, "gpt-2"))
    tokens = tokenizer.encode("a<|im_start|>b<note>c").tokens
    assert [token.id for token in tokens if token.id >= 498] == [498, 499]
    assert [token.special for token in tokens] == [False, True, False, False, False]
    assert tokenizer.decode([token.id for token in tokens]) == "ab<note>c"


@pytest.mark.parametrize(("bos", "eos"), [(False, False), (True, False), (False, True), (True, True)])
def test_start_and_end_are_added_as_the_file_says(tmp_path, bos, eos):
    path = byte_level(tmp_path, "gpt-2", add_bos_token=bos, add_eos_token=eos)
    ids = gguf_tokenizer(path).encode("the cat").ids
    assert ids[:1] == [498] if bos else ids[0] != 498
    assert ids[-1:] == [0] if eos else ids[-1] != 0
    assert differing(path, TEXTS[:200]) == []


def test_a_text_is_over_after_every_end_token(tmp_path):
    assert gguf_tokenizer(byte_level(tmp_path, "gpt-2")).end_ids == (0,)
    assert gguf_tokenizer(byte_level(tmp_path, "gpt-2", eot_token_id=498)).end_ids == (0, 498)


def test_names_with_spaces_and_signs_can_be_added(tmp_path):
    parts = small_parts()
    parts.keys |= byte_level_keys(300)
    parts.keys["tokenizer.ggml.tokens"][298] = "<a $A:0 b>"
    parts.keys["tokenizer.ggml.add_bos_token"] = True
    assert gguf_tokenizer(parts.write(tmp_path / "a.gguf")).encode("the").tokens[0].shown == "<a·$A:0·b>"


@pytest.mark.parametrize("keys", [{}, {"add_bos_token": False, "add_eos_token": True}], ids=["as is", "end alone"])
def test_sentencepiece_ids_are_those_of_transformers(tmp_path, keys):
    path = sentencepiece_parts(**keys).write(tmp_path / "a.gguf")
    assert differing(path) == []


def test_sentencepiece_puts_a_start_token_and_a_space_before_a_text(tmp_path):
    tokenizer = gguf_tokenizer(sentencepiece_parts().write(tmp_path / "a.gguf"))
    assert tokenizer.kind == "SentencePiece BPE"
    assert [token.shown for token in tokenizer.encode("the cat").tokens] == ["<s>", "·the", "·cat"]
    assert tokenizer.decode(tokenizer.encode("the cat").ids) == "the cat"
    without = gguf_tokenizer(sentencepiece_parts(add_space_prefix=False).write(tmp_path / "b.gguf"))
    assert [token.data for token in without.encode("the cat").tokens][-1] == b" cat"
    assert without.encode("the cat").tokens[1].data != b" the"


def test_sentencepiece_writes_bytes_where_it_has_no_piece(tmp_path):
    tokenizer = gguf_tokenizer(sentencepiece_parts().write(tmp_path / "a.gguf"))
    tokens = tokenizer.encode("\U00012345").tokens
    assert [token.data for token in tokens][-4:] == [bytes([byte]) for byte in "\U00012345".encode()]


def test_pieces_are_joined_by_their_scores(tmp_path):
    parts = sentencepiece_parts()
    tokens = parts.keys["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, parts.keys["tokenizer.ggml.scores"], strict=True))
    tokenizer = gguf_tokenizer(parts.write(tmp_path / "a.gguf"))
    for text in ("the cat sat on the mat", "a cat of the mats", "that oath, then: 10", "the hat  sits"):
        expected = [tokens.index(piece) for piece in scored(text, scores)]
        assert tokenizer.encode(text).ids[1:] == expected, text


def bent(tmp_path: Path, sentencepiece: bool = False, **keys: Any) -> CheckpointError:
    parts = sentencepiece_parts() if sentencepiece else Parts(small_parts().keys | byte_level_keys(300))
    parts.keys |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    parts.keys = {key: value for key, value in parts.keys.items() if value is not ...}
    path = parts.write(tmp_path / "bent.gguf")
    with pytest.raises(CheckpointError) as caught:
        gguf_tokenizer(path)
    assert str(path) in caught.value.message
    assert len(caught.value.message) < 400
    assert "\n" not in caught.value.message
    return caught.value


TOKENS = byte_level_keys(300)["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "bert"}, "the tokenizer 'bert' is not one that tinytf opens"),
        ({"model": ...}, "lacks tokenizer.ggml.model"),
        ({"pre": "tekken"}, "the pre-tokenizer 'tekken' is not one that tinytf knows"),
        ({"pre": ...}, "lacks tokenizer.ggml.pre"),
        ({"tokens": ...}, "lacks tokenizer.ggml.tokens"),
        ({"tokens": 3}, "tokens is 3, and has to be an array of strings"),
        ({"tokens": [1, 2, 3]}, "tokens is an array of 3, and has to be an array of strings"),
        ({"tokens": [*TOKENS[:299], TOKENS[7]]}, f"the vocabulary has {TOKENS[7]!r} twice"),
        ({"tokens": TOKENS[:200]}, "the merges do not fit the vocabulary"),
        ({"merges": ...}, "lacks tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, "the merge 'ab' is not two pieces"),
        ({"merges": ["x" * 5000 + " y"]}, "the merges do not fit the vocabulary"),
        ({"token_type": [1, 2]}, "token_type has 2 entries, and has to have 300"),
        ({"token_type": [9] * 300}, "the token type 9 is not one of 1 to 6"),
        ({"token_type": ["a"] * 300}, "has to be an array of numbers"),
        ({"bos_token_id": 300}, "bos_token_id 300 is above 299"),
        ({"eos_token_id": "a"}, "eos_token_id is 'a', and has to be a whole number"),
        ({"bos_token_id": ..., "add_bos_token": True}, "add_bos_token is true, and there is no bos_token_id"),
        ({"add_bos_token": 1}, "add_bos_token is 1, and has to be true or false"),
        ({"precompiled_charsmap": [1, 2]}, "the key 'tokenizer.ggml.precompiled_charsmap' is not known"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces True is not implemented"),
    ],
)
def test_a_tokenizer_that_is_not_understood_is_refused(tmp_path, keys, said):
    assert said in bent(tmp_path, **keys).message


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"scores": ...}, "lacks tokenizer.ggml.scores"),
        ({"scores": [1.0, 2.0]}, "scores has 2 entries"),
        ({"unknown_token_id": 10**6}, "unknown_token_id 1,000,000 is above"),
    ],
)
def test_pieces_that_are_not_understood_are_refused(tmp_path, keys, said):
    assert said in bent(tmp_path, sentencepiece=True, **keys).message


def test_a_piece_of_a_megabyte_is_refused_at_once(tmp_path):
    tokens = sentencepiece_parts().keys["tokenizer.ggml.tokens"]
    error = bent(tmp_path, sentencepiece=True, tokens=[*tokens[:-1], "a" * 10**6])
    assert "has 1,000,000 characters, and at most 512 are expected" in error.message
