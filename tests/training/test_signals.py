"""A signal that ends a training leaves a checkpoint first; a second one does not wait for it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from covering import sample

from tinytf.checkpoints.run_config import checkpoint_step, checkpoints_of
from tinytf_cli.interrupt import Interrupt

SMALL = ["--tokenizer", "char", "--d-model", "16", "--n-layers", "1", "--n-heads", "2", "--d-ff", "16",
         "--context", "16", "--block", "8", "--batch", "2"]  # fmt: skip


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="such signals are of POSIX")
@sample("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.slow
def test_training_that_is_asked_to_end_leaves_a_checkpoint_of_its_last_step(name: str, tmp_path: Path) -> None:
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        pytest.skip("whoever started the tests ignores it, as nohup does, and so would the training")
    (tmp_path / "text.txt").write_text("The cat sat on the mat. " * 50, "utf-8")
    command = [sys.executable, "-m", "tinytf_cli", "train", "text.txt", "--out", "run", "--steps", "1000000", *SMALL]
    run = tmp_path / "run"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"parameters" not in process.stderr.readline():  # said after the first step
            assert process.poll() is None
        process.send_signal(getattr(signal, name))
        said = process.stderr.read().decode()
    assert process.returncode == 130
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    assert checkpoint_step(checkpoints_of(run)[-1]) == len(lines) > 0
    assert f"stopped run at step {len(lines):,} of 1,000,000; tinytf train --resume run continues" in said


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="such signals are of POSIX")
def test_a_second_signal_interrupts_unless_it_is_the_first_one_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tinytf_cli.interrupt.time.monotonic", lambda: now[0])
    before, interrupt = signal.getsignal(signal.SIGTERM), Interrupt()
    with interrupt.deferred() as stops:
        assert signal.getsignal(signal.SIGTERM) is before  # nothing is worth keeping yet
        assert not stops()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)  # as a shell does for its jobs
        assert stops()
        now[0] = 2.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="such signals are of POSIX")
def test_a_run_under_nohup_does_not_hear_the_terminal_close(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt().deferred() as stops:
            signal.raise_signal(signal.SIGHUP)
            assert not stops()
    finally:
        signal.signal(signal.SIGHUP, before)
