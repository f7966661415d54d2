"""Two processes train what one does on the joined batch."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from training_command import Ran, trained

from tinytf.checkpoints.run import load_run
from tinytf.checkpoints.run_config import checkpoints_of

STORY = "\n\n".join(f"The {who} sat on the {what}. It was a {how} day." for who in ("cat", "dog", "hen", "fox")
                    for what in ("mat", "log") for how in ("fine", "wet", "long"))  # fmt: skip
RECIPE = """
tokenizer = "char"
steps = 6
batch = 6
block = 16
warmup = 2
eval_every = 3
held_out = 0.2
repeats = 0.25

[model]
d_model = 16
n_layers = 1
n_heads = 2
d_ff = 16
context = 32
"""


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    (tmp_path / "recipe.toml").write_text(RECIPE, "utf-8")
    (tmp_path / "corpus.txt").write_text(STORY, "utf-8")
    return [str(tmp_path / "corpus.txt"), "--recipe", str(tmp_path / "recipe.toml")]


_RANK = """
import json, os, sys
from training_command import trained
for line in sys.stdin:
    environ, arguments = json.loads(line)
    os.environ.update(environ)
    print(json.dumps(trained(*arguments)), flush=True)
"""


class Pair:
    """Two processes that train together as often as they are told; torchrun starts others anew, which takes seconds."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {**os.environ, "PYTHONPATH": path, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", _RANK], env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            for rank in (0, 1)
        ]  # fmt: skip

    def __call__(self, *arguments: str) -> Ran:
        """Train in both; the answer has the larger status, and what both have said."""
        environ = {"MASTER_PORT": str(free_port())}
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps([environ, arguments]) + "\n")
            rank.stdin.flush()
        answers = [json.loads(rank.stdout.readline()) for rank in self.ranks if rank.stdout is not None]
        return Ran(max(status for status, _ in answers), "".join(said for _, said in answers))

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    both = Pair()
    yield both
    both.end()


def torchrun(*arguments: str) -> list[str]:
    runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*runner, "-m", "tinytf_cli", "train", *arguments]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def metrics_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_two_processes_have_the_loss_curve_of_one(corpus: list[str], tmp_path: Path, pair: Pair) -> None:
    assert trained(*corpus, "--out", str(tmp_path / "one")).status == 0
    ran = pair(*corpus, "--out", str(tmp_path / "two"))
    assert ran.status == 0, ran.said
    assert ran.said.count("wrote") == 1
    has_the_loss_curve_of_one(tmp_path)


@pytest.mark.exhaustive  # in the gate torchrun starts the two of which one is killed
def test_torchrun_has_the_loss_curve_of_one(corpus: list[str], tmp_path: Path) -> None:
    assert trained(*corpus, "--out", str(tmp_path / "one")).status == 0
    ran = subprocess.run(torchrun(*corpus, "--out", str(tmp_path / "two")), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("wrote") == 1
    has_the_loss_curve_of_one(tmp_path)


def test_two_that_accumulate_have_the_loss_curve_of_one(corpus: list[str], tmp_path: Path, pair: Pair) -> None:
    for train, name in ((trained, "one"), (pair, "two")):
        ran = train(*corpus, "--out", str(tmp_path / name), "--accumulate", "3")
        assert ran.status == 0, ran.said
        assert ran.said.count("wrote") == 1
    has_the_loss_curve_of_one(tmp_path)


def has_the_loss_curve_of_one(folder: Path) -> None:
    one, two = metrics_of(folder / "one"), metrics_of(folder / "two")
    assert len(two) == 6
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], abs=1e-5)
    assert two[-1]["held_out_loss"] == pytest.approx(one[-1]["held_out_loss"], abs=1e-5)


def killed_after_step_3(whole: Path, run: Path) -> None:
    """A copy of a run as it is left when its processes are killed in step 4."""
    shutil.copytree(whole, run)
    first, last = checkpoints_of(run)
    assert first.name == "step-000003"
    shutil.rmtree(last)
    shutil.copy(first / "model.safetensors", run)
    for name in ("metrics.jsonl", "samples.jsonl"):
        kept = [line for line in (run / name).read_text("utf-8").splitlines(True) if json.loads(line)["step"] <= 4]
        (run / name).write_text("".join(kept), "utf-8")


