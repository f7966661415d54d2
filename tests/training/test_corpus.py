"""A corpus as a stream gives what the same text gives in memory, and its tokens on disk are never stale or half."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import paragraphs, sentence_stream, split_held_out, token_stream
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers

from tinytf.errors import TokenizerError, UsageError
from tinytf.text import stream
from tinytf.text.corpus import Corpus, Reading, find_files
from tinytf.text.stream import cut_anywhere, cut_between_words, cut_nowhere
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import TRAINERS, train_bpe, train_characters, train_wordpiece
from tinytf.training.data import cache
from tinytf.training.data import tokens as tokens_module
from tinytf.training.data.examples import NextToken
from tinytf.training.data.masked import Sentences, sentence_ends, sentences_of
from tinytf.training.data.setup import prepare
from tinytf.training.data.tokens import tokenise
from tinytf.training.recipe import Recipe

STORY = "\n\n".join(
    f"The {who} sat on the {what}, and {who} said: it's a {how} day.\n{who.upper()} 1{i} café!"
    for i, who in enumerate(("cat", "dog", "hen", "fox", "kæft"))
    for what in ("mat", "log")
    for how in ("fine", "wet")
)
BPE = train_bpe([STORY], 300)

# Texts that are mostly about blank lines, with letters of one to four bytes and what str.splitlines would cut at.
pieces = st.sampled_from(
    ["a", "b c", "word", " ", "  ", "\t", "\n", "\n\n", "\n \t\n", "\r\n", "\r\n\r\n", "\r", "é", "ß", "語", "🙂",
     "\x0b", "\x85", "\u2028", "\ufeff", "'s", "a b c d e f g"]
)  # fmt: skip
odd_texts = st.lists(pieces, max_size=40).map("".join)
lists_of_texts = st.lists(odd_texts, min_size=1, max_size=4).filter(lambda texts: any(text.strip() for text in texts))
buffers = st.integers(1, 20)
shares = st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.99])


def files_of(folder: Path, texts: list[str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode("utf-8"))
    return paths


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("corpus")


class Counting:
    """A tokenizers library that counts how often it encodes a batch."""

    def __init__(self, library: LibraryTokenizer, fail_at: int | None = None) -> None:
        self.library, self.fail_at, self.batches = library, fail_at, 0

    def __getattr__(self, name: str):
        return getattr(self.library, name)

    def encode_batch_fast(self, *arguments, **options):
        if self.batches == self.fail_at:
            raise KeyboardInterrupt
        self.batches += 1
        return self.library.encode_batch_fast(*arguments, **options)


def counting(fail_at: int | None = None) -> Tokenizer:
    tokenizer = Tokenizer(BPE.library)
    tokenizer.library = Counting(BPE.library, fail_at)
    return tokenizer


# Documents


@settings(max_examples=150, deadline=None)
@given(texts=lists_of_texts, buffer=buffers)
def test_documents_are_the_paragraphs_of_the_whole_text_whatever_the_buffer(scratch, texts, buffer):
    corpus = find_files(files_of(scratch / "documents", texts), buffer=buffer)
    documents = corpus.documents()
    assert list(documents) == [document for text in texts for document in paragraphs(text)]
    assert list(documents) == list(documents), "a second pass gives the same"
    assert len(documents) == len(list(documents))


@settings(max_examples=150, deadline=None)
@given(texts=lists_of_texts, buffer=buffers, share=shares)
def test_the_same_documents_are_held_out_as_in_memory(scratch, texts, buffer, share):
    corpus = find_files(files_of(scratch / "split", texts), buffer=buffer)
    train, kept = corpus.split(share)
    assert (list(train), list(kept)) == split_held_out([d for text in texts for d in paragraphs(text)], share)


@settings(max_examples=100, deadline=None)
@given(texts=lists_of_texts, buffer=buffers, share=shares)
def test_whole_files_are_split_as_a_run_of_characters_splits_them(scratch, texts, buffer, share):
    documents = [text for text in texts if text.strip()]
    train, kept = find_files(files_of(scratch / "whole", texts), buffer=buffer).whole_files().split(share)
    assert (list(train), list(kept)) == split_held_out(documents, share)


@settings(max_examples=100, deadline=None)
@given(texts=lists_of_texts, buffer=buffers, cut=st.sampled_from([cut_anywhere, cut_between_words, cut_nowhere]))
def test_pieces_of_documents_put_together_are_the_documents(scratch, texts, buffer, cut):
    documents = find_files(files_of(scratch / "pieces", texts), buffer=buffer).documents()
    found = [""]
    for text, ends in documents.pieces(cut):
        found[-1] += text
        found += [""] if ends else []
    assert found == [*documents, ""]


def test_a_text_from_standard_input_is_a_corpus_too():
    corpus = find_files("one\n\ntwo\r\n\r\nstill two\n")
    assert list(corpus.documents()) == ["one", "two", "still two\n"]
    with pytest.raises(UsageError, match=r"lone surrogate \(U\+D800\) at character 4"):
        find_files("some\ud800")


def test_folders_give_their_texts_sorted_and_of_two_kinds(tmp_path):
    for name in ("b.txt", "a/z.md", "a/c.txt", "notes.rst", ".hidden.txt", "d.txt/inside.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, "utf-8")
    corpus = find_files([tmp_path, tmp_path / "notes.rst"])
    assert list(corpus.documents()) == [".hidden.txt", "a/c.txt", "a/z.md", "b.txt", "d.txt/inside.txt", "notes.rst"]


# What is no corpus


def refused(paths, **options) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        find_files(paths, **options)
    return caught.value.message, caught.value.hint


def test_what_is_not_there_is_named(tmp_path):
    message = f"cannot read {tmp_path / 'none.txt'}: No such file or directory"
    assert refused([tmp_path / "none.txt"]) == (message, "is its name right?")


def test_a_folder_without_text_is_named(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    message = f"the folder {tmp_path} holds no .txt or .md file"
    assert refused([tmp_path]) == (message, "name files of another kind one by one")


@pytest.mark.parametrize("text", ["", " \n\n\t\n", "\n"])
def test_a_corpus_without_a_word_is_refused(tmp_path, text):
    assert refused(files_of(tmp_path, [text]))[0] == "the corpus has no word in it"
    assert refused(text)[0] == "the corpus has no word in it"


@pytest.mark.parametrize("buffer", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"abc\0def", "is binary: it has a NUL byte at byte 3"),
        (b"x" * 8191 + b"\0", "is binary: it has a NUL byte at byte 8,191"),
        ("é".encode() * 9 + b"\xff!", "is not UTF-8 text: invalid start byte at byte 18"),
        ("語".encode() * 9 + b"\xe8\xaa!", "is not UTF-8 text: invalid continuation byte at byte 27"),
        ("語".encode() * 9 + b"\xe8\xaa", "is not UTF-8 text: unexpected end of data at byte 27"),
    ],
)
def test_bytes_that_are_no_text_are_named_with_their_place(tmp_path, data, said, buffer):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    message, hint = refused([path], buffer=buffer)
    assert (message, bool(hint)) == (f"{path} {said}", True)


def test_a_nul_byte_further_on_is_a_character_like_others(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 8192 + b"\0")
    assert list(find_files([tmp_path]).documents()) == ["x" * 8192 + "\0"]


def test_an_unreadable_file_in_a_folder_is_named_or_skipped(tmp_path):
    (tmp_path / "a.txt").write_text("good", "utf-8")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "c.txt").write_bytes(b"\xff")
    assert refused([tmp_path])[0] == f"cannot read {tmp_path / 'b.txt'}: No such file or directory"
    corpus = find_files([tmp_path], skip_unreadable=True)
    assert list(corpus.documents()) == ["good"]
    assert [(skipped.path.name, skipped.why.split(": ")[-1]) for skipped in corpus.skipped] == [
        ("b.txt", "No such file or directory"),
        ("c.txt", "invalid start byte at byte 0"),
    ]
    assert "c.txt is not UTF-8" in refused([tmp_path / "c.txt"], skip_unreadable=True)[0], "what is named is wanted"


def test_an_unreadable_folder_is_named_or_skipped(tmp_path, monkeypatch):
    files_of(tmp_path, ["good"])
    walk, denied = os.walk, PermissionError(13, "Permission denied", str(tmp_path / "locked"))

    def walked(folder, onerror):
        onerror(denied)
        return walk(folder)

    monkeypatch.setattr("os.walk", walked)
    assert refused([tmp_path])[0] == f"cannot read the folder {tmp_path / 'locked'}: Permission denied"
    assert [skipped.path for skipped in find_files([tmp_path], skip_unreadable=True).skipped] == [tmp_path / "locked"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are of POSIX")
def test_a_named_pipe_is_read_once_and_gone_through_often(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"printf 'a\\n\\nb' > '{tmp_path / 'pipe'}'"]):
        corpus = find_files([tmp_path / "pipe"])
    assert list(corpus.documents()) == list(corpus.documents()) == ["a", "b"]


def test_a_file_that_changes_after_it_was_found_is_refused(tmp_path):
    (path,) = files_of(tmp_path, [STORY])
    corpus = find_files([path])
    path.write_text(STORY + "more", "utf-8")
    with pytest.raises(UsageError, match=r"0\.txt changed while it was being read"):
        list(corpus.documents())


# Tokenizers from a stream


@pytest.mark.parametrize("kind", ["char", "bpe", "wordpiece"])
def test_a_tokenizer_from_a_stream_is_the_one_from_a_list(tmp_path, kind):
    texts = [STORY, STORY[:400].replace("\n\n", "\n"), "  "]
    corpus = find_files(files_of(tmp_path, texts), buffer=100)
    if kind == "char":
        corpus = corpus.whole_files()
        train = [text for text in texts if text.strip()]
        stream = corpus.documents().texts(cut_anywhere)
    else:
        train, _ = split_held_out([document for text in texts for document in paragraphs(text)], 0.2)
        stream = corpus.split(0.2)[0].texts()
    assert max(map(len, stream)) < 300
    assert TRAINERS[kind](stream, 280).to_json() == TRAINERS[kind](train, 280).to_json()
    assert TRAINERS[kind](iter(train), 280).to_json() == TRAINERS[kind](train, 280).to_json()


# Tokens


@pytest.mark.parametrize("tokenizer", [BPE, train_wordpiece([STORY], 150)], ids=["bpe", "wordpiece"])
@settings(max_examples=60, deadline=None)
@given(texts=lists_of_texts, buffer=buffers, share=shares, batch=st.integers(1, 50))
def test_tokens_are_those_of_the_text_in_memory(scratch, tokenizer, texts, buffer, share, batch):
    corpus = find_files(files_of(scratch / "texts", texts), buffer=buffer)
    found = tokenise(corpus, tokenizer, scratch / "cache", held_out=share, batch=batch)
    train, kept = split_held_out([document for text in texts for document in paragraphs(text)], share)
    assert found.train.tolist() == token_stream(train, tokenizer).tolist()
    assert found.held_out.tolist() == (token_stream(kept, tokenizer).tolist() if kept else [])
    index = json.loads((scratch / "cache" / "index.json").read_text("utf-8"))
    assert (index["train"]["documents"], index["held_out"]["documents"]) == (len(train), len(kept))


@settings(max_examples=60, deadline=None)
@given(texts=lists_of_texts, buffer=buffers, share=shares, batch=st.integers(1, 50))
def test_sentences_are_those_of_the_text_in_memory(scratch, texts, buffer, share, batch):
    tokenizer = train_wordpiece([STORY], 150)
    corpus = find_files(files_of(scratch / "texts", [f"{text} He said. " * 2 for text in texts]), buffer=buffer)
    found = tokenise(corpus, tokenizer, scratch / "sentences", held_out=share, sentences=True, batch=batch)
    train, kept = (list(documents) for documents in corpus.split(share))
    assert found.train.tolist() == sentence_stream(train, tokenizer).tolist()
    assert found.held_out.tolist() == sentence_stream(kept, tokenizer).tolist()
    held = Sentences(found.train, *sentence_ends(tokenizer))
    spoken = [(text, last) for text, last in sentences_of(train)]
    assert [held[number] for number in range(len(held))] == [
        tokenizer.library.encode(text, add_special_tokens=False).ids for text, _ in spoken
    ]
    assert held.ends_document.tolist() == [last for _, last in spoken]


def test_a_character_that_the_vocabulary_lacks_is_the_library_s_to_judge(tmp_path):
    tokenizer = train_characters(["abc"])
    with pytest.raises(TokenizerError, match="cannot take this text"):
        tokenise(find_files("abcd"), tokenizer, tmp_path, held_out=0.0)


@settings(max_examples=40, deadline=None)
@given(texts=lists_of_texts, buffer=buffers, share=shares)
def test_tokens_of_characters_are_those_of_a_prepared_run(scratch, texts, buffer, share):
    model = {"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}
    recipe = Recipe(model=model, tokenizer="char", block=2, batch=4, held_out=share)
    corpus = find_files(files_of(scratch / "texts", texts), buffer=buffer).whole_files()
    tokenizer = train_characters(corpus.documents().texts(cut_anywhere))
    found = tokenise(corpus, tokenizer, scratch / "characters", held_out=share)
    if len(found.train) < 3:
        return
    documents = [text for text in texts if text.strip()]
    train, kept = split_held_out(documents, share)
    assert found.train.tolist() == token_stream(train, tokenizer).tolist()
    assert found.held_out.tolist() == (token_stream(kept, tokenizer).tolist() if kept else [])
    prepared = prepare(find_files(files_of(scratch / "texts", texts)), recipe, scratch / "prepared")
    assert prepared.tokenizer.to_json() == tokenizer.to_json()
    assert prepared.examples.train.tolist() == found.train.tolist()


def test_a_document_longer_than_the_buffer_is_encoded_in_pieces_to_the_same_tokens(tmp_path):
    text = STORY.replace("\n\n", " \r\n") * 3
    corpus = find_files(files_of(tmp_path, [text]), buffer=64)
    assert len(corpus.documents()) == 1
    assert len(list(corpus.documents().texts())) > 20
    tokenizer = counting()
    found = tokenise(corpus, tokenizer, tmp_path / "cache", held_out=0.0, batch=1)
    assert tokenizer.library.batches > 20
    assert found.train.tolist() == token_stream([text], BPE).tolist()


def test_a_tokenizer_that_looks_beyond_words_gets_whole_documents(tmp_path):
    library = LibraryTokenizer(models.BPE.from_file(*_merges(tmp_path)))
    assert tokens_module._cut(Tokenizer(library)) is cut_nowhere
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert tokens_module._cut(Tokenizer(library)) is cut_nowhere
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert tokens_module._cut(Tokenizer(library)) is cut_between_words
    library.add_tokens(["big cat"])
    assert tokens_module._cut(Tokenizer(library)) is cut_nowhere
    assert tokens_module._cut(train_characters("ab")) is cut_anywhere


def _merges(folder: Path) -> tuple[str, str]:
    return tuple(BPE.library.model.save(str(folder)))


def test_the_type_is_the_smallest_that_holds_every_id(tmp_path):
    corpus = find_files("a b")
    for size, dtype in ((65_536, "<u2"), (65_537, "<u4")):
        words = {"a": 0, "b": size - 1} | {f"w{number}": number for number in range(1, size - 1)}
        library = LibraryTokenizer(models.WordLevel(words, unk_token=""))
        library.pre_tokenizer = pre_tokenizers.Whitespace()
        found = tokenise(corpus, Tokenizer(library), tmp_path / str(size), held_out=0.0)
        assert found.train.dtype == np.dtype(dtype)
        assert found.train.tolist() == [0, size - 1]
        data = (tmp_path / str(size) / "train.bin").read_bytes()
        assert data == b"".join(number.to_bytes(found.train.itemsize, "little") for number in (0, size - 1))


def test_mapped_tokens_train_as_those_in_memory_do(tmp_path, monkeypatch):
    corpus = find_files(files_of(tmp_path, [STORY]))
    found = tokenise(corpus, BPE, tmp_path / "cache", held_out=0.2)
    streams = [token_stream(documents, BPE) for documents in split_held_out(paragraphs(STORY), 0.2)]
    settings = (Recipe(block=16, batch=8, seed=3, repeats=0.3, document_starts=0.5), BPE.vocab_size, BPE.end_id)
    in_memory = NextToken(*streams, *settings)
    monkeypatch.setattr("tinytf.training.data.examples._CHUNK", 7)
    mapped = NextToken(found.train, found.held_out, *settings)
    assert len(mapped.document_starts) > 5
    assert mapped.document_starts.tolist() == in_memory.document_starts.tolist()
    both = [([*map(one.batch, range(5)), *one.held_out()]) for one in (mapped, in_memory)]
    for one, other in zip(*both, strict=True):
        assert one.ids.dtype == one.targets.dtype == torch.int64
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.targets, other.targets)
    with pytest.raises(ValueError, match="read-only"):
        found.train[0] = 1


def test_what_the_tokenizer_cannot_take_is_said(tmp_path):
    with pytest.raises(TokenizerError, match="the tokenizer cannot take this text"):
        tokenise(find_files("abcd"), train_characters(["abc"]), tmp_path / "cache", held_out=0.0)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match=r"cannot write .*cache: File exists"):
        tokenise(find_files("ab"), BPE, tmp_path / "cache", held_out=0.1)


def test_how_much_of_all_files_is_read_is_told_from_the_first_to_the_last_byte(tmp_path):
    (tmp_path / "a.txt").write_text("The cat sat.\n\n" * 40, "utf-8")
    rows = [json.dumps({"text": f"row {number}"}) for number in range(50)]
    (tmp_path / "b.jsonl").write_text("\n".join(rows), "utf-8")
    (tmp_path / "c.md").write_text("At the end.", "utf-8")
    heard = []
    find_files([tmp_path], Reading(field="text"), buffer=64, on_read=lambda *one: heard.append(one))
    sizes = [(tmp_path / name).stat().st_size for name in ("a.txt", "b.jsonl", "c.md")]
    done = [one for one, _ in heard]
    assert {of for _, of in heard} == {sum(sizes)}
    assert done == sorted(done)
    assert done[:2] == [64, 128]
    assert done[-1] == sum(sizes)
    assert any(sizes[0] < one < sizes[0] + sizes[1] for one in done)  # while the rows are parsed


# The cache


def cached(corpus: Corpus, folder: Path, share: float = 0.2) -> bool:
    """Whether the folder served; and in any case, the tokens are right."""
    tokenizer = counting()
    found = tokenise(corpus, tokenizer, folder, held_out=share)
    assert found.reused == (tokenizer.library.batches == 0)
    assert found.train.tolist() == token_stream(list(corpus.split(share)[0]), BPE).tolist()
    assert found.held_out.tolist() == token_stream(list(corpus.split(share)[1]), BPE).tolist()
    assert sorted(path.name for path in folder.iterdir()) == ["held_out.bin", "index.json", "train.bin"]
    return found.reused


def test_the_same_inputs_are_tokenised_once(tmp_path):
    one, other = (files_of(tmp_path / name, [STORY, "Two.\n\nMore."]) for name in ("here", "there"))
    assert not cached(find_files(one), tmp_path / "cache")
    assert cached(find_files(one), tmp_path / "cache")
    assert cached(find_files(other), tmp_path / "cache"), "the bytes count, not where they lie"


def test_whatever_changes_is_tokenised_again(tmp_path):
    paths = files_of(tmp_path / "texts", [STORY, "Two.\n\nMore."])
    folder = tmp_path / "cache"
    corpus = find_files(paths)
    steps = [
        (corpus, 0.2),
        (find_files(paths[::-1]), 0.2),
        (corpus, 0.1),
        (corpus.whole_files(), 0.1),
        (find_files(paths[:1]), 0.1),
        (find_files([*paths, paths[0]]), 0.1),
    ]
    for step in steps:
        assert not cached(step[0], folder, step[1])
        assert cached(step[0], folder, step[1])
    before = paths[1].stat()
    paths[1].write_bytes(b"Two.\n\nMare.")  # the same length
    changed = find_files(paths)
    assert changed.files[1].size == before.st_size
    assert not cached(changed, folder, 0.2)
    other = tokenise(changed, train_bpe([STORY], 299), folder, held_out=0.2)
    assert not other.reused
    without_end = Tokenizer(BPE.library, ends=[BPE.library.token_to_id("!")])
    assert not tokenise(changed, without_end, folder, held_out=0.2).reused


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train.bin", _shorten),
        ("train.bin", _flip),
        ("train.bin", Path.unlink),
        ("held_out.bin", _shorten),
        ("held_out.bin", Path.unlink),
        ("index.json", _shorten),
        ("index.json", Path.unlink),
        ("index.json", lambda path: path.write_bytes(b"[]")),
        ("index.json", lambda path: path.write_bytes(b"\xff")),
        ("index.json", lambda path: _change(path, lambda index: index.pop("train"))),
        ("index.json", lambda path: _change(path, lambda index: index.update(train=3))),
        ("index.json", lambda path: _change(path, lambda index: index["train"].update(tokens="many"))),
        ("index.json", lambda path: _change(path, lambda index: index["train"].update(tokens=5))),
        ("index.json", lambda path: _change(path, lambda index: index["train"].pop("crc32"))),
        ("index.json", lambda path: _change(path, lambda index: index.update(format=0))),
        ("index.json", lambda path: _change(path, lambda index: index.update(dtype="<u4"))),
    ],
)
def test_a_damaged_cache_is_built_anew(tmp_path, name, damage):
    corpus = find_files(STORY)
    assert not cached(corpus, tmp_path / "cache")
    damage(tmp_path / "cache" / name)
    assert not cached(corpus, tmp_path / "cache")
    assert cached(corpus, tmp_path / "cache")


def _change(path: Path, change) -> None:
    index = json.loads(path.read_text("utf-8"))
    change(index)
    path.write_text(json.dumps(index), "utf-8")


@pytest.mark.parametrize("fail_at", range(4))
def test_a_cache_left_in_the_middle_is_never_taken_for_whole(tmp_path, fail_at):
    """Stopped while another corpus is written over a good cache: neither of the two may be found there."""
    first, second = find_files(STORY), find_files(STORY.replace("cat", "hat"), buffer=64)
    folder = tmp_path / "cache"
    assert not cached(first, folder)
    with pytest.raises(KeyboardInterrupt):
        tokenise(second, counting(fail_at), folder, held_out=0.2, batch=len(STORY) // 4)
    (folder / ".train.bin.123.part").write_bytes(b"of a process that was killed")
    assert not cached(first, folder)


# Memory

PEAK = """
import sys, tracemalloc
from pathlib import Path
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.corpus import find_files
from tinytf.training.data.tokens import tokenise
tokenizer = Tokenizer.load(Path(sys.argv[1]))
tracemalloc.start()
corpus = find_files([Path(sys.argv[2])], buffer=1 << 14)
tokenise(corpus, tokenizer, Path(sys.argv[3]), held_out=0.05, batch=1 << 14)
print(tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "separator",
    [pytest.param("\n\n", marks=pytest.mark.exhaustive, id="paragraphs"), pytest.param("\r\n\r\n", id="one document")],
)
def test_a_large_file_is_never_in_memory(tmp_path, separator):
    text = (STORY + "\n\n").replace("\n\n", separator)
    path = tmp_path / "large.txt"
    path.write_bytes(text.encode("utf-8") * (2_000_000 // len(text)))
    (tmp_path / "tokenizer.json").write_text(BPE.to_json(), "utf-8")
    script = [sys.executable, "-c", PEAK, str(tmp_path / "tokenizer.json"), str(path), str(tmp_path / "cache")]
    done = subprocess.run(script, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert int(done.stdout) < path.stat().st_size / 2


def test_a_device_or_a_pipe_without_an_end_does_not_fill_the_memory(monkeypatch) -> None:
    monkeypatch.setattr(stream, "MOST_IN_MEMORY", 2**20)
    said = "cannot read /dev/zero: it is not a regular file and has more than 1 MiB; save it to one"
    with pytest.raises(UsageError, match=said):
        find_files([Path("/dev/zero")])
    endless = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    assert endless.stdout is not None
    with endless, endless.stdout, pytest.raises(UsageError, match="has more than 1 MiB"):
        find_files([Path(f"/dev/fd/{endless.stdout.fileno()}")])


# The cache


def test_a_large_text_is_tokenised_once_for_all_runs_until_anything_differs(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", 1)
    heard = []
    said = {"held_out": 0.2, "on_progress": lambda *stage: heard.append(stage)}
    first = tokenise(find_files(STORY), BPE, tmp_path / "a", **said)
    assert not first.reused
    assert heard[-1] == ("characters to tokens", heard[-1][2], heard[-1][2])
    heard.clear()
    again = tokenise(find_files(STORY), BPE, tmp_path / "b", **said)
    assert again.reused
    assert heard == []
    assert again.train.tolist() == first.train.tolist()
    assert again.held_out.tolist() == first.held_out.tolist()
    for number, (text, share) in enumerate([(f"{STORY}!", 0.2), (STORY, 0.3)]):
        assert not tokenise(find_files(text), BPE, tmp_path / str(number), **{**said, "held_out": share}).reused
    kept = {((one / "train.bin").read_bytes(), (one / "held_out.bin").read_bytes()): one for one in
            (tmp_path / "cache" / cache.FOLDER).iterdir() if one.is_dir()}  # fmt: skip
    damaged = kept[first.train.tobytes(), first.held_out.tobytes()] / "train.bin"
    damaged.unlink()
    damaged.write_bytes(first.train.tobytes()[::-1])
    assert not tokenise(find_files(STORY), BPE, tmp_path / "c", **said).reused
    assert tokenise(find_files(STORY), BPE, tmp_path / "d", **said).train.tolist() == first.train.tolist()


def test_the_cache_keeps_what_was_used_last_and_takes_no_more_than_its_room(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 2500)
    for name in ("a", "b", "a", "c"):
        with cache.cached_entry(name * 64, cache.MIN_TEXT_BYTES) as folder:
            (folder / "train.bin").write_bytes(bytes(1000))
        os.utime(folder, (time := len(list(tmp_path.rglob("*"))) + 10 * (name == "a"), time))
    with cache.cached_entry("d", cache.MIN_TEXT_BYTES - 1) as none:
        assert none is None
    entries = {one.name for one in (tmp_path / "cache" / cache.FOLDER).iterdir() if one.is_dir()}
    assert entries == {"a" * 64, "c" * 64}


def test_folders_that_tinytf_did_not_make_are_never_counted_nor_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TINYTF_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 10)
    with cache.cached_entry("a" * 64, cache.MIN_TEXT_BYTES):
        pass
    root = tmp_path / cache.FOLDER
    others = [tmp_path / "Photos", tmp_path / "Thesis", root / "Backup", root / ("b" * 64), tmp_path / ("c" * 64)]
    for folder in others:
        folder.mkdir()
        (folder / "train.bin").write_bytes(bytes(1000))
        (folder / "thesis.tex").write_bytes(bytes(1000))
    (root / ("d" * 64)).symlink_to(tmp_path / "Photos")
    (tmp_path / "Photos" / cache.MARK).touch()
    with cache.cached_entry("e" * 64, cache.MIN_TEXT_BYTES) as entry:
        (entry / "train.bin").write_bytes(bytes(1000))
        (entry / "mine.txt").write_bytes(bytes(1000))
    with cache.cached_entry("f" * 64, cache.MIN_TEXT_BYTES):
        pass
    assert all((folder / name).stat().st_size == 1000 for folder in others for name in ("train.bin", "thesis.tex"))
    assert not (root / ("a" * 64)).exists()
    assert [file.name for file in entry.iterdir()] == ["mine.txt"]  # what is not ours stays, and so does its folder


@pytest.mark.parametrize("tag", [None, b"Signature: 8a477f597d28d172789f06886806bc55\n# of another program\n"])
def test_a_folder_without_our_mark_is_no_cache(tmp_path, monkeypatch, tag):
    monkeypatch.setenv("TINYTF_CACHE", str(tmp_path))
    (tmp_path / cache.FOLDER).mkdir()
    (tmp_path / cache.FOLDER / ("mine" if tag is None else cache.TAG)).write_bytes(tag or b"")
    with cache.cached_entry("a" * 64, cache.MIN_TEXT_BYTES) as entry:
        assert entry is None
    assert len(list((tmp_path / cache.FOLDER).iterdir())) == 1


def test_a_tokenizer_is_made_once_and_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", 1)
    recipe = Recipe(model={"n_layers": 1}, block=8)
    plain = prepare(find_files(STORY), recipe, tmp_path / "plain").tokenizer.to_json()
    monkeypatch.setenv("TINYTF_CACHE", str(tmp_path / "cache"))
    made = prepare(find_files(STORY), recipe, tmp_path / "first").tokenizer
    monkeypatch.setattr("tinytf.training.data.setup.TRAINERS", {})
    assert made.to_json() == prepare(find_files(STORY), recipe, tmp_path / "second").tokenizer.to_json() == plain
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYTF_CACHE", str(tmp_path / "file"))
    assert not tokenise(find_files(STORY), made, tmp_path / "third", held_out=0.2).reused


LAYOUTS = {
    "no blank line": ["one two three four. " * 60],
    "a heading and the rest": ["Heading\n\n" + "one two three four. " * 60],
    "the rest and a last line": ["one two three four. " * 60 + "\n\nTHE END"],
    "a few long paragraphs": ["\n\n".join(["one two three four. " * 40] * 3)],
    "many paragraphs": ["\n\n".join(["one two three four."] * 60)],
    "a small file and a large one": ["short", "one two three four. " * 60],
    "a large file and a small one": ["one two three four. " * 60, "short"],
}


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("document", ["paragraph", "line", "file"])
@pytest.mark.parametrize("texts", LAYOUTS.values(), ids=LAYOUTS)
def test_about_the_share_that_was_asked_for_is_held_out_however_a_text_is_laid_out(texts, document, share, tmp_path):
    corpus = find_files(files_of(tmp_path, texts), Reading(document), buffer=64)
    train, kept = corpus.split(share)
    sizes = [sum(map(len, documents)) for documents in (train, kept)]
    assert sum(sizes) == sum(map(len, corpus.documents())), "nothing is lost"
    assert share / 2 <= sizes[1] / sum(sizes) <= 2 * share
    assert (len(list(train)), len(list(kept))) == (len(train), len(kept))
    both = "".join(train) + "".join(kept)
    assert both == "".join(corpus.documents())
