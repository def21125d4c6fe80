"""Our own routes that encode: one for each question."""

from service.api.own import FILE, question, reads
from service.observe.families import OF_TEXT
from service.questions.classify.wire import ZeroShotRequest
from service.questions.encode.wire import EncodeRequest
from service.questions.highlight.wire import HighlightRequest
from service.questions.maxsim.wire import MaxsimRequest
from service.questions.similarity.wire import ComparisonRequest

ROUTES = [
    question(
        "/v1/encode",
        "Encode texts, token ids or embeddings, with the attention asked for",
        EncodeRequest,
        reads(EncodeRequest, files=True),
        kind="Answer | Priced",
        answer_media=FILE,
    ),
    question(
        "/v1/similarity",
        "Why one text is like others: each cosine, and the pairs of tokens that make it",
        ComparisonRequest,
        reads(ComparisonRequest, files=True),
        kind="Compared | Priced",
        answer_media=FILE,
    ),
    question(
        "/v1/maxsim",
        "Many vectors: how well each document answers a query, and which tokens match",
        MaxsimRequest,
        reads(MaxsimRequest, files=True),
        kind="Matched | Priced",
        answer_media=FILE,
    ),
    question(
        "/v1/classify",
        "Texts by labels of your own, with a model of natural language inference",
        ZeroShotRequest,
        reads(ZeroShotRequest),
        kind="Classified | Priced",
        inputs=OF_TEXT,
        more="As transformers' pipeline for zero-shot classification: each text and what the "
        "template makes of each label\nare a pair, and a label fits as far as the text entails "
        'it. It takes a classifier with a class whose name begins\nwith "entail": "zero_shot" '
        "in `tasks` of GET /info.",
    ),
    question(
        "/v1/highlight",
        "Which sentences or words of a document carry its score, and what is left without them",
        HighlightRequest,
        reads(HighlightRequest),
        kind="Highlighted | Priced",
        inputs=(*OF_TEXT, "mixed"),  # documents are texts
        more="Scores documents as a query's answers, and shows the units that carry each score "
        "with a control: the score without\nthem, and without as many random ones. A reranker "
        "scores pairs, a model of many vectors by late interaction, any\nother by the cosine "
        "of its vectors.",
    ),
]
