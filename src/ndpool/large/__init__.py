"""Pooling of arrays that are larger than memory: tile by tile, from files to files."""
