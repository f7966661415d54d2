"""The results of a long measurement, one line each in a file, so that it continues where it was interrupted."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.errors import TinytfError, UsageError
from tinytf.files import TOKENIZER, read_bytes
from tinytf.outputs import appending, write_state, writing
from tinytf.report import plain

_BEGINNING = b'{"of": '


class ResumeLog:
    """The results ``found`` so far, JSON data by name; with a ``path``, each is a line of that file too.

    ``of`` is everything the numbers depend on: models, tensors, JSON data. A file may hold several measurements; a
    checksum of ``of`` tells their lines apart. Raises UsageError for a file with anything else in it.
    """

    def __init__(self, path: Path | None = None, *of: object) -> None:
        self.path, self._of = path, "" if path is None else checksum(*of)
        self.found: dict[str, Any] = {} if path is None else self._read(path)

    def add(self, found: Mapping[str, object]) -> None:
        """Add results. Raises TinytfError where the file cannot be written."""
        self.found |= {name: plain(one) for name, one in found.items()}
        if self.path is not None:
            rows = ({"of": self._of, "name": name, "found": self.found[name]} for name in found)
            with writing(self.path, "give the same command again"), appending(self.path) as file:
                file.write("".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii"))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            data = read_bytes(path, TOKENIZER)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise TinytfError(f"cannot read {path}: {error.strerror}") from None
        found: dict[str, Any] = {}
        *lines, torn = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                of, name, value = row["of"], row["name"], row["found"]
            except (ValueError, TypeError, LookupError, RecursionError):
                said = f"line {number} of {path} is nothing that a measurement kept"
                raise UsageError(said, "name a new file, or the one of an interrupted measurement") from None
            if of == self._of:
                found[name] = value
        if torn:  # the process was killed while it wrote this line
            if not torn.startswith(_BEGINNING[: len(torn)]):
                raise UsageError(f"{path} is no file of a measurement", "name a new one")
            with writing(path):
                write_state(path, data.removesuffix(torn))
        return found


def checksum(*of: object) -> str:
    """A checksum of models, tensors and JSON data, 16 digits."""
    total = hashlib.sha256()
    for one in of:
        if isinstance(one, nn.Module):
            total.update("".join(checksum(name, tensor) for name, tensor in one.named_parameters()).encode("ascii"))
        elif isinstance(one, Tensor):
            total.update(f"{one.dtype} {tuple(one.shape)}".encode("ascii"))
            total.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            total.update(json.dumps(plain(one)).encode("ascii"))
    return total.hexdigest()[:16]
