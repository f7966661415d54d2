"""Keep the results of a long measurement in a file, one line each, so that it can continue after an interrupt."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.errors import TinytfError, UsageError
from tinytf.files import TOKENIZER, parse_json, read_bytes
from tinytf.outputs import appending, write_state, writing
from tinytf.report import plain

_LINE_START, _SUM = b'{"of": ', b', "sum": "'
"""How a line begins, and what comes between its data and their checksum."""


class ResumeLog:
    """The results ``found`` so far, JSON data by name; with a ``path``, each is also a line of that file.

    ``of`` is everything that the numbers depend on: models, with the states that they read, tensors, JSON data. A file
    may hold several measurements; a checksum of ``of`` identifies the lines of each, and each line has one of its own.
    Raises UsageError for a file with anything else in it.
    """

    def __init__(self, path: Path | None = None, *of: object) -> None:
        read = [given.states for given in (getattr(one, "reads", None) for one in of) if given is not None]
        self.path, self._checksum = path, "" if path is None else checksum(*of, *read)
        self.found: dict[str, Any] = {} if path is None else self._read(path)

    def add(self, results: Mapping[str, object]) -> None:
        """Add results. Raises TinytfError if the file cannot be written."""
        self.found |= {name: plain(value) for name, value in results.items()}
        if self.path is not None:
            rows = ({"of": self._checksum, "name": name, "found": self.found[name]} for name in results)
            with writing(self.path, "give the same command again"), appending(self.path) as file:
                file.write(b"".join(_line(json.dumps(row).encode("ascii")) for row in rows))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            data = read_bytes(path, TOKENIZER)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise TinytfError(f"cannot read {path}: {error.strerror}") from None
        results: dict[str, Any] = {}
        *lines, torn = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                if _line(line.rpartition(_SUM)[0] + b"}") != line + b"\n":
                    raise ValueError
                row = parse_json(line)
                measurement, name, value = row["of"], row["name"], row["found"]
            except (ValueError, TypeError, LookupError):
                message = f"line {number} of {path} is not from a measurement"
                raise UsageError(message, "name a new file, or that of an interrupted measurement") from None
            if measurement == self._checksum:
                results[name] = value
        if torn:  # the process was killed while it wrote this line
            if not torn.startswith(_LINE_START[: len(torn)]):
                raise UsageError(f"{path} is not a file of a measurement", "name a new file")
            with writing(path):
                write_state(path, data.removesuffix(torn))
        return results


def _line(data: bytes) -> bytes:
    """A JSON object as a line, with the checksum of its text as a last member."""
    return b'%s%s%s"}\n' % (data[:-1], _SUM, hashlib.sha256(data).hexdigest()[:16].encode("ascii"))


def checksum(*of: object) -> str:
    """A checksum of the weights of models, tensors and JSON data, 16 digits."""
    digest = hashlib.sha256()
    for item in of:
        if isinstance(item, nn.Module):
            digest.update("".join(checksum(name, tensor) for name, tensor in item.named_parameters()).encode("ascii"))
        elif isinstance(item, Tensor):
            digest.update(f"{item.dtype} {tuple(item.shape)}".encode("ascii"))
            digest.update(item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(json.dumps(plain(item)).encode("ascii"))
    return digest.hexdigest()[:16]
