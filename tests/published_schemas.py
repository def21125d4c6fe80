"""What other APIs' published schemas require of an answer, each copied by hand from its source.

Only what is required, with its type: an answer may hold more. Where a source contradicts itself,
its entry here says what is left out.
"""

from typing import Any, NamedTuple

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


def required(**properties: Schema) -> Schema:
    """An object that has all of these."""
    return {"type": "object", "properties": properties, "required": [*properties]}


def each(schema: Schema) -> Schema:
    """A list of one such value or more."""
    return {"type": "array", "items": schema, "minItems": 1}


def is_word(word: str) -> Schema:
    """One string alone."""
    return {"const": word}


class Published(NamedTuple):
    """An answer that a source describes.

    Args:
        source: where it was read, and when it was last changed.
        path: the route.
        body: a request that the route answers.
        ranks: whether it is asked of a reranker.
    """

    source: str
    path: str
    body: dict[str, Any] | None
    schema: Schema
    ranks: bool = False


VECTOR = each(NUMBER)
ERROR = required(message=TEXT, type=TEXT, param={}, code={})
RANKED = required(index=COUNT, relevance_score=NUMBER)
TEXTS = ["All is well", "A dog ate the food"]
INPUT: dict[str, Any] = {"input": TEXTS, "model": "all-MiniLM-L6-v2"}
INPUTS: dict[str, Any] = {"inputs": TEXTS}
RANK: dict[str, Any] = {"query": "Is it well?", "documents": TEXTS, "model": "my-reranker"}
OPENAI = "openai/openai-openapi, openapi.yaml, 2026-08-21: "
COHERE = "cohere-ai/cohere-developer-experience, cohere-openapi.yaml, 2026-08-20: "
TEI = "huggingface/text-embeddings-inference, docs/openapi.json, 2026-07-24: "
EMBEDDING = required(index=COUNT, object=is_word("embedding"), embedding=VECTOR)
MODEL = required(id=TEXT, object=is_word("model"), created=COUNT, owned_by=TEXT)

