"""The console script, and ``python -m tinytf_cli``. From the first moment, Ctrl-C prints one line and no traceback."""

import os
import signal


def main() -> None:
    """Run the command line. Its imports take a tenth of a second, in which only this handler catches Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from tinytf_cli.main import main as run_main

    run_main()


def _leave(*_: object) -> None:
    os.write(2, b"tinytf: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
