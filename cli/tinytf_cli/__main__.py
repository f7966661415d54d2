"""``python -m tinytf_cli`` is ``tinytf``."""

from tinytf_cli.main import main

main()
