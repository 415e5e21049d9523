"""`python -m tailrace`: the command line where no script is installed."""

from tailrace.cli import main

main(prog_name="tailrace")
