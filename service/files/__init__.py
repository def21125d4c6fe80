"""A model's files: found, loaded, and made where one is missing.

MKL, with which torch multiplies on x86, reads MKL_CBWR at its first product: before any model is
loaded it is told here to give the same bits wherever in memory a matrix lies and whatever the
number of threads (docs/decisions/0026-strict-products.md). A user's own value stays, if it is as
strict: machine.check_same_bits.

tokenizers takes a thread for each core, but is no faster with more than three; the lanes need the
others.
"""

import os

from service.tables.cores import count_cores

TOKENIZER_THREADS = 3

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("RAYON_NUM_THREADS", str(min(TOKENIZER_THREADS, count_cores())))
