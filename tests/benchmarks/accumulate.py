"""The most memory that the evaluations of a run take, beside its training: a batch of 512 in 512 parts.

Each phase runs in its own process, whose largest resident size the system gives (ru_maxrss): training without any
evaluation, the same with the held-out text measured after its last step and with the report, and a dry run. A batch of
512 in one part is shown for comparison. At most 1.1 times training's own may be taken (the goal of each row).

    python tests/benchmarks/accumulate.py
"""

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from _timing import Row, show, show_machine

ROOT = Path(__file__).resolve().parents[2]
GOAL = 1.1
SIZE = ["--d-model", "64", "--n-layers", "2", "--n-heads", "2", "--d-ff", "256", "--context", "128", "--block", "128"]
RUN = ["--batch", "512", "--steps", "1", "--warmup", "0", "--tokenizer", "bpe", "--vocab-size", "2000"]
ALONE = ["--held-out", "0", "--probe-every", "0", "--sample-tokens", "0"]
"""No held-out text, no probes and no sample: nothing but steps is computed."""
CHILD = """
import resource, sys
from tinytf_cli.main import run
if sys.argv[1] == "steps":
    import tinytf.training.train
    tinytf.training.train.report_of = lambda *_: sys.exit(0)
try:
    run(["train", *sys.argv[2:]])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
"""


def peak(phase: str, *arguments: str) -> int:
    """The bytes of the largest resident size of a process that trains."""
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, phase, *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return int(ran.stderr.split()[-1])


def main() -> int:
    """Measure and show; the number of goals that were missed."""
    sys.path.insert(0, str(ROOT / "samples" / "stories"))
    from generate import stories

    show_machine("torch", "tinytf")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(itertools.islice(stories(seed=1), 1500)), "utf-8")

        def of(phase: str, name: str, *more: str) -> int:
            return peak(phase, str(text), *SIZE, *RUN, "--out", str(Path(folder) / name), *more)

        small = ("--accumulate", "512")
        steps, whole = of("steps", "steps", *small, *ALONE), of("steps", "at once", *ALONE)
        phases = {
            "held-out text, probes, sample": of("steps", "measured", *small),
            "and the report": of("whole", "whole", *small),
            "dry run": of("whole", "planned", *small, "--dry-run"),
        }
    rows = [Row("steps in 512 parts", steps / 1e6, "MB"), Row("steps in one part", whole / 1e6, "MB")]
    rows += [Row(f"{name} / steps", size / steps, "x", GOAL, f"{size / 1e6:,.0f} MB") for name, size in phases.items()]
    return show("largest resident size", rows)


if __name__ == "__main__":
    raise SystemExit(1 if main() else 0)
