"""Attention step by step: POST /v1/attend, without a model, and POST /v1/explain, of a layer."""

from functools import partial

from service.api.dialect import RouteContext
from service.api.own import NATIVE, make_parser
from service.observe.families import OF_TEXT
from service.pipeline.worker import one_step
from service.pipeline.write.answer import write_pieces
from service.questions.explain import AttendBody, ExplainRequest
from service.shapes.call import Example, Reply, RequestHead


async def answer_attend(head: RequestHead, context: RouteContext) -> Reply:
    """Answer POST /v1/attend: attention over the request's own arrays, without a model."""
    from service.questions.explain.mechanism import mixed_arrays, read_mixture

    replica = context.replica
    read = partial(read_mixture, most=replica.settings.max_answer_json_bytes)
    mixture = await context.read(head, read)
    replica.admission.hold(mixture.price, head.record, mixture.request_bytes)
    mixing = one_step(partial(mixed_arrays, mixture))
    arrays = await replica.admission.lessons.run(mixing, context.deadline(head))
    return await context.write(head, write_pieces(arrays))


ROUTES = [
    NATIVE.post(
        "/v1/attend",
        "The bare mechanism: queries, keys and values, or scores and values, mixed by head",
        AttendBody,
        answers=answer_attend,
        kind="Attended",
        examples=[
            Example(
                "scores",
                "'well' takes 60 % of 'All' and 40 % of itself",
                '{"scores": [[0.6, 0.0, 0.4]], "probabilities": true, "value": [[10.0, 0.0], '
                '[1.0, 1.0], [0.0, 10.0]], "heads": 1}',
            ),
            Example(
                "queries, keys and values",
                "Two heads, a mask and a bias",
                '{"query": [[1.0, 0.0, 2.0, 0.0]], "key": [[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, '
                '0.0, 2.0]], "value": [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]], '
                '"heads": 2, "mask": [[true, true]], "bias": [[0.0, 0.5]]}',
            ),
        ],
    ),
    NATIVE.post(
        "/v1/explain",
        "One text through one layer, every step of it",
        ExplainRequest,
        make_parser(ExplainRequest),
        kind="Explained",
        inputs=OF_TEXT,
        examples=[
            Example("a layer", "Every step of layer 0", '{"text": "All is well", "layer": 0}'),
            Example(
                "with its weights",
                "The same, with what q, k and v are made of, to recompute them",
                '{"text": "All is well", "layer": 0, "weights": true}',
            ),
            Example(
                "a pair",
                "A pair of texts, cut where it is too long",
                '{"model": "all-MiniLM-L6-v2", "text": "Is it?", "pair": "It is", '
                '"layer": 5, "truncate": "right"}',
            ),
        ],
    ),
]
