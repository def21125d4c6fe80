"""What the native routes answer, as types for the document of the API."""

from typing import Annotated, Any, Literal

from typing_extensions import TypeAliasType, TypedDict

from model.task_heads import Task
from service.api.native.attention import (
    AttentionAnswer,
    Characters,
    Rows,
    Span,
    SweptInput,
    Tokens,
    Vector,
)
from service.api.tei.answers import TEIInfo
from service.api.types import Closed, Provenance, about, one_of
from service.encode.request import Floats
from service.refusals import REFUSALS


class Class(Closed):
    """One class of an input."""

    label: Annotated[str, about("Its name.", "joy")]
    score: Annotated[float, about("What the activation makes of the logit.", 0.93)]
    logit: Annotated[float, about("What the head gives.", 2.58)]


class Label(Closed):
    """The best label of a token or word."""

    label: Annotated[str, about("Its name.", "B-PER")]
    score: Annotated[float, about("Its probability.", 0.98)]


class SparseVector(Closed):
    """Weights of the vocabulary's tokens, those above the threshold."""

    indices: Annotated[Vector, about("Places in the vocabulary, ascending.", [2035, 2092])]
    values: Annotated[Vector, about("The weight of each.", [0.5, 1.25])]
    tokens: Annotated[list[str | None], about("The token of each.", ["all", "well"])]


class InputTokens(Closed, total=False):
    """The tokens of one input."""

    tokens: Annotated[
        list[str | None] | None, about("The tokens, special ones included; null of embeddings.")
    ]
    token_ids: Annotated[
        list[int] | None, about("Each token's place in the vocabulary; null of embeddings.")
    ]
    offsets: Annotated[
        list[Characters] | None,
        about(
            "Where each token stands in its text, in characters: [start, end); [0, 0] if special. "
            "null where the input is no text."
        ),
    ]
    words: Annotated[
        list[int | None] | None,
        about(
            "The word of each token, counted from 0; null for a special token, and where the input "
            "is no text."
        ),
    ]
    special: Annotated[
        list[bool] | None, about("Whether each token is a special one; null of embeddings.")
    ]


class SpanVector(Closed):
    """One span of a text."""

    characters: Annotated[Characters, about("The span as it was sent, [start, end).")]
    tokens: Annotated[Span, about("Its tokens, [first, last): each that has a character in it.")]
    extent: Annotated[
        Characters,
        about("The characters of these tokens: more than the span where an edge is inside one."),
    ]
    pooled: Annotated[Vector, about("One vector for these tokens, (width,) or (dimensions,).")]


class Requested(InputTokens, total=False):
    """What was asked for of one input; tokens come with their vectors, layers and attention."""

    segments: Annotated[list[int], about("Of a pair: which text each token is of, 0 or 1.")]
    pooled: Annotated[Vector, about("One vector for the input, (width,) or (dimensions,).")]
    token_vectors: Annotated[Rows, about("The last layer's vector of each token, (tokens, width).")]
    spans: Annotated[list[SpanVector], about("The spans of this input, in its order.")]
    layers: Annotated[
        dict[str, Tokens],
        about(
            "Hidden states, each (tokens, width), keyed by their number; -1 comes as the last's."
        ),
    ]
    classes: Annotated[list[Class], about("The classes, in the checkpoint's order.")]
    labels: Annotated[
        list[Label | None],
        about("The label of each token, null for a special one; or of each word, in order."),
    ]
    sparse: Annotated[SparseVector, about("Weights over the vocabulary.")]
    vectors: Annotated[
        Rows,
        about(
            "Of many vectors: one of length 1 for each token kept, (kept, size).",
            [[0.6, 0.8], [1.0, 0.0]],
        ),
    ]
    kept: Annotated[
        Vector, about("The token of each of `vectors`, counted from 0.", [0, 1, 2, 3, 5])
    ]
    sweep: Annotated[SweptInput, about("What scaling each head alone does.")]
    attention: Annotated[AttentionAnswer, about("The attention, in the form of the request.")]


class Encoding(Requested):
    """One input's share of the answer; null is what cannot be known of its tokens."""

    truncated: Annotated[bool, about("Whether the input was cut.")]
    length: Annotated[int, about("Tokens before it was cut.")]


class Usage(Closed):
    """What a request took."""

    tokens: Annotated[int, about("Tokens computed, special tokens included.")]
    attention_bytes: Annotated[
        int, about("Bytes of the attention's arrays, before they are written.")
    ]
    answer_bytes: Annotated[
        int,
        about(
            "Bytes of all arrays, before they are written; of sparse vectors, as many as they may "
            "have."
        ),
    ]
    queue_ms: Annotated[float, about("Milliseconds that the request waited for the model.")]
    compute_ms: Annotated[float, about("Milliseconds that the model took.")]


