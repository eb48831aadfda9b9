"""ndpool for PyTorch: the same pooling, faster on the CPU, at any rank, and differentiable in every mode.

from ndpool.torch import functional as F, nn     # in place of torch.nn.functional and torch.nn
ndpool.torch.convert(model)                      # or in a model that exists
with ndpool.torch.patched(): ...                 # or in code that cannot be edited
"""

from . import door as door  # so that torch.compile finds it
from . import functional, nn
from .convert import Conversion, convert, patched
from .routing import PoolRuntimeError, PoolUnsupportedError

__all__ = ["Conversion", "PoolRuntimeError", "PoolUnsupportedError", "convert", "functional", "nn", "patched"]
