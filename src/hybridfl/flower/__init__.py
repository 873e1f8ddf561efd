"""hybridfl on Flower: the algorithms of the simulator, unchanged, on real machines. Needs `pip install "hybridfl[flower]"`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
