"""Damaged and hostile GGUF files: always one clear error, soon, and without the memory that they claim to need."""

import os
import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import Kind, Parts, sentencepiece_parts, small_parts

from tinytf.checkpoints.gguf import gguf_tokenizer, read_gguf
from tinytf.checkpoints.gguf.weights import GgufWeights
from tinytf.errors import CheckpointError

HUGE = (0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)


def refused(path: Path) -> str:
    """The one line that every way to open the file fails with."""
    said = set()
    for opened in (read_gguf, gguf_tokenizer):
        with pytest.raises(CheckpointError) as caught:
            opened(path)
        said.add(caught.value.message)
    assert len(said) == 1
    (message,) = said
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))
    return message


def entry(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def tensor(name: str = "x", sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def header(
    *entries: bytes, tensors: tuple[bytes, ...] = (), data: int = 64, counts=None, start=b"GGUF\3\0\0\0"
) -> bytes:
    n_tensors, n_entries = counts or (len(tensors), len(entries))
    whole = start + struct.pack("<QQ", n_tensors, n_entries) + b"".join(entries) + b"".join(tensors)
    return whole + b"\0" * (-len(whole) % 32 + data)


ARCHITECTURE = entry("general.architecture", 8, string("llama"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"GG", "is not a GGUF file: it starts with b'GG'"),
        (b"PK\3\4" + b"\0" * 99, "is not a GGUF file: it starts with b'PK\\x03\\x04'"),
        (b"GGUF", "the version would take 4 bytes or more, and 0 are left, at byte 4"),
        (b"GGUF\3\0\0\0", "the number of tensors would take 8 bytes or more"),
        (header(start=b"GGUF\1\0\0\0"), "is of version 1; tinytf opens GGUF 2 and 3"),
        (header(start=b"GGUF\0\0\0\0"), "is of version 0"),
        (header(start=b"GGUF\0\0\0\3"), "is big-endian, version 3"),
        (header(counts=(2**60, 0)), "a header of 1,152,921,504,606,846,976 tensors would take"),
        (header(counts=(0, 2**60)), "a header of 1,152,921,504,606,846,976 entries would take"),
        (header(counts=(2**64 - 1, 2**64 - 1)), "entries would take"),
        (header(ARCHITECTURE, counts=(0, 3), data=99), "the key '' occurs twice"),
        (header(ARCHITECTURE, ARCHITECTURE), "the key 'general.architecture' occurs twice"),
        (header(struct.pack("<Q", 2**63) + b"key"), "key 0 would take 9,223,372,036,854,775,808 bytes"),
        (header(entry("a", 8, struct.pack("<Q", 2**60))), "the value of 'a' would take"),
        (header(entry("a", 8, string(b"\xff\xfe"))), "the value of 'a' is not UTF-8"),
        (header(string(b"\xc3(") + b"\0" * 9), "key 0 is not UTF-8"),
        (header(entry("a", 13, b"\0")), "'a' has the unknown type 13"),
        (header(entry("a", 2**32 - 1, b"\0")), "'a' has the unknown type 4294967295"),
        (header(entry("a", 9, struct.pack("<IQ", 8, 2**60))), "'a', an array of 1,152,921,504,606,846,976, would"),
        (header(entry("a", 9, struct.pack("<IQ", 8, 60)), data=99), "'a', an array of 60, would take 480 bytes"),
        (header(entry("a", 9, struct.pack("<IQ", 10, 60)), data=99), "'a', an array of 60, would take 480 bytes"),
        (header(entry("a", 9, struct.pack("<IQ", 9, 1))), "'a' is an array of the unknown type 9"),
        (header(entry("a", 9, struct.pack("<IQ", 0, 2**23 + 1)), data=2**23 + 99), "elements, which no model has"),
        (header(entry("general.alignment", 4, struct.pack("<I", 0))), "general.alignment is 0, and has to be a power"),
        (header(entry("general.alignment", 4, struct.pack("<I", 24))), "general.alignment is 24"),
        (header(entry("general.alignment", 8, string("32"))), "general.alignment is '32'"),
        (header(tensors=(tensor(), tensor())), "the tensor 'x' occurs twice"),
        (header(tensors=(tensor(sizes=()),)), "'x' has 0 dimensions"),
        (header(tensors=(string("x") + struct.pack("<I", 2**32 - 1),)), "'x' has 4,294,967,295 dimensions"),
        (header(tensors=(tensor(sizes=(1,) * 5),)), "'x' has 5 dimensions, and 1 to 4 are allowed"),
        (header(tensors=(tensor(sizes=(4, 0)),)), "'x' has shape (0, 4), which is empty"),
        (header(tensors=(tensor(sizes=(2**33, 2**33)),)), "is truncated: 'x' takes 295,147,905,179,352,825,856 bytes"),
        (header(tensors=(tensor(sizes=(2**63, 2)),)), "is truncated: 'x' takes"),
        (header(tensors=(tensor(kind=4),)), "'x' has the unknown tensor type 4"),
        (header(tensors=(tensor(kind=2**31),)), "'x' has the unknown tensor type 2147483648"),
        (header(tensors=(tensor(sizes=(33,), kind=2),)), "'x' has rows of 33 numbers, and Q4_0 stores blocks of 32"),
        (header(tensors=(tensor(offset=32),)), "the data of 'x' starts at 32, but the tensor before it ends at 0"),
        (header(tensors=(tensor(offset=2**64 - 32),)), "starts at 18,446,744,073,709,551,584"),
        (header(tensors=(tensor("x"), tensor("y", offset=0))), "the data of 'y' starts at 0"),
        (header(tensors=(tensor(sizes=(64,)),), data=255), "is truncated: 'x' takes 256 bytes from"),
        (header(tensors=(string(b"\xff") + b"\0" * 40,)), "the name of tensor 0 is not UTF-8"),
        (header(tensors=(tensor("\x1b[31m" * 99, sizes=(0,)),)), "\\x1b[31m"),
    ],
)
def test_a_header_that_cannot_be(tmp_path, data, said):
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    message = refused(path)
    assert said in message
    assert "\x1b" not in message


def test_a_header_without_anything(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(header())
    with pytest.raises(CheckpointError, match=r"lacks general\.architecture"):
        read_gguf(path)
    with pytest.raises(CheckpointError, match=r"lacks tokenizer\.ggml\.model"):
        gguf_tokenizer(path)


def test_what_is_no_file(tmp_path):
    assert "there is no file" in refused(tmp_path / "absent.gguf")
    assert "it is a folder, not a file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "it is a pipe, not a file" in refused(tmp_path / "pipe.gguf")


def test_every_truncation_is_noticed(tmp_path):
    parts = small_parts()
    path = parts.write(tmp_path / "a.gguf")
    data, cut = path.read_bytes(), tmp_path / "cut.gguf"
    tensors = gguf.GGUFReader(path).tensors
    ends = [int(tensor.data_offset + tensor.n_bytes) for tensor in tensors]
    for size in (*range(1, 200, 7), *range(200, tensors[0].data_offset, 997), *(end - 1 for end in ends)):
        cut.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            read_gguf(cut).load(torch.float32)


def test_a_file_that_shrinks_while_it_is_open(tmp_path, monkeypatch):
    path = small_parts().write(tmp_path / "a.gguf")
    whole, read = path.read_bytes(), GgufWeights.tensors

    def shrink(*given):
        path.write_bytes(whole[:-4096])
        return read(*given)

    monkeypatch.setattr(GgufWeights, "tensors", shrink)
    with pytest.raises(CheckpointError, match="is truncated: it ends within"):
        read_gguf(path).load(torch.float32)


def flip(dice: random.Random, data: bytearray, end: int, places: list[int]) -> bytearray:
    for _ in range(dice.choice((1, 1, 2, 8))):
        data[dice.randrange(end)] ^= 1 << dice.randrange(8)
    return data


def cut(dice: random.Random, data: bytearray, end: int, places: list[int]) -> bytearray:
    return data[: dice.randrange(end)]


def lengthen(dice: random.Random, data: bytearray, end: int, places: list[int]) -> bytearray:
    struct.pack_into("<Q", data, dice.choice(places), dice.choice(HUGE))
    return data


def scribble(dice: random.Random, data: bytearray, end: int, places: list[int]) -> bytearray:
    at = dice.randrange(end)
    data[at : at + 8] = dice.randbytes(8)
    return data


def leave_out(dice: random.Random, data: bytearray, end: int, places: list[int]) -> bytearray:
    at = dice.randrange(end)
    del data[at : at + dice.choice((1, 4, 8, 40))]
    return data


MUTATIONS: tuple[Callable[..., bytearray], ...] = (flip, flip, cut, lengthen, lengthen, scribble, leave_out)


def lengths(path: Path) -> tuple[int, list[int]]:
    """Where the data starts, and where the header has counts and lengths, as the library's reader finds them."""
    reader = gguf.GGUFReader(path)
    places = [8, 16]
    for entry in reader.fields.values():
        if entry.name.startswith("GGUF."):
            continue
        value = entry.offset + 8 + len(entry.name.encode()) + 4
        places += [entry.offset, value, value + 4, value + 12]
    for found in reader.tensors:
        dimensions = found.field.offset + 8 + len(found.name)
        places += [found.field.offset, dimensions, *(dimensions + 4 + 8 * n for n in range(len(found.shape) + 1))]
    return reader.data_offset, places


def odd_parts() -> Parts:
    parts = small_parts("qwen2", tie_word_embeddings=True)
    parts.alignment = 64
    parts.tensors["blk.0.attn_q.weight"] = gguf.quants.quantize(np.ones((32, 32), np.float32), Kind.Q4_1), Kind.Q4_1
    return parts


@pytest.mark.parametrize("parts", [small_parts, sentencepiece_parts, odd_parts])
def test_no_mutation_of_a_header_does_more_than_fail(tmp_path, parts):
    path = parts().write(tmp_path / "a.gguf")
    end, places = lengths(path)
    whole, mutated = path.read_bytes(), tmp_path / "mutated.gguf"
    dice = random.Random(20_260_611)
    started, messages = time.process_time(), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(400):
        mutated.write_bytes(dice.choice(MUTATIONS)(dice, bytearray(whole), end, places))
        try:
            read_gguf(mutated).load(torch.float32)
        except CheckpointError as error:
            messages.append(error.message)
    assert len(messages) > 170, "most mutations have to be noticed"
    assert [message for message in messages if "\n" in message or len(message) > 400 + len(str(mutated))] == []
    assert time.process_time() - started < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024, "KiB"
