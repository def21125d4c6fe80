"""Classes, huggingface-hub 1.33.0: text_classification.

It returns only the best class, as with TEI.

Raises HfHubHTTPError.
"""

from huggingface_hub import InferenceClient

client = InferenceClient("http://127.0.0.1:8000")
best = client.text_classification(texts[0])
classes = [(best.label, best.score)]