class Answer(Provenance):
    """What POST /v1/encode answers."""

    dtype: Annotated[Floats, about("Number format of the vectors.")]
    data: Annotated[list[Encoding], about("One entry for each input, in order.")]
    usage: Annotated[Usage, about("What the request took.")]


class Priced(Closed):
    """What POST /v1/encode?dry_run=true answers."""

    tokens: Annotated[int, about("Tokens to compute, special tokens included.")]
    attention_bytes: Annotated[
        int, about("Bytes of the attention's arrays, before they are written.")
    ]
    answer_bytes: Annotated[
        int,
        about(
            "Bytes of all arrays, before they are written; of sparse vectors, as many as they may "
            "have."
        ),
    ]
    flops: Annotated[int, about("Floating-point operations; a product and its sum are two.")]
    admitted: Annotated[bool, about("Whether the request would be answered now.")]
    code: Annotated[
        Literal[
            None,
            "attention_too_large",
            "answer_too_large",
            "overloaded",
            "deadline_unreachable",
            "deadline_exceeded",
        ],
        about("What it would be refused with; null where it would be answered."),
    ]
    retry_after_s: Annotated[
        int | None, about("Seconds after which to try again; null where that does not help.")
    ]


class Scores(Closed):
    """A measure of a head, and what it is compared with; null where there is none."""

    score: Annotated[
        float | None, about("What was measured, 0 to 1; of a relation the share of controls won.")
    ]
    threshold: Annotated[float | None, about("The least score that counts.")]
    baseline: Annotated[
        float | None,
        about(
            "What a head that looks everywhere alike scores; of a relation the best blind guess."
        ),
    ]


class Role(Scores):
    """A role that a head fills."""

    role: Annotated[str, about("Name of the role.")]


class MeasuredHead(Scores):
    """What one head does."""

    layer: Annotated[int, about("The layer, counted from 0.")]
    head: Annotated[int, about("The head of that layer, counted from 0.")]
    role: Annotated[str | None, about("Its foremost role; null: it fills none.")]
    also: Annotated[list[Role], about("Other roles that it fills.")]
    measures: Annotated[
        dict[str, float | None],
        about("Every measure by name: means over the corpus, 0 to 1; `offset` is in tokens."),
    ]


class Relation(Scores):
    """Whether a head finds a relation between words."""

    kind: Annotated[
        str | None, about("What it belongs to: coreference, grammar or syntax; null of your own.")
    ]
    found: Annotated[str, about("The head, such as L5H11, or: no head found.")]
    head: Annotated[str | None, about("The same; null where none was found.")]
    reason: Annotated[str | None, about("Why no head was found; null where one was.")]
    candidate: Annotated[
        str | None, about("The head that does best on the sentences to choose by.")
    ]
    offset: Annotated[
        int | None, about("The fixed offset that does best on the controls, in words.")
    ]
    items: Annotated[int, about("Sentences that the candidate was chosen by.")]
    controls: Annotated[int, about("Sentences that it was judged by.")]


class Corpus(Closed):
    """The sentences that heads were measured on."""

    name: Annotated[str, about("Name of the corpus's file.")]
    digest: Annotated[str, about("SHA-256 of the file, its first 12 digits.")]
    sentences: Annotated[int, about("How many sentences it holds.")]


class Heads(Closed):
    """What GET /v1/heads answers."""

    model: Annotated[str, about("Name of the model that is served.")]
    weights: Annotated[
        str, about("Digest of the weights and of all else in the checkpoint that shapes a vector.")
    ]
    corpus: Annotated[Corpus, about("The corpus that they were measured on.")]
    thresholds: Annotated[dict[str, float], about("The least score of each role by position.")]
    margin: Annotated[float, about("How far a relation's threshold lies above its baseline.")]
    heads: Annotated[list[MeasuredHead], about("Every head, layer by layer.")]
    relations: Annotated[dict[str, Relation], about("Every relation of the corpus by its name.")]


