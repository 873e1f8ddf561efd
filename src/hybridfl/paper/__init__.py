"""Every figure and number of the paper, rebuilt: what is run, what is drawn, and what becomes of each claim."""
