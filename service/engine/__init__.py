"""What runs: the queue, the batches, the lanes.

The files of a model are imported first: they say how MKL multiplies, before a lane has made a
product.
"""

from service import files

__all__ = ["files"]
