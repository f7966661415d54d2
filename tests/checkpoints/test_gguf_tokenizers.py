"""Tokenizers from GGUF metadata, against transformers' own for the same file and llama.cpp's rules written out."""

import json
import struct
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import transformers
from gguf_files import Parts, byte_level_keys, sentencepiece_parts, small_parts
from hard_strings import hard_strings
from llama_cpp import EXPRESSIONS, cut, scored
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tinytf.checkpoints.gguf import gguf_tokenizer, read_parts, tokenizer_of
from tinytf.checkpoints.gguf.byte_level import SPLITS
from tinytf.errors import CheckpointError, UsageError
from tinytf.text.chat import Conversation

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


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2"])
def test_byte_level_ids_are_those_of_transformers(tmp_path, pre):
    path = byte_level(tmp_path, pre)
    assert differing(path) == []
    assert gguf_tokenizer(path).kind == "byte-level BPE"


@pytest.mark.slow
def test_ids_of_llama_3_are_those_of_transformers_but_for_the_start_that_it_forgets(tmp_path):
    """The learned vocabulary has no word that its merges would not make, so whole words change nothing here."""
    assert differing(byte_level(tmp_path, "llama-bpe", add_bos_token=False)) == []
    assert differing(byte_level(tmp_path, "llama-bpe", add_bos_token=True)) == []
    assert gguf_tokenizer(byte_level(tmp_path, "llama-bpe")).encode("cat").ids[0] == 498


@pytest.mark.parametrize("pre", EXPRESSIONS)
def test_texts_are_cut_as_llama_cpp_cuts_them(tmp_path, pre):
    library = gguf_tokenizer(byte_level(tmp_path, pre)).library
    for text in TEXTS[:: 1 if pre in ("gpt-2", "llama-bpe") else 4]:
        # A long s is an s to the original expressions, which ignore case, and not to llama.cpp's; the libraries
        # know different editions of Unicode.
        if "ſ" in text or any(unicodedata.category(char) == "Cn" for char in text):
            continue
        found = [text[start:end] for _, (start, end) in library.pre_tokenizer.pre_tokenize_str(text)]
        assert found == cut(text, EXPRESSIONS[pre]), ascii(text)


@pytest.mark.parametrize("pre", SPLITS)
def test_every_cut_can_be_made(tmp_path, pre):
    tokenizer = gguf_tokenizer(byte_level(tmp_path, pre))
    assert tokenizer.decode(tokenizer.encode("the cat's 1234 mats").ids) == "the cat's 1234 mats"


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


def test_gemmas_pieces_begin_without_a_space_and_runs_of_spaces_are_tokens_of_users(tmp_path):
    parts = sentencepiece_parts(add_space_prefix=False, pre="default")
    parts.keys["tokenizer.ggml.tokens"][-1] = "  "
    tokenizer = gguf_tokenizer(parts.write(tmp_path / "a.gguf"))
    tokens = tokenizer.encode("the  cat").tokens
    assert [token.data for token in tokens if token.data == b"  "] == [b"  "]
    assert b"".join(token.data for token in tokens[1:]) == b"the  cat"
    assert tokenizer.decode([token.id for token in tokens]) == "the  cat"


def wordpieces(capitals: bool) -> tuple[list[str], list[int]]:
    """A vocabulary of BERT, as llama.cpp's converter writes it (BertModel.set_vocab)."""
    trainer = trainers.WordPieceTrainer(
        vocab_size=700, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=not capitals)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator([text for text in TEXTS[:500] if "▁" not in text], trainer)
    return sorted(library.get_vocab(), key=library.get_vocab().get), [3] * 5 + [1] * (library.get_vocab_size() - 5)


@pytest.mark.parametrize("capitals", [False, True])
def test_wordpiece_ids_are_those_of_transformers(tmp_path, capitals):
    vocabulary, types = wordpieces(capitals)
    written = [
        token if kind == 3 else token[2:] if token.startswith("##") else "▁" + token
        for token, kind in zip(vocabulary, types, strict=True)
    ]
    named = {"bos": 2, "eos": 3, "seperator": 3, "unknown": 1, "padding": 0, "mask": 4}
    keys = {"model": "bert", "tokens": written, "token_type": types, "token_type_count": 2}
    keys |= {f"{name}_token_id": place for name, place in named.items()}
    keys = {"general.architecture": "bert", **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}
    ours = gguf_tokenizer(Parts(keys).write(tmp_path / "a.gguf"))
    reference = transformers.BertTokenizer(
        vocab={token: place for place, token in enumerate(vocabulary)}, do_lower_case=not capitals
    )
    assert ours.kind == "WordPiece"
    assert ours.assumed == {"do_lower_case": not capitals}, "which no key of the file says"
    said = tokenizer_of(read_parts(tmp_path / "a.gguf"), {"do_lower_case": capitals})
    assert (dict(said.assumed), said.encode("A").ids == said.encode("a").ids) == ({}, capitals)
    with pytest.raises(UsageError, match="has no setting 'strip_accents'"):
        tokenizer_of(read_parts(tmp_path / "a.gguf"), {"strip_accents": True})
    assert ours.mask_id == 4
    assert ours.end_ids == (3,)
    differ = [text for text in TEXTS[::3] if ours.encode(text).ids != reference(text)["input_ids"]]
    assert differ == []


