"""Embeddings, langchain-openai 1.7.3.

Needs `check_embedding_ctx_length=False`: otherwise it sends ids of an OpenAI model's
vocabulary, which mean other words here. To cut long chunks, add `model_kwargs={"extra_body":
{"truncate": "right"}}`; for whole numbers, `model_kwargs={"encoding_format": "int8"}`.

Raises BadRequestError.
"""

from langchain_openai import OpenAIEmbeddings

embeddings = OpenAIEmbeddings(
    base_url="http://127.0.0.1:8000/v1",
    api_key="none",
    model="all-MiniLM-L6-v2",
    check_embedding_ctx_length=False,
)
vectors = embeddings.embed_documents(texts)
