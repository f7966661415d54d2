"""Weights in .bin: opcodes that call something, odd kinds of tensors, keys that are no names, broken archives."""

import io
import json
import os
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import torch

from hostile.bases import llama, tensors, within
from hostile.case import Case
from hostile.mutations import bytes_of
from hostile.strings import word

_COMMANDS = (("info", "model"), ("info", "model"), ("tokens", "a", "-m", "model"), ("models", "."))


class _Calls:
    """What runs a function where it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def _odd() -> dict[str, Callable[[torch.Tensor], Any]]:
    """Things that are no plain tensor, made of one."""
    return {
        "sparse": lambda one: one.to_sparse(),
        "sparse by rows": lambda one: one.to_sparse_csr() if one.dim() == 2 else one.to_sparse(),
        "meta": lambda one: one.to("meta"),
        "quantised": lambda one: torch.quantize_per_tensor(one, 0.1, 0, torch.qint8),
        "complex": lambda one: one.to(torch.complex64),
        "whole numbers": lambda one: one.to(torch.int64),
        "doubles": lambda one: one.double(),
        "bool": lambda one: one > 0,
        "a parameter": lambda one: torch.nn.Parameter(one),
        "one number for all": lambda one: torch.zeros(1).expand(2**31, 2**20),
        "nothing": lambda one: torch.zeros(0),
        "a view": lambda one: one.mT if one.dim() == 2 else one[::2],
        "NaN": lambda one: one * float("nan"),
        "a list": lambda one: [one],
        "a dict": lambda one: {"x": one},
        "None": lambda one: None,
        "a text": lambda one: word(Random(0)),
        "a number": lambda one: 10**400,
        "a call": lambda one: _Calls(os.mkdir, "owned"),
        "a print": lambda one: _Calls(print, "owned"),
        "a large call": lambda one: _Calls(bytes, 2**40),
        "eval": lambda one: _Calls(eval, "open('owned', 'w')"),
        "torch.load": lambda one: _Calls(torch.zeros, 2**40),
        "conjugated": lambda one: torch.complex(one, one).conj(),
        "nested": lambda one: torch.nested.nested_tensor([one.flatten(), one.flatten()[:1]]),
    }


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"pickles {seed}")
    sound = {name: data for name, data in llama().items() if name != "model.safetensors"}
    for _ in range(count):
        about, data = _made(rng)
        if not rng.randrange(10):
            index = {"weight_map": {name: rng.choice(("a.bin", "../a.bin", word(rng))) for name in tensors()}}
            made = {"a.bin": data, "pytorch_model.bin.index.json": json.dumps(index).encode()}
        else:
            made = {"pytorch_model.bin": data}
        yield Case(about, rng.choice(_COMMANDS), within("model", {**sound, **made}))


def _made(rng: Random) -> tuple[str, bytes]:
    match rng.randrange(6):
        case 0:
            about, data = bytes_of(rng, _saved())
        case 1:
            about, data = _pickle_within(rng)
        case 2:
            about, data = bytes_of(rng, _saved(zipped=False), 3_000)
        case 3:
            return _raw(rng)
        case _:
            return _with_odd(rng)
    return about, data


@cache
def _saved(zipped: bool = True) -> bytes:
    return _save(tensors(), zipped)


def _save(data: Any, zipped: bool = True) -> bytes:
    made = io.BytesIO()
    torch.save(data, made, _use_new_zipfile_serialization=zipped)
    return made.getvalue()


def _with_odd(rng: Random) -> tuple[str, bytes]:
    """One tensor replaced by something else, or under another key."""
    stored: dict[Any, Any] = dict(tensors())
    name, kind = rng.choice(list(stored)), rng.choice(list(_odd()))
    key = rng.choice((name, name, name, 7, None, ("a", 1), word(rng)))
    with warnings.catch_warnings(action="ignore"):  # torch's, of kinds that may change
        stored[key] = _odd()[kind](stored.pop(name))
    whole = rng.choice((stored, stored, stored, {"state_dict": stored}, [stored], stored[key], {}, {0: stored}))
    try:
        return f"{kind} as {key!a:.40}", _save(whole, bool(rng.randrange(4)))
    except (RuntimeError, NotImplementedError, AttributeError):  # torch cannot save it so
        return f"{kind} alone", pickle.dumps({str(key): repr(kind)})


def _pickle_within(rng: Random) -> tuple[str, bytes]:
    """The archive of torch with other opcodes in its pickle, entries that lack, are doubled, or inflate."""
    made = io.BytesIO()
    bomb = rng.randrange(8) == 0
    with zipfile.ZipFile(io.BytesIO(_saved())) as sound, zipfile.ZipFile(made, "w") as archive:
        about = ""
        for number, entry in enumerate(sound.infolist()):
            data = sound.read(entry)
            if entry.filename.endswith("data.pkl"):
                about, data = _opcodes(rng, data)
            elif rng.randrange(20) == 0:
                continue
            if bomb and entry.filename.endswith("/data/0"):
                data = b"\0" * 30_000_000
            how = zipfile.ZIP_DEFLATED if bomb else zipfile.ZIP_STORED
            archive.writestr(entry.filename if rng.randrange(30) else f"../../owned{number}", data, how)
    return f"{about}{', inflating' if bomb else ''}", made.getvalue()


def _opcodes(rng: Random, data: bytes) -> tuple[str, bytes]:
    """One opcode replaced by another, removed, or doubled."""
    places = [at for _, _, at in pickletools.genops(data) if at is not None]
    at = rng.choice(places[2:])
    codes = [code.code.encode("latin-1") for code in pickletools.opcodes]
    code = rng.choice(codes)
    match rng.randrange(4):
        case 0:
            return f"opcode {code!r} at {at}", data[:at] + code + data[at + 1 :]
        case 1:
            return f"opcode {code!r} more at {at}", data[:at] + code + data[at:]
        case 2:
            return f"cut at {at}", data[:at] + b"."
    return "a call", data[:at] + b"cos\nsystem\n(X\x05\x00\x00\x00echo tR0" + data[at:]


def _raw(rng: Random) -> tuple[str, bytes]:
    """A pickle that torch did not write."""
    name, kind = "x", rng.choice(list(_odd()))
    return rng.choice((
        ("a bare pickle", pickle.dumps({name: [1.0, 2.0]})),
        ("a call", pickle.dumps(_Calls(os.mkdir, "owned"))),
        ("deep", b"\x80\x02" + b"(" * 200_000 + b"t." * 2),
        ("deep lists", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
        ("a long number", b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\xff" * 100 + b"."),
        ("a huge string", b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"x."),
        ("many memos", b"\x80\x02" + b"N" + b"r\xff\xff\xff\x7f" * 1_000 + b"."),
        ("doubling", b"\x80\x02" + b"]q\x00" + b"(h\x00h\x00tq\x00" * 30 + b"."),
        ("empty", b""), ("a word", b"hello"), ("protocol 255", b"\x80\xff."), (kind, bytes_of(rng, _saved(False))[1]),
    ))  # fmt: skip
