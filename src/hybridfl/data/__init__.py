"""Data sets, and how their samples are shared out among devices."""
