"""Tokenizers of model directories: the ids and offsets of transformers for 2,000 hard strings, and refusals by name."""

import contextlib
import json
import logging
import os
import random
from pathlib import Path

import covering
import pytest
from directories import END, LAYOUTS, write
from hard_strings import COUNT, hard_strings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinytf.errors import CheckpointError, TokenizerError
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.registered import REGISTERED, UNCHANGED
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.tokenizer_classes import CLASSES

try:
    from piece_files import PIECE_LAYOUTS
except ImportError:  # there is no sentencepiece
    PIECE_LAYOUTS = {}
LAYOUTS = {**LAYOUTS, **PIECE_LAYOUTS}
SENTENCEPIECE = ("llama", "llama_legacy", "mistral", "metaspace", "gemma")
TEXTS = hard_strings()
OWN = "; the text has a start token of its own"


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    """Every layout, written once."""
    made = {}
    for name, layout in LAYOUTS.items():
        made[name] = tmp_path_factory.mktemp(name)
        layout(made[name])
    return made


READ = TEXTS if covering.everything else TEXTS[::4]


def disagreements(tokenizer: Tokenizer, directory: Path) -> list[str]:
    """The hard strings that transformers reads as other ids or other offsets."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(directory)
    assert reference.is_fast
    assert tokenizer.vocab_size == len(reference)
    theirs = reference(READ, return_offsets_mapping=True)
    wrong = []
    for text, ids, offsets in zip(READ, theirs["input_ids"], theirs["offset_mapping"], strict=True):
        encoding = tokenizer.encode(text)
        ours = [(token.start, token.end) for token in encoding.tokens]
        if encoding.ids != ids or ours != offsets or not all(0 <= a <= b <= len(text) for a, b in ours):
            wrong.append(text)
    return wrong


def test_the_hard_strings_are_two_thousand_and_the_same_each_time():
    assert len(TEXTS) == COUNT == 2_000
    assert hard_strings() == TEXTS
    assert len(set(TEXTS)) == COUNT


@pytest.mark.share(8)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ids_and_offsets_are_those_of_transformers(layout, directories):
    tokenizer = load_tokenizer_directory(directories[layout]).tokenizer
    assert disagreements(tokenizer, directories[layout]) == []


def test_every_kind_of_model_has_the_class_that_transformers_registers_for_it():
    """Where a folder declares another class, transformers decides by this table which of the two reads it."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    unchanged = {"MistralCommonBackend": UNCHANGED}  # without the mistral-common package
    theirs = {family: (name or "").removesuffix("Fast") for family, name in TOKENIZER_MAPPING_NAMES.items()}
    theirs = {family: unchanged.get(name, name) for family, name in theirs.items()}
    if not PIECE_LAYOUTS:  # transformers leaves these out without sentencepiece
        theirs |= {"marian": "MarianTokenizer", "m2m_100": "M2M100Tokenizer"}
    known = {family: name for family, name in theirs.items() if name in CLASSES or name == UNCHANGED}
    assert known == REGISTERED


def test_an_untidy_word_list_is_read_as_transformers_reads_it(directories, tmp_path):
    """Windows line ends, white space behind a word, a word twice, empty lines, a control that is no white space."""
    words = (directories["bert_uncased"] / "vocab.txt").read_text("utf-8")
    untidy = words.replace("\nthe\n", "\nthe \u3000\n").replace("\ncat\n", "\ncat\x1c\n") + "the\n\n\ncat\nlast"
    write(tmp_path, vocab__txt=untidy.replace("\n", "\r\n"), config={"model_type": "bert"})
    assert disagreements(load_tokenizer_directory(tmp_path).tokenizer, tmp_path) == []


