"""`python -m hybridfl` is `hybridfl`."""

from hybridfl.cli import main

main()
