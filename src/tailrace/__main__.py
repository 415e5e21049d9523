"""`python -m tailrace`."""

from tailrace.cli import main

main(prog_name="tailrace")
