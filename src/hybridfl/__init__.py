"""Federated learning that neither waits for slow devices nor throws their work away.

    from hybridfl import HFL, PaperDelays, Task, simulate

`__init__.pyi` lists what can be imported from here. A name is loaded when it is first used, so `import hybridfl` itself
does not load PyTorch.
"""

import logging
from importlib.metadata import version

import lazy_loader

from hybridfl.wording import say_harmlessly

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("hybridfl")

for _name in ("hybridfl", "flwr.hybridfl"):
    logging.getLogger(_name).addFilter(say_harmlessly)
