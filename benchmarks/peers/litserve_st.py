"""LitServe around sentence-transformers, batching up to 32 requests for at most 5 ms.

python litserve_st.py MODEL PORT
"""

import sys
from itertools import chain

import litserve
from sentence_transformers import SentenceTransformer


class Embed(litserve.LitAPI):
    """TEI's POST /embed."""

    def setup(self, device):
        """Load the model, in the worker's process."""
        self.model = SentenceTransformer(sys.argv[1], device=device)
        self.model.max_seq_length = 512  # it would cut at 256

    def decode_request(self, request):
        """Return the texts of one request."""
        return request["inputs"]

    def batch(self, inputs):
        """Return requests as they are: each may hold several texts."""
        return inputs

    def predict(self, inputs):
        """Encode all requests' texts in one call; return each request's own vectors."""
        vectors = iter(self.model.encode(list(chain(*inputs)), normalize_embeddings=True).tolist())
        return [[next(vectors) for _ in texts] for texts in inputs]

    def unbatch(self, output):
        """Return one answer a request."""
        return output

    def encode_response(self, output):
        """Return what is sent."""
        return output


if __name__ == "__main__":
    api = Embed(max_batch_size=32, batch_timeout=0.005, api_path="/embed")
    server = litserve.LitServer(api, accelerator="cpu", timeout=120)
    server.run("127.0.0.1", sys.argv[2], generate_client_file=False, log_level="warning")