def test_a_run_of_two_goes_on_with_two_to_the_bit_and_not_with_one(
    corpus: list[str], tmp_path: Path, pair: Pair
) -> None:
    dropout = (*corpus, "--dropout", "0.2")
    whole, run = str(tmp_path / "whole"), str(tmp_path / "run")
    assert pair(*dropout, "--out", whole).status == 0
    killed_after_step_3(tmp_path / "whole", tmp_path / "run")
    alone = trained(*dropout, "--out", run, "--resume")
    assert alone.status == 2
    assert "was trained by 2 processes, but there are 1 now" in alone.said
    assert "--nproc-per-node 2" in alone.said
    assert pair(*dropout, "--out", run, "--resume").status == 0
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_two_that_hold_a_part_of_the_model_each_have_the_loss_curve_of_one(
    corpus: list[str], tmp_path: Path, pair: Pair
) -> None:
    for train, name, more in ((trained, "one", ()), (pair, "two", ("--shard",))):
        ran = train(*corpus, *more, "--out", str(tmp_path / name), "--accumulate", "3", "--probe-every", "2")
        assert ran.status == 0, ran.said
    has_the_loss_curve_of_one(tmp_path)
    one, two = metrics_of(tmp_path / "one"), metrics_of(tmp_path / "two")
    for layer, expected in zip(two[-1]["heads"]["previous"], one[-1]["heads"]["previous"], strict=True):
        assert layer == pytest.approx(expected, abs=2e-4)
    said = [(tmp_path / name / "samples.jsonl").read_text("utf-8").splitlines() for name in ("one", "two")]
    assert [len(lines) for lines in said] == [6, 6]
    assert said[0][:5] == said[1][:5]
    whole, gathered = (load_run(tmp_path / name).state_dict() for name in ("one", "two"))
    for name, tensor in whole.items():
        # A key's bias moves every score of a row alike, so its gradient is rounding alone, and Adam makes steps of it.
        assert torch.allclose(gathered[name], tensor, atol=1e-4) or name.endswith("k.bias"), name


