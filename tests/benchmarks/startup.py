"""Whole processes: the first trace beside a bare ``import torch``, and the help.

python tests/benchmarks/startup.py --repeat 11
"""

import subprocess
import sys
from collections.abc import Callable

from _timing import Row, in_turns, milliseconds, options, ratio, show, show_machine, spread

COMMANDS = {
    "trace": ("-m", "tinytf_cli", "trace", "The cat sat"),
    "import torch": ("-c", "import torch"),
    "--help": ("-m", "tinytf_cli", "--help"),
    "python": ("-c", "pass"),
}


def process(arguments: tuple[str, ...]) -> Callable[[], object]:
    """A run of this Python with stdout to a pipe; a status other than 0 raises."""
    return lambda: subprocess.run((sys.executable, *arguments), stdout=subprocess.PIPE, check=True)


def main() -> int:
    chosen = options(__doc__, repeat=7).parse_args()
    show_machine("torch", "tinytf")
    seconds = in_turns({name: process(arguments) for name, arguments in COMMANDS.items()}, chosen.repeat)
    rows = [
        Row(
            "tinytf trace / import torch",
            ratio(seconds, "trace", "import torch"),
            goal=1.5,
            note=spread(seconds, "trace", "import torch"),
        ),
        Row(
            "tinytf --help",
            milliseconds(seconds, "--help"),
            "ms",
            goal=150.0,
            note=spread(seconds, "--help", "python"),
        ),
    ]
    return 1 if show(f"Processes, median of {chosen.repeat}", rows) else 0


if __name__ == "__main__":
    sys.exit(main())