def unigram_parts(**keys: Any) -> tuple[Parts, list[tuple[str, float]]]:
    library = Library(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator([text for text in TEXTS[:900] if text.isascii() and "<" not in text], trainer)
    learned = json.loads(library.to_str())["model"]["vocab"]
    vocabulary = [(piece, float(np.float32(score))) for piece, score in learned]
    said = {
        "model": "t5",
        "tokens": [piece for piece, _ in vocabulary],
        "scores": [score for _, score in vocabulary],
        "token_type": [3, 3, 2] + [1] * (len(vocabulary) - 3),
        "eos_token_id": 1,
        "unknown_token_id": 2,
        "padding_token_id": 0,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        **keys,
    }
    architecture = {"general.architecture": "t5"}
    return Parts(architecture | {f"tokenizer.ggml.{key}": value for key, value in said.items()}), vocabulary


def test_unigram_ids_are_those_of_transformers(tmp_path):
    parts, vocabulary = unigram_parts()
    ours = gguf_tokenizer(parts.write(tmp_path / "a.gguf"))
    reference = transformers.T5Tokenizer(vocab=vocabulary, extra_ids=0)
    assert ours.kind == "SentencePiece Unigram"
    texts = [text for text in TEXTS[::3] if "<pad>" not in text]
    assert [text for text in texts if ours.encode(text).ids != reference(text)["input_ids"]] == []
    unknown = ours.encode("the \ue123").tokens[-2]
    assert (unknown.id, unknown.data) == (2, "\ue123".encode())
    assert ours.decode(ours.encode("the cat  sat").ids) == "the cat sat"


def test_unigram_texts_are_normalised_by_the_table_of_the_file(tmp_path):
    """SentencePiece's compiled table: the size of a double array, its units, and texts that each end with a zero byte.

    From the root, unit 0, the three bytes of ﬁ lead from 256 to 512, 768 and 1,024.
    """
    units = [0] * 1280
    place = 256
    units[0] = place << 10
    for byte, following in zip("ﬁ".encode(), (512, 768, 1024), strict=True):
        place ^= byte
        units[place] = (place ^ following) << 10 | (following == 1024) << 8 | byte
        place = following
    units[place] = 1 << 31  # the text at byte 0
    table = struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + b"fi\0"
    parts, _ = unigram_parts(precompiled_charsmap=list(table))
    tokenizer = gguf_tokenizer(parts.write(tmp_path / "a.gguf"))
    assert tokenizer.encode("ﬁne").ids == tokenizer.encode("fine").ids


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
        ({"model": "rwkv"}, "the tokenizer 'rwkv' is not one that tinytf opens"),
        ({"model": ...}, "lacks tokenizer.ggml.model"),
        ({"pre": "unheard"}, "the pre-tokenizer 'unheard' is unknown"),
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
        ({"bos_token_id": ..., "add_bos_token": True}, "add_bos_token is true, but there is no bos_token_id"),
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
    assert "has 1,000,000 characters, and at most 512 are allowed" in error.message


def test_the_chat_templates_of_the_metadata_are_read_by_their_names(tmp_path):
    plain, tools = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", "with tools"
    parts = small_parts(vocab_size=500)
    parts.keys |= byte_level_keys(500) | {"tokenizer.chat_template": plain}
    path = parts.write(tmp_path / "a.gguf")
    asked = [{"role": "user", "content": "the cat"}]
    found = gguf_tokenizer(path).converse(Conversation(asked))
    assert found.ids == theirs(path).apply_chat_template(asked, return_dict=False)
    assert found.text == "<|im_start|>the cat<|endoftext|>"
    parts.keys |= {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": tools}
    both = gguf_tokenizer(parts.write(tmp_path / "b.gguf"))
    assert both.chat.templates == {"default": plain, "tool_use": tools}
    assert both.converse(Conversation(asked, [{}])).text == tools
    parts.keys["tokenizer.chat_template"] = 3
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template"):
        gguf_tokenizer(parts.write(tmp_path / "c.gguf"))
