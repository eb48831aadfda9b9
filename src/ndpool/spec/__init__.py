"""The meaning of pooling, executable: read `axis`, then `law`, then `pool`. Pure Python, any rank, any scalar."""

from .axis import Axis, Window, adaptive, adaptive_end, adaptive_start, each, sliding, whole
from .law import SUM, Law, lp, maximum, mean, minimum, mode, smooth_max
from .pool import fold, forward, jvp, unpool, vjp
from .scalar import Dual, Interval

__all__ = [
    "SUM", "Axis", "Dual", "Interval", "Law", "Window", "adaptive", "adaptive_end", "adaptive_start", "each",
    "fold", "forward", "jvp", "lp", "maximum", "mean", "minimum", "mode", "sliding", "smooth_max",
    "unpool", "vjp", "whole",
]  # fmt: skip
