"""hybridfl on Flower: a server and a client around one task."""