def test_a_divided_run_goes_on_to_the_bit(corpus: list[str], tmp_path: Path, pair: Pair) -> None:
    divided = (*corpus, "--dropout", "0.2", "--shard")
    whole, run = str(tmp_path / "whole"), str(tmp_path / "run")
    assert pair(*divided, "--out", whole).status == 0
    killed_after_step_3(tmp_path / "whole", tmp_path / "run")
    ran = pair(*divided, "--out", run, "--resume")
    assert ran.status == 0, ran.said
    for name in ("model.safetensors", "metrics.jsonl", "samples.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("more", "said"),
    [((), "there is only one"), (("--compile",), "compiles"), (("--explain", "2"), "explains an update")],
)
def test_what_cannot_be_divided_is_said(corpus: list[str], tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    ran = trained(*corpus, "--shard", *more, "--out", str(tmp_path / "run"))
    assert ran.status == 2
    assert said in ran.said
    assert len(ran.said.splitlines()) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_process_that_is_killed_ends_all_with_a_message(corpus: list[str], tmp_path: Path) -> None:
    long = torchrun(*corpus, "--steps", "100000", "--eval-every", "1000000", "--out", str(tmp_path / "run"))
    with subprocess.Popen(long, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "metrics.jsonl").exists() or not metrics_of(tmp_path / "run"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()
        os.kill(int(children[-1]), signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "SIGKILL" in said or "exitcode" in said
    assert "fault of tinytf" not in said


_SLOW_ALONE = """
import os, sys, time
from tinytf.training import start
from tinytf.training.observers import held_out, saving
from tinytf.training.tuning import processes
from training_command import trained

processes._LOOK = 1

def slowly(function):
    def alone(*given, **more):
        time.sleep(6 if os.environ["RANK"] == "0" else 0)
        return function(*given, **more)
    return alone

start.prepare, saving.save_checkpoint = slowly(start.prepare), slowly(saving.save_checkpoint)
measured, calls = held_out.held_out_loss, []
held_out.held_out_loss = lambda *given, **more: calls.append(1) or measured(*given, **more)
ran = trained(*sys.argv[1:], "--process-timeout", "5")
print(len(calls), ran.said)
raise SystemExit(ran.status)
"""


@pytest.mark.exhaustive
def test_what_the_first_does_alone_may_take_longer_than_processes_wait(corpus: list[str], tmp_path: Path) -> None:
    corpus += ["--eval-every", "6"]
    assert trained(*corpus, "--out", str(tmp_path / "one")).status == 0
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    argv = [sys.executable, "-c", _SLOW_ALONE, *corpus, "--out", str(tmp_path / "two")]
    both = [
        subprocess.Popen(argv, env={**os.environ, **place, "PYTHONPATH": path, "RANK": rank, "LOCAL_RANK": rank},
                         stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [one.split()[0] for one in said] == ["1", "1"]  # both measure the held-out text
    has_the_loss_curve_of_one(tmp_path)


@pytest.mark.exhaustive
def test_processes_that_do_not_come_to_work_together_are_awaited_so_long(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import time, torch\n"
        "from tinytf.training.tuning.processes import processes\n"
        "with processes(torch.device('cpu'), timeout=1) as together:\n"
        "    time.sleep(4 * together.rank)\n"
        "    together.total(1.0)\n",
        "utf-8",
    )
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen([sys.executable, str(script)], env={**os.environ, **place, "RANK": rank},
                         stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]  # fmt: skip
    said = both[0].communicate(timeout=120)[1]
    both[1].communicate(timeout=120)
    assert "TrainingError: the other processes of this run have not come within 1 s" in said


@pytest.mark.exhaustive
def test_what_a_process_says_when_another_has_ended(tmp_path: Path) -> None:
    alone = tmp_path / "leaves.py"
    alone.write_text(
        "import os, torch\n"
        "from tinytf.training.tuning.processes import processes\n"
        "with processes(torch.device('cpu')) as together:\n"
        "    together.wait()\n"
        "    if together.rank:\n"
        "        os._exit(0)\n"
        "    together.total(1.0)\n",
        "utf-8",
    )
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [{**os.environ, **place, "RANK": str(rank)} for rank in (0, 1)]
    argv = [sys.executable, str(alone)]
    both = [subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True) for environ in ranks]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert "TrainingError: another process of this run has ended" in said[0], said


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two, which is not a whole number from 1"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE asks for 2 processes, without RANK, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "2", "RANK": "abc", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, "RANK=abc, which is not a whole"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, "RANK is 2, but WORLD_SIZE is 2"),
    ],
)
def test_an_environment_that_is_half_of_a_launcher_is_refused(
    environ: dict[str, str], message: str, corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    ran = trained(*corpus, "--out", str(tmp_path / "run"))
    assert ran.status == 2
    assert message in ran.said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_processes_that_do_not_come_are_awaited_by_name_and_not_for_ever(
    rank: str, corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = str(free_port())
    for name, value in {"WORLD_SIZE": "2", "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tinytf.training.tuning.processes._SILENCE", 0.1)
    monkeypatch.setattr("tinytf.training.tuning.processes._PATIENCE", 1)
    ran = trained(*corpus, "--out", str(tmp_path / "run"))
    assert ran.status == 1
    assert f"waiting at 127.0.0.1:{port} for all 2 processes, at most 1 s" in ran.said
    assert f"not all 2 processes met at 127.0.0.1:{port} within 1 s" in ran.said


@pytest.mark.share(6)
@pytest.mark.parametrize("field", ["--d-model", "--n-layers", "--d-ff"])
@pytest.mark.slow
def test_a_model_of_an_absurd_size_is_refused_before_it_is_made(field: str, corpus: list[str], tmp_path: Path) -> None:
    ran = trained(*corpus, "--out", str(tmp_path / "run"), field, "1000000000", "--n-heads", "1")
    assert ran.status in (1, 2)
    assert "fault" not in ran.said
    assert not (tmp_path / "run").exists()
