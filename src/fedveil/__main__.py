"""``python -m fedveil`` is the command line."""

from fedveil.cli import main

main()
