"""``tinytf config``: the user's defaults, and where each comes from."""

from tinytf_cli.command import command
from tinytf_cli.output import Output


@command("config")
def config(output: Output) -> None:
    """Shows every setting that is in force, and whether the environment, your file or nothing sets it. Options that are
    typed come first, then variables such as TINYTF_THEME, then the file, which TINYTF_CONFIG may name.
    """
    from tinytf_cli.config import configuration

    output.draw(configuration())
