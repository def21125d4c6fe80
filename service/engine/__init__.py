"""What runs: the queue, the batches, the lanes."""

import service.files  # noqa: F401: it says how MKL multiplies, before any lane has made a product
