"""``python -m tinytf`` is ``tinytf``."""

from tinytf_cli.main import main

main()
