"""``python -m tinytf`` is ``tinytf``."""

from tinytf_cli.__main__ import main

main()
