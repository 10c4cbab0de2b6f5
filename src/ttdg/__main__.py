"""`python -m ttdg` is the command `ttdg`."""

from ttdg.cli import main

main()
