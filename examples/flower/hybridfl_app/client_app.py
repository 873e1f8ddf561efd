"""A device: enrols, trains and scores on what `load` gives it."""

from hybridfl.flower import client_app
from hybridfl_app.task import load

app = client_app(load)
