"""Files appear whole; what is no file stays what it is."""

import os
import stat
import threading
from pathlib import Path

import pytest

from tinytf.files import write_whole

posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX systems")


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    write_whole(path, b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_bytes(b"before")
    link = tmp_path / "link.txt"
    link.symlink_to("there.txt")
    write_whole(link, b"after")
    assert link.is_symlink()
    assert (tmp_path / "there.txt").read_bytes() == b"after"


@posix
def test_a_named_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_whole(pipe, b"numbers")
    reader.join(timeout=60)
    assert got == [b"numbers"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