PUBLISHED = {
    "OpenAI, embeddings": Published(
        f"{OPENAI}CreateEmbeddingResponse",
        "/v1/embeddings",
        INPUT,
        required(
            object=is_word("list"),
            model=TEXT,
            data=each(EMBEDDING),
            usage=required(prompt_tokens=COUNT, total_tokens=COUNT),
        ),
    ),
    "OpenAI, models": Published(
        f"{OPENAI}ListModelsResponse",
        "/v1/models",
        None,
        required(object=is_word("list"), data=each(MODEL)),
    ),
    "OpenAI, an error": Published(
        f"{OPENAI}ErrorResponse", "/v1/embeddings", {**INPUT, "input": []}, required(error=ERROR)
    ),
    "Mistral, embeddings": Published(
        "mistralai/platform-docs-public, openapi.yaml, 2026-08-21: EmbeddingResponse, whose usage "
        "may hold nothing else",
        "/v1/embeddings",
        {**INPUT, "output_dtype": "int8"},
        required(
            id=TEXT,
            object=TEXT,
            model=TEXT,
            data=each(required(object=TEXT, embedding=VECTOR, index=COUNT)),
            usage=required(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT)
            | {"additionalProperties": False},
        ),
    ),
    "Voyage, embeddings": Published(
        "docs.voyageai.com/reference/embeddings-api; voyageai 0.5 for npm and Python",
        "/v1/embeddings",
        {**INPUT, "input_type": "document", "truncation": True},
        required(
            object=is_word("list"),
            model=TEXT,
            data=each(EMBEDDING),
            usage=required(total_tokens=COUNT),
        ),
    ),
    "Voyage, rerank": Published(
        "docs.voyageai.com/reference/reranker-api; voyageai 0.5 for Python, which reads `data`",
        "/v1/rerank",
        {**RANK, "top_k": 2, "truncation": True},
        required(
            object=is_word("list"),
            model=TEXT,
            data=each(RANKED),
            usage=required(total_tokens=COUNT),
        ),
        ranks=True,
    ),
    "Cohere, embed": Published(
        f"{COHERE}/v2/embed, which also requires `api_version`, a field that it does not describe",
        "/v2/embed",
        {"texts": TEXTS, "model": "all-MiniLM-L6-v2", "input_type": "search_query"},
        required(
            id=TEXT,
            embeddings=required(float=each(VECTOR)),
            meta=required(api_version=required(version=TEXT)),
        ),
    ),
    "Cohere, rerank": Published(
        f"{COHERE}/v2/rerank; `id` and `meta` as in its example, which @ai-sdk/cohere 3 requires",
        "/v2/rerank",
        RANK,
        required(id=TEXT, results=each(RANKED), meta=required(api_version=required(version=TEXT))),
        ranks=True,
    ),
    "Cohere, the former rerank": Published(
        f"{COHERE}/v1/rerank",
        "/v1/rerank",
        {**RANK, "return_documents": True},
        required(
            results=each(
                required(index=COUNT, relevance_score=NUMBER, document=required(text=TEXT))
            )
        ),
        ranks=True,
    ),
    "Together, rerank": Published(
        "togethercomputer/openapi, openapi.yaml, 2026-04-28: RerankResponse, whose `object` is "
        '"rerank" where Voyage\'s is "list", which is answered',
        "/v1/rerank",
        {**RANK, "return_documents": True},
        required(
            model=TEXT,
            results=each(
                required(index=COUNT, relevance_score=NUMBER, document=required(text=TEXT))
            ),
            usage=required(prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT),
        ),
        ranks=True,
    ),
    "Together, an error": Published(
        "@ai-sdk/togetherai 2.0: togetheraiErrorSchema",
        "/v1/rerank",
        {**RANK, "query": ""},
        required(error=required(message=TEXT)),
        ranks=True,
    ),
    "Jina, embeddings": Published(
        "llama-index-embeddings-jinaai 0.7, jina-haystack 2.0: what both read",
        "/v1/embeddings",
        {**INPUT, "embedding_type": "float", "task": None},
        required(
            model=TEXT,
            data=each(required(index=COUNT, embedding=VECTOR)),
            usage=required(total_tokens=COUNT),
        ),
    ),
    "Jina, rerank": Published(
        "llama-index-postprocessor-jinaai-rerank 0.6, jina-haystack 2.0: what both read",
        "/v1/rerank",
        {**RANK, "top_n": 1},
        required(model=TEXT, results=each(RANKED), usage=required(total_tokens=COUNT)),
        ranks=True,
    ),
    "NIM, ranking": Published(
        "docs.nvidia.com/nim/nemo-retriever/text-reranking/2.3/using-reranking.html",
        "/v1/ranking",
        {"query": {"text": "Is it well?"}, "passages": [{"text": text} for text in TEXTS]},
        required(rankings=each(required(index=COUNT, logit=NUMBER))),
        ranks=True,
    ),
    "TEI, embed": Published(f"{TEI}EmbedResponse", "/embed", INPUTS, each(VECTOR)),
    "TEI, embed_all": Published(f"{TEI}EmbedAllResponse", "/embed_all", INPUTS, each(each(VECTOR))),
    "TEI, similarity": Published(
        f"{TEI}SimilarityResponse",
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": TEXTS}},
        VECTOR,
    ),
    "TEI, tokenize": Published(
        f"{TEI}TokenizeResponse",
        "/tokenize",
        INPUTS,
        each(each(required(id=COUNT, text=TEXT, special={"type": "boolean"}))),
    ),
    "TEI, decode": Published(f"{TEI}DecodeResponse", "/decode", {"ids": [101, 102]}, each(TEXT)),
    "TEI, rerank": Published(
        f"{TEI}RerankResponse",
        "/rerank",
        {"query": "a", "texts": TEXTS},
        each(required(index=COUNT, score=NUMBER)),
        ranks=True,
    ),
    "TEI, info": Published(
        f"{TEI}Info",
        "/info",
        None,
        required(
            **dict.fromkeys(("model_id", "model_dtype", "served_model_name", "version"), TEXT),
            **dict.fromkeys(("max_concurrent_requests", "max_input_length"), COUNT),
            **dict.fromkeys(("max_batch_tokens", "max_client_batch_size"), COUNT),
            auto_truncate={"type": "boolean"},
            tokenization_workers=COUNT,
            model_type={"type": "object"},
        ),
    ),
    "TEI, an error": Published(
        f"{TEI}ErrorResponse", "/embed", {"inputs": []}, required(error=TEXT, error_type=TEXT)
    ),
}
