"""The algorithms, one file each. Pure: they import the protocol, vectors, randomness and torch, and nothing that does I/O."""