@pytest.mark.real
@pytest.mark.skipif("TINYTF_REAL_WEIGHTS" not in os.environ, reason="TINYTF_REAL_WEIGHTS names no folder")
@pytest.mark.parametrize("without", ["", "tokenizer.json"])
def test_a_real_tokenizer_has_the_ids_and_offsets_of_transformers(without, tmp_path):
    """all-MiniLM's tokenizer.json cuts at 128 tokens and pads to them; a text of ours keeps its own length."""
    found = [path.parent for path in Path(os.environ["TINYTF_REAL_WEIGHTS"]).rglob("tokenizer.json")]
    assert found, "the folder has no tokenizer.json"
    for folder in found:
        copy = tmp_path / str(len(list(tmp_path.iterdir())))
        copy.mkdir()
        for file in folder.iterdir():
            if file.suffix in (".json", ".txt") and file.name != without:
                (copy / file.name).write_bytes(file.read_bytes())
        tokenizer = load_tokenizer_directory(copy).tokenizer
        assert disagreements(tokenizer, copy) == []
        assert len(tokenizer.encode("word " * 300).tokens) == 302
        assert len(tokenizer.encode("word").tokens) == 3


@pytest.mark.parametrize(
    ("layout", "kind", "note"),
    [
        ("plain_bytes", "byte-level BPE", ""),
        ("gpt2_files", "byte-level BPE", "from vocab.json and merges.txt"),
        ("gpt2_json", "byte-level BPE", "pre_tokenizer is GPT2Tokenizer's, not tokenizer.json's, as in transformers 5"),
        ("bert_uncased", "WordPiece", "from vocab.txt"),
        ("bert_json", "WordPiece", ""),
        (
            "deberta_v3",
            "SentencePiece Unigram",
            "normalizer and pre_tokenizer are DebertaV2Tokenizer's, not tokenizer.json's, as in transformers 5",
        ),
        (
            "xlnet",
            "SentencePiece Unigram",
            "normalizer and pre_tokenizer are XLNetTokenizer's, not tokenizer.json's, as in transformers 5",
        ),
        ("unigram_as_stands", "SentencePiece Unigram", ""),
        ("mistral", "SentencePiece BPE", ""),
        (
            "llama",
            "SentencePiece BPE",
            "normalizer and pre_tokenizer are LlamaTokenizer's, not tokenizer.json's, as in transformers 5",
        ),
        ("llama3_called_llama", "byte-level BPE", ""),
    ],
)
def test_kind_and_note_say_what_was_read(layout, kind, note, directories):
    opened = load_tokenizer_directory(directories[layout])
    assert (opened.tokenizer.kind, opened.note) == (kind, note)


@pytest.mark.parametrize(
    ("layout", "ends", "mask"),
    [
        ("qwen2", (902, 900), None),
        ("llama3", (901, 902), None),
        ("llama", (2,), None),
        ("opt_files", (2,), None),
        ("gpt2_files", (900,), None),
        ("roberta_files", (2,), 904),
        ("bert_uncased", (3,), 4),
        ("wordpiece_json", (3,), 4),
    ],
)
def test_end_ids_are_all_those_that_the_files_name(layout, ends, mask, directories):
    """generation_config.json over config.json over the tokenizer's own end token."""
    tokenizer = load_tokenizer_directory(directories[layout]).tokenizer
    assert (tokenizer.end_ids, tokenizer.end_id, tokenizer.mask_id) == (ends, ends[0], mask)


@pytest.mark.parametrize(
    ("layout", "text", "added"),
    [
        ("llama", "hello", "<s> added before"),
        ("llama", "", "<s> added before"),
        ("llama", "<s>hello</s>", "<s> added before" + OWN),
        ("llama3", "<|begin_of_text|>", "<|begin_of_text|> added before" + OWN),
        ("opt_files", "", "</s> added before, </s> added after"),
        ("opt_files", "</s></s>", "</s> added before, </s> added after" + OWN),
        ("roberta_files", "<s> a </s>", "<s> added before, </s> added after" + OWN),
        ("bert_uncased", "[CLS] a [SEP]", "[CLS] added before, [SEP] added after" + OWN),
        ("bert_uncased", "\x00", "[CLS] added before, [SEP] added after"),
        ("qwen2", "<|im_start|>user", "no start or end token added"),
        ("qwen2", "", "no start or end token added"),
        ("gpt2_files", END, "no start or end token added"),
    ],
)
def test_what_is_said_to_be_added_is_what_the_text_did_not_have(layout, text, added, directories):
    assert load_tokenizer_directory(directories[layout]).tokenizer.encode(text).added == added


