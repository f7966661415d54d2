"""Files appear whole; what is no file stays what it is."""

import os
import stat
import threading
from pathlib import Path

import pytest

from tinytf import outputs
from tinytf.errors import CheckpointError
from tinytf.files import open_bytes, read_bytes, read_json
from tinytf.outputs import write_output

posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX systems")


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    write_output(path, b"after")
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_bytes(b"before")
    link = tmp_path / "link.txt"
    link.symlink_to("there.txt")
    write_output(link, b"after")
    assert link.is_symlink()
    assert (tmp_path / "there.txt").read_bytes() == b"after"


@posix
def test_a_named_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, b"numbers")
    reader.join(timeout=60)
    assert got == [b"numbers"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@posix
def test_a_pipe_that_nobody_reads_is_an_error_and_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_SECONDS_FOR_A_READER", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nobody reads this pipe"):
        write_output(tmp_path / "pipe", b"numbers")


@posix
def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    for path, said in (
        (tmp_path / "pipe.json", "it is a pipe, not a file"),
        (tmp_path, "it is a folder, not a file"),
        (Path("/dev/zero"), "it is a device, not a file"),
        (tmp_path / "loop.json", "Too many levels of symbolic links"),
        (tmp_path / ("a" * 300), "File name too long"),
        (tmp_path / "a\0b", "a file name cannot hold a NUL byte"),
    ):
        with pytest.raises(OSError, match=said):
            open_bytes(path)
        with pytest.raises(CheckpointError, match=f"cannot read .*: {said}"):
            read_json(path)


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": 1}')
    assert read_bytes(path, 8) == b'{"a": 1}'
    with pytest.raises(OSError, match="it has 8 bytes, and the limit for such a file is 7"):
        read_bytes(path, 7)
