"""ndpool for PyTorch: `ndpool.torch.functional` and `ndpool.torch.nn` in place of torch.nn.functional and torch.nn."""

from . import functional

__all__ = ["functional"]
