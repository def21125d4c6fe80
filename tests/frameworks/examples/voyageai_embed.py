"""Embeddings, voyageai 0.5.0: embed.

It asks for base64 of the numbers that `output_dtype` names.

Raises InvalidRequestError.
"""

import numpy as np
import voyageai

client = voyageai.Client(api_key="none", base_url="http://127.0.0.1:8000/v1")
how = {"model": "all-MiniLM-L6-v2", "input_type": "document"}
vectors = client.embed(texts, **how).embeddings
packed = client.embed(texts, **how, output_dtype="ubinary").embeddings
bits = np.unpackbits(np.array(packed, dtype=np.uint8), axis=1).tolist()
