"""Files appear whole; what is no file stays what it is."""

import os
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tinytf import files, outputs
from tinytf.errors import CheckpointError, UsageError
from tinytf.files import open_bytes, parse_json, parse_toml, read_bytes, read_json
from tinytf.outputs import write_output, write_state

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


@posix
def test_what_stood_there_keeps_its_mode_and_a_new_file_has_the_usual_one(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_output(tmp_path / "new.txt", b"numbers")
        (tmp_path / "private.txt").write_bytes(b"before")
        (tmp_path / "private.txt").chmod(0o600)
        write_output(tmp_path / "private.txt", b"after")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "private.txt").stat().st_mode) == 0o600


@posix
def test_a_read_only_file_is_refused_by_every_writer(tmp_path: Path) -> None:
    path = tmp_path / "kept.txt"
    path.write_bytes(b"before")
    path.chmod(0o444)
    for write in (write_output, write_state):
        with pytest.raises(UsageError, match="is read-only"):
            write(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_the_name_of_an_unfinished_file_cannot_be_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, path = tmp_path / "victim", tmp_path / "out.txt"
    victim.write_bytes(b"before")
    monkeypatch.setattr("secrets.token_hex", lambda size: "ab" * size)  # as if it had been guessed
    for made in (
        lambda: outputs.temporary_path(path).symlink_to(victim),
        lambda: os.link(victim, outputs.temporary_path(path)),
    ):
        made()
        with pytest.raises(FileExistsError):
            write_output(path, b"after")
        outputs.temporary_path(path).unlink(missing_ok=True)
    assert victim.read_bytes() == b"before"
    assert not path.exists()
    monkeypatch.undo()
    assert outputs.temporary_path(path) != outputs.temporary_path(path)


@posix
def test_no_state_is_written_through_a_link(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "state.jsonl"
    victim.write_bytes(b"before")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), outputs.appending(path) as stream:
        stream.write(b"after")
    write_state(path, b"after")
    assert not path.is_symlink()
    assert (path.read_bytes(), victim.read_bytes()) == (b"after", b"before")


@pytest.mark.parametrize("name", ["a" * 251 + ".txt", "猫" * 83 + ".txt", "e\u0301" * 80 + ".txt"])
def test_a_name_as_long_as_a_file_system_takes_is_written(tmp_path: Path, name: str) -> None:
    write_output(tmp_path / name, b"numbers")
    assert (tmp_path / name).read_bytes() == b"numbers"
    assert len(list(tmp_path.iterdir())) == 1


@posix
@pytest.mark.slow
def test_a_link_to_standard_output_is_written_to(tmp_path: Path) -> None:
    for number, stdout in enumerate((subprocess.PIPE, "file")):
        link = tmp_path / f"out-{number}.csv"
        link.symlink_to("/dev/stdout")
        with (tmp_path / "shown.txt").open("wb") as file:
            ran = subprocess.run(
                [sys.executable, "-m", "tinytf_cli", "tokens", "The cat", "-o", link],
                stdout=file if stdout == "file" else stdout, stderr=subprocess.PIPE, check=True,
            )  # fmt: skip
        written = (tmp_path / "shown.txt").read_bytes() if stdout == "file" else ran.stdout
        assert written.splitlines()[0].startswith(b"index,"), written
        assert link.is_symlink()


def test_a_file_is_read_under_all_its_names_while_the_command_runs(tmp_path: Path) -> None:
    path, other = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes(b"numbers")
    os.link(path, other)
    with files.command_files():
        with files.command_files():
            read_bytes(path, 100)
            for name in (path, other):
                with pytest.raises(UsageError, match="is read by this command"):
                    write_output(name, b"")
        outputs.expect_output(other)
        with pytest.raises(UsageError, match="is read by this command"):
            read_bytes(path, 100)
    write_output(path, b"after")
    assert path.read_bytes() == b"after"


def test_a_file_of_an_open_model_is_read_for_good(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(b"numbers")
    with files.command_files(), files.lasting_files():
        read_bytes(path, 100)
    with files.command_files(), pytest.raises(UsageError, match="is read by this command"):
        write_output(path, b"")
    path.unlink()
    path.write_bytes(b"another one, perhaps with the number of the first")
    (tmp_path / "c.txt").write_bytes(b"")
    write_output(tmp_path / "c.txt", b"after")


@pytest.mark.share(4)
@pytest.mark.parametrize("depth", [10, 100, 900, 5_000, 100_000])
@pytest.mark.parametrize(("parse", "around"), [
    (parse_json, "[{}]"), (parse_json, '{{"a": {}}}'), (parse_toml, "a = {}"), (parse_toml, "{}"),
])  # fmt: skip
def test_what_is_nested_is_parsed_or_a_value_error(parse, around, depth):
    text = around.format("[" * depth + "]" * depth) if around != "{}" else "[" + ".".join("a" * depth) + "]"
    if depth <= 100:
        assert parse(text)
    else:
        with suppress(ValueError):
            parse(text)


@pytest.mark.parametrize("text", ["", "nul", "1" * 5_000, b"\xff", "[1,", '"\x00"'])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_what_one_thread_reads_of_a_model_is_no_matter_of_another(tmp_path: Path) -> None:
    (mine := tmp_path / "mine.bin").write_bytes(b"1")
    (others := tmp_path / "others.txt").write_bytes(b"2")
    with files.lasting_files():
        reading = threading.Thread(target=read_bytes, args=(others, 9))
        reading.start()
        reading.join()
        read_bytes(mine, 9)
    assert files.is_read(mine)
    assert not files.is_read(others)
