"""What the routes of text-embeddings-inference (TEI) answer, as types for the document."""

from typing import Annotated, Literal

from typing_extensions import TypeAliasType

from service.api.types import Closed, about, one_of

ERROR_TYPES = {  # by code; of any other code OTHER_ERROR
    "batch_empty": "Empty",
    "token_out_of_range": "Tokenizer",
    "overloaded": "Overloaded",
    "internal": "Backend",
    "nonfinite_output": "Backend",
    "deadline_exceeded": "Backend",
    "not_ready": "Unhealthy",
}
OTHER_ERROR = "Validation"

Vector = Annotated[list[float], about("(width,)")]
Tokens = Annotated[list[list[float]], about("(tokens, width), special tokens included")]
Cosine = Annotated[float, about("between -1 and 1")]


class SimpleToken(Closed):
    """One token of a text."""

    id: Annotated[int, about("Its place in the vocabulary.")]
    text: Annotated[str, about("The part of the text that it stands for, or its own name.")]
    special: Annotated[bool, about("Whether the tokenizer added it.")]
    start: Annotated[
        int | None, about("Where it begins in the text, characters; null for a special token.")
    ]
    stop: Annotated[
        int | None, about("Where it ends in the text, characters; null for a special token.")
    ]


Vectors = TypeAliasType("Vectors", Annotated[list[Vector], about("One vector for each input.")])
TokenVectors = TypeAliasType(
    "TokenVectors", Annotated[list[Tokens], about("A vector for each token of each input.")]
)
Similarities = TypeAliasType(
    "Similarities",
    Annotated[list[Cosine], about("The cosine of the source with each other sentence.")],
)
Pieces = TypeAliasType(
    "Pieces", Annotated[list[list[SimpleToken]], about("The tokens of each text.")]
)
Texts = TypeAliasType("Texts", Annotated[list[str], about("The text of each list of ids.")])


class EmbeddingModel(Closed):
    """How vectors are pooled."""

    pooling: Annotated[str, about("As `pooling` of GET /info.")]


class ClassifyingModel(Closed):
    """The classes of a model."""

    id2label: Annotated[
        dict[str, str], about("Name of each class by its place.", {"0": "anger", "1": "joy"})
    ]
    label2id: Annotated[
        dict[str, int], about("Place of each class by its name.", {"anger": 0, "joy": 1})
    ]


class ModelType(Closed, total=False):
    """What the model is for: one of these."""

    embedding: Annotated[EmbeddingModel, about("It makes embeddings, dense or sparse (splade).")]
    classifier: Annotated[ClassifyingModel, about("It classifies; POST /predict.")]
    reranker: Annotated[ClassifyingModel, about("It has one class; POST /rerank.")]


class TEIInfo(Closed):
    """What TEI's clients look for in GET /info."""

    model_id: Annotated[str, about("For TEI's clients: `model`.")]
    model_sha: Annotated[str | None, about("For TEI's clients: `revision`.")]
    model_dtype: Annotated[str, about("For TEI's clients: `dtype`.")]
    served_model_name: Annotated[str, about("For TEI's clients: `model`.")]
    model_type: Annotated[ModelType, about("For TEI's clients: what the model is for.")]
    max_concurrent_requests: Annotated[
        int, about("For TEI's clients: `max_waiting_requests` of the limits.")
    ]
    max_input_length: Annotated[int, about("For TEI's clients: `max_tokens`.")]
    max_batch_tokens: Annotated[int, about("For TEI's clients: `batch_tokens` of the limits.")]
    max_batch_requests: Annotated[None, about("For TEI's clients; there is no such limit here.")]
    max_client_batch_size: Annotated[
        int, about("For TEI's clients: `max_sequences` of the limits.")
    ]
    auto_truncate: Annotated[
        Literal[True], about("For TEI's clients: on TEI's routes long texts are cut by default.")
    ]
    tokenization_workers: Annotated[int, about("For TEI's clients: threads that tokenize.")]
    version: Annotated[str, about("Version of Headlight.")]
    sha: Annotated[None, about("For TEI's clients; not known here.")]
    docker_label: Annotated[None, about("For TEI's clients; not known here.")]


class Prediction(Closed):
    """One class's score."""

    score: Annotated[float, about("Between 0 and 1, or the logit.", 0.93)]
    label: Annotated[str, about("Name of the class.", "joy")]


class Ranked(Closed):
    """One text's place and score."""

    index: Annotated[int, about("Its place among the texts, counted from 0.", 1)]
    score: Annotated[float, about("Between 0 and 1, or the logit.", 0.93)]


class Rank(Ranked, total=False):
    """One text's rank."""

    text: Annotated[str, about("The text, where the request asks for it.", "All is well")]


class SparseValue(Closed):
    """One weight of a sparse vector."""

    index: Annotated[int, about("Place of the token in the vocabulary.", 2092)]
    value: Annotated[float, about("Its weight, more than 0.", 1.25)]


Ranks = TypeAliasType("Ranks", Annotated[list[Rank], about("The texts, best first.")])
Classes = Annotated[list[Prediction], about("The classes, best first.")]
Predictions = TypeAliasType(
    "Predictions",
    Annotated[Classes | list[Classes], about("The classes of the input, or of each of a list.")],
)
SparseVectors = TypeAliasType(
    "SparseVectors",
    Annotated[list[list[SparseValue]], about("The weights of each input, by ascending index.")],
)


class TEIError(Closed):
    """A refusal."""

    error: Annotated[str, about("What is wrong, for people.")]
    error_type: Annotated[
        str,
        one_of(sorted({OTHER_ERROR, *ERROR_TYPES.values()})),
        about("What is wrong, in TEI's words."),
    ]
