"""Our own routes that encode: one for each question."""

from service.api.own import question_route
from service.observe.families import OF_TEXT
from service.questions.classify import ZeroShotRequest
from service.questions.encode import EncodeRequest
from service.questions.highlight import HighlightRequest
from service.questions.maxsim import MaxsimRequest
from service.questions.similarity import ComparisonRequest

ROUTES = [
    question_route(
        "/v1/encode",
        "Encode texts, token ids or embeddings, with the attention asked for",
        EncodeRequest,
        kind="Answer | Priced",
    ),
    question_route(
        "/v1/similarity",
        "Why one text is like others: each cosine, and the pairs of tokens that make it",
        ComparisonRequest,
        kind="Compared | Priced",
    ),
    question_route(
        "/v1/maxsim",
        "Many vectors: how well each document answers a query, and which tokens match",
        MaxsimRequest,
        kind="Matched | Priced",
    ),
    question_route(
        "/v1/classify",
        "Texts by labels of your own, with a model of natural language inference",
        ZeroShotRequest,
        kind="Classified | Priced",
        inputs=OF_TEXT,
        more="As transformers' pipeline for zero-shot classification: each text and what the "
        "template makes of each label\nare a pair, and a label fits as far as the text entails "
        'it. It takes a classifier with a class whose name begins\nwith "entail": "zero_shot" '
        "in `tasks` of GET /info.",
    ),
    question_route(
        "/v1/highlight",
        "Which sentences or words of a document carry its score, and what is left without them",
        HighlightRequest,
        kind="Highlighted | Priced",
        inputs=(*OF_TEXT, "mixed"),  # documents are texts
        more="Scores documents as a query's answers, and shows the units that carry each score "
        "with a control: the score without\nthem, and without as many random ones. A reranker "
        "scores pairs, a model of many vectors by late interaction, any\nother by the cosine "
        "of its vectors.",
    ),
]