class Info(Provenance, TEIInfo):
    """The replica's own, then what clients of other APIs look for."""

    dtype: Annotated[str, about("Number format that the model runs in.")]
    revision: Annotated[str | None, about("Commit of the hub; null of a folder.")]
    family: Annotated[str, about("The checkpoint's architecture.")]
    tasks: Annotated[
        list[Task], about("What requests may ask of the model; all but encode take a head.")
    ]
    trained: Annotated[bool, about("false: the weights are random, of a preset.")]
    layers: Annotated[int, about("How many layers it has.")]
    heads: Annotated[int, about("How many heads each layer has.")]
    width: Annotated[int, about("Numbers in a token's vector.")]
    embedding_width: Annotated[int, about("Numbers in each vector of `embeddings` inputs.")]
    max_tokens: Annotated[int, about("Longest sequence, tokens, special tokens included.")]
    pooling: Annotated[
        str, about("How token vectors become one; several, joined by +, stand side by side.")
    ]
    normalize: Annotated[
        bool,
        about(
            "Whether pooled vectors are scaled to length 1; those of POST /v1/embeddings always "
            "are."
        ),
    ]
    pooling_from: Annotated[
        Literal["checkpoint", "default"],
        about(
            "Who says so: the checkpoint's modules, or nobody. A plain checkpoint is pooled by "
            "the mean and not normalised."
        ),
    ]
    prompts: Annotated[list[str], about("Names of the checkpoint's prompts.")]
    default_prompt_name: Annotated[
        str | None, about("The prompt that goes before texts where a request names none.")
    ]
    device: Annotated[str, about("Where the model runs.")]
    limits: Annotated[
        dict[str, float],
        about(
            "Every limit of the service by its setting's name, in bytes, seconds, tokens, "
            "characters or requests; docs/limits.md has each."
        ),
    ]
    versions: Annotated[dict[str, str], about("Versions of Headlight and of what computes.")]


class Live(Closed):
    """The process answers."""

    status: Annotated[Literal["live"], about("Always live; a process that is not is silent.")]


class Ready(Closed):
    """The forward path lately proved itself."""

    status: Annotated[Literal["ready"], about("Always ready; otherwise the answer is 503.")]


class TargetGroup(Closed):
    """Addresses that are asked alike."""

    targets: Annotated[list[str], about("host:port of each replica that runs.")]
    labels: Annotated[dict[str, str], about("The path and the scope that Prometheus asks for.")]


Targets = TypeAliasType(
    "Targets", Annotated[list[TargetGroup], about("As Prometheus reads it: http_sd_configs.")]
)

Code = Annotated[str, one_of(sorted(REFUSALS))]
Change = Annotated[dict[str, Any], about("A change to the request.")]


class Fault(Closed):
    """One thing wrong with a request."""

    loc: Annotated[
        list[str | int], about("Where in the request: fields by name, list entries from 0.")
    ]
    code: Annotated[Code, about("What is wrong, for programs.")]


class ProblemFacts(TypedDict, total=False):
    """What helps the caller, by code."""

    bytes: Annotated[int, about("Of an answer too large: bytes of its arrays.", 11751552)]
    limit: Annotated[
        int, about("The limit that the request exceeds, in the unit of what exceeds it.")
    ]
    length: Annotated[int, about("Of sequence_too_long: its tokens.", 300)]
    tokens: Annotated[int, about("Of too_many_tokens: the request's tokens.", 65792)]
    layer: Annotated[
        int,
        about("Of nonfinite_output: the first hidden state that is not finite; -1: the last.", 3),
    ]
    layers: Annotated[int, about("Of index_out_of_range: how many layers the model has.")]
    heads: Annotated[int, about("Of index_out_of_range: how many heads a layer has.")]
    count: Annotated[
        int,
        about("Of index_out_of_range, of a row named by a word: how often it stands in the input."),
    ]
    dtype: Annotated[
        str, about("Of nonfinite_output: the number format that does not hold it.", "float16")
    ]
    estimate_ms: Annotated[
        int,
        about("Of deadline_unreachable: milliseconds that it takes at the best speed seen.", 45000),
    ]
    deadline_ms: Annotated[
        int, about("Of deadline_unreachable: milliseconds that it may take.", 30000)
    ]
    tasks: Annotated[
        list[str], about("Of task_not_found: what the model can do.", ["encode", "classify"])
    ]
    prompts: Annotated[
        list[str], about("Of prompt_not_found: the names there are.", ["document", "query"])
    ]
    fits: Annotated[
        list[Change],
        about(
            "Changes that would each make it fit, cheapest first.",
            [{"form": "stats", "bytes": 3168}],
        ),
    ]
    errors: Annotated[list[Fault], about("What is wrong where, ten entries at most.")]


class Problem(ProblemFacts):
    """A refusal, as RFC 9457 words it; a code may bring facts of its own."""

    type: Annotated[Literal["about:blank"], about("RFC 9457's; `code` says what it is.")]
    title: Annotated[str, about("What is wrong, in one sentence.")]
    status: Annotated[int, about("The HTTP status.")]
    code: Annotated[Code, about("What is wrong, for programs.")]
    detail: Annotated[str, about("What is wrong, for people.")]
    request_id: Annotated[str, about("The request's X-Request-Id, to find it in the log.")]
