"""``python -m isolayer`` is the command line."""

from isolayer.cli import main

main()