def test_an_end_token_alone_is_added_after_an_empty_text(directories, tmp_path):
    for file in directories["gpt2_files"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write(tmp_path, tokenizer_config={"add_eos_token": True})
    tokenizer = load_tokenizer_directory(tmp_path).tokenizer
    assert tokenizer.encode("").added == f"{END} added after"
    assert tokenizer.encode("a", special=False).added == "no start or end token added"


@pytest.mark.share(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_special_token_in_the_text_is_one_token_that_covers_it(layout, directories):
    if layout == "split_specials":
        pytest.skip("this one reads them as text, as its settings ask")
    tokenizer = load_tokenizer_directory(directories[layout]).tokenizer
    for token_id in tokenizer.special_ids:
        name = tokenizer.library.id_to_token(token_id)
        own = [token for token in tokenizer.encode(name).tokens if token.start < token.end]
        assert [(token.id, token.special, token.start, token.end) for token in own] == [(token_id, True, 0, len(name))]


@pytest.mark.share(4)
@pytest.mark.parametrize("layout", SENTENCEPIECE)
def test_a_sentencepiece_token_is_its_own_bytes_and_a_low_line_is_a_space(layout, directories):
    """Joined, the tokens are the text; a space may stand before it, and one after each special token."""
    tokenizer = load_tokenizer_directory(directories[layout]).tokenizer
    for text in TEXTS:
        plain = not any(tokenizer.library.id_to_token(token_id) in text for token_id in tokenizer.special_ids)
        if plain and "<0x" not in text:
            data = b"".join(token.data for token in tokenizer.encode(text, special=False).tokens)
            assert data in {text.replace("▁", " ").encode(), b" " + text.replace("▁", " ").encode()}


def test_sentencepiece_pieces_are_shown_as_text_and_bytes(directories):
    tokenizer = load_tokenizer_directory(directories["llama"]).tokenizer
    ids = tokenizer.library.get_vocab()
    assert (tokenizer.piece_bytes(ids["<0xF0>"]), tokenizer.shown(ids["<0xF0>"])) == (b"\xf0", "\\xf0")
    assert (tokenizer.piece_bytes(ids["<0x0A>"]), tokenizer.shown(ids["<0x0A>"])) == (b"\n", "↵")
    assert (tokenizer.piece_bytes(ids["▁the"]), tokenizer.shown(ids["▁the"])) == (b" the", "·the")
    assert (tokenizer.piece_bytes(ids["</s>"]), tokenizer.shown(10_000)) == (b"</s>", "#10000")
    smile = tokenizer.encode("\U0001faea", special=False).tokens
    assert [token.data for token in smile] == [b" ", b"\xf0", b"\x9f", b"\xab", b"\xaa"]
    assert {(token.start, token.end) for token in smile} == {(0, 1)}


def test_an_unknown_word_is_the_text_that_it_covers(directories):
    token = load_tokenizer_directory(directories["bert_uncased"]).tokenizer.encode("ꙮ").tokens[1]
    assert (token.shown, token.data) == ("[UNK]", "ꙮ".encode())


def test_a_tokenizer_that_cuts_and_pads_does_neither_here(directories):
    tokenizer = load_tokenizer_directory(directories["cut_and_padded"]).tokenizer
    assert len(tokenizer.encode("1 2 3 4 5 6 7 8 9 10 11 12").tokens) > 8
    assert len(tokenizer.encode("1").tokens) == 1


START = {"SpecialToken": {"id": "<s>", "type_id": 0}}
NO_IDS = {"type": "TemplateProcessing", "single": [START], "pair": [START], "special_tokens": {}}
UNIGRAM = {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}}


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        (
            {},
            "there is no tokenizer in DIR: no tokenizer.json, no vocab.json with merges.txt, no vocab.txt, and no ",
            "--tokenizer names another place for it",
        ),
        ({"tokenizer__model": "x"}, "DIR/tokenizer.model is not a SentencePiece vocabulary, or is cut off", "compare"),
        ({"tiktoken__model": "x"}, "DIR/tiktoken.model is a tiktoken vocabulary, which tinytf does not read", "Auto"),
        ({"vocab": {"a": 0}}, "there is no merges.txt in DIR, and vocab.json needs it", ""),
        ({"merges__txt": "a b"}, "there is no vocab.json in DIR, and merges.txt needs it", ""),
        ({"tokenizer": UNIGRAM}, "DIR/tokenizer.json is a tokenizer of type Unigram, which tinytf does not", "tinytf"),
        ({"tokenizer__json": "{"}, "DIR/tokenizer.json is not JSON: ", ""),
        ({"tokenizer": []}, "DIR/tokenizer.json holds a list, not a JSON object", ""),
        ({"tokenizer": {}}, "DIR/tokenizer.json is not a tokenizer: it has no model", ""),
        ({"tokenizer": {"model": {"type": "BPE"}}}, "DIR/tokenizer.json is not a tokenizer: ", ""),
        (
            {"tokenizer": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}},
            "DIR/tokenizer.json is not a tokenizer: Token `b` out of vocabulary",
            "",
        ),
        (
            {"tokenizer": {"model": {"type": "Unigram", "vocab": [["a"]]}}, "config": {"model_type": "deberta-v2"}},
            "the vocabulary of a Unigram tokenizer is not a list of pieces and scores",
            "",
        ),
        (
            {"tokenizer": {"model": {"type": "BPE", "vocab": {}, "merges": []}}, "config": {"model_type": "bert"}},
            "DIR/tokenizer.json has a BPE model, and a BertTokenizer has WordPiece",
            "",
        ),
        ({"vocab": {"a": 0}, "merges__txt": "a b"}, "DIR/merges.txt: line 1 needs b, which is not in vocab.json", ""),
        ({"vocab": {"a": 0, "b": 1}, "merges__txt": "a b"}, "DIR/merges.txt: line 1 needs ab, which is not in ", ""),
        (
            {"vocab": {"a": 0}, "merges__txt": "#version\na"},
            "DIR/merges.txt: line 2 is not two pieces separated by a space",
            "",
        ),
        ({"vocab": {"a": "x"}, "merges__txt": ""}, "DIR/vocab.json: a has the invalid id 'x'", ""),
        ({"vocab": {"a": -1}, "merges__txt": ""}, "DIR/vocab.json: a has the invalid id -1", ""),
        ({"vocab__txt": ""}, "DIR/vocab.txt is empty", ""),
        (
            {"tokenizer": {"model": {"type": "BPE", "vocab": {}, "merges": []}, "post_processor": NO_IDS}},
            "DIR/tokenizer.json: the post_processor adds <s> without an id",
            "",
        ),
        ({"vocab__txt": "a", "config__json": "nul"}, "DIR/config.json is not JSON", ""),
        ({"vocab__txt": "a", "tokenizer_config": {"cls_token": 3}}, "DIR/tokenizer_config.json names a token that", ""),
        ({"vocab__txt": "a", "special_tokens_map": {"cls_token": {}}}, "DIR/special_tokens_map.json names a token", ""),
        ({"vocab__txt": "a", "added_tokens": {"b": "c"}}, "DIR/added_tokens.json: 'c' is not a token id", ""),
        (
            {"vocab__txt": "a", "generation_config": {"eos_token_id": "x"}},
            "DIR/generation_config.json: eos_token_id",
            "",
        ),
        (
            {"vocab__txt": "a", "config": {"model_type": "gpt2"}},
            "DIR has no tokenizer.json, and a GPT2Tokenizer cannot be read from vocab.txt",
            "",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_in_one_line(files, message, hint, tmp_path):
    write(tmp_path, **files)
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer_directory(tmp_path)
    assert caught.value.message.replace(str(tmp_path), "DIR").startswith(message)
    assert caught.value.hint.startswith(hint)
    assert bool(caught.value.hint) == bool(hint)
    assert "\n" not in caught.value.message


def test_a_vocabulary_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\n")
    with pytest.raises(CheckpointError, match=r"vocab\.txt is not UTF-8 text: invalid start byte at byte 6"):
        load_tokenizer_directory(tmp_path)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json"):
        load_tokenizer_directory(tmp_path)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _damaged(data: object, dice: random.Random, junk_value: object) -> object:
    """``data`` with one of its values, at any depth, replaced or taken out."""
    if isinstance(data, dict) and data and dice.random() < 0.9:
        key = dice.choice(list(data))
        kept = {name: value for name, value in data.items() if name != key}
        return kept if dice.random() < 0.2 else {**kept, key: _damaged(data[key], dice, junk_value)}
    if isinstance(data, list) and data and dice.random() < 0.8:
        place = dice.randrange(len(data))
        return [*data[:place], _damaged(data[place], dice, junk_value), *data[place + 1 :]]
    return junk_value


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(layout=st.sampled_from(sorted(LAYOUTS)), dice=st.randoms(use_true_random=False), value=junk)
@pytest.mark.slow
def test_damaged_json_opens_or_is_a_checkpoint_error(layout, dice, value, directories, tmp_path_factory):
    where = tmp_path_factory.mktemp("damaged")
    for file in directories[layout].iterdir():
        (where / file.name).write_bytes(file.read_bytes())
    file = dice.choice(sorted(where.glob("*.json")) or [where / "config.json"])
    data = json.loads(file.read_text("utf-8")) if file.exists() else {}
    file.write_text(json.dumps(_damaged(data, dice, value)), "utf-8")
    _opens_or_is_refused(where)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(layout=st.sampled_from(sorted(LAYOUTS)), dice=st.randoms(use_true_random=False))
def test_cut_or_garbled_files_open_or_are_a_checkpoint_error(layout, dice, directories, tmp_path_factory):
    where = tmp_path_factory.mktemp("garbled")
    for file in directories[layout].iterdir():
        (where / file.name).write_bytes(file.read_bytes())
    file = dice.choice(sorted(where.iterdir()))
    content = bytearray(file.read_bytes())
    if dice.random() < 0.5:
        del content[dice.randrange(len(content)) :]
    else:
        for _ in range(3):
            content[dice.randrange(len(content))] = dice.randrange(256)
    file.write_bytes(content)
    _opens_or_is_refused(where)


def _opens_or_is_refused(where: Path) -> None:
    try:
        tokenizer = load_tokenizer_directory(where).tokenizer
    except CheckpointError as error:
        said = [error.message, error.hint]
    else:
        said = [tokenizer.kind]
        with contextlib.suppress(TokenizerError):
            said += [token.shown for token in tokenizer.encode("the é 🙂 [MASK]<s>").tokens]
    assert not any("\n" in line for line in said)


def test_a_class_that_rebuilds_is_not_the_file_as_it_stands(directories, monkeypatch):
    """The comparison can tell the difference: without the table of classes it fails."""
    monkeypatch.setattr("tinytf.text.huggingface.choose_class", lambda *_: None)
    for layout in ("llama", "gpt2_json", "gpt_neox"):
        tokenizer = load_tokenizer_directory(directories[layout]).tokenizer
        assert len(disagreements(tokenizer, directories[layout])) > len(READ) / 40
