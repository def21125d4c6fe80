"""The API of Hugging Face's text-embeddings-inference (TEI).

Deliberate differences: token ids are encoded as given, where TEI decodes them and tokenizes the
text; a named prompt before token ids is refused. Source: text-embeddings-inference 1.9,
router/src/http/types.rs; what TEI leaves to its settings follows their defaults.
"""

from service.api.tei import embed, tasks, tokens
from service.observe.families import OF_TOKENS
from service.pipeline.find.names import only_sparse
from service.shapes.call import Call, ModelFacts, RequestHead


def main(body: bytes, head: RequestHead, served: ModelFacts) -> Call:
    """Parse a request of POST /: as /rerank, /predict, /embed_sparse or /embed, by the model."""
    if "rerank" in served.tasks:
        return tasks.parse_rerank(body, head, served)
    if "classify" in served.tasks:
        return tasks.parse_predict(body, head, served)
    return (tasks.parse_embed_sparse if only_sparse(served.tasks) else embed.parse_embed)(
        body, head, served
    )


ROUTES = [
    embed.API.post(
        "/",
        "TEI: as POST /embed",
        embed.EmbedRequest,
        main,
        inputs=OF_TOKENS,
        metric="/embed",
        more="Of a checkpoint with a head, POST / is what the head is for, as in TEI: POST /rerank "
        "of one class,\nPOST /predict of several, POST /embed_sparse of a SPLADE model, each with "
        "its own body and answer.",
        examples=embed.ONE_VECTOR_EXAMPLES,
    ),
    *embed.ROUTES,
    *tokens.ROUTES,
    *tasks.ROUTES,
]
