"""``tinytf diff --recorder``: a file for another program, which writes down its steps."""

from dataclasses import dataclass

from tinytf_cli.command import argument, command
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The argument of this command alone."""

    program: str | None = argument(required=False)


@command("diff --recorder")
def diff_recorder(options: Options, output: Output) -> None:
    """Prints a short file to copy to the machine of a port: it writes down every step of the port, needs no tinytf, and
    tinytf diff --versus reads what it wrote. PROGRAM is torch, numpy, jax, mlx, vllm, llama.cpp or c; without it, lists
    them.
    """
    from tinytf import recorders

    output.draw(recorders.Recorders() if options.program is None else recorders.recorder(options.program))
