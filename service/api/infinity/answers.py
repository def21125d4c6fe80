"""What Infinity's routes answer, as types for the document of the API."""

from typing import Annotated, Literal

from service.api.openai.answers import EmbeddingsAnswer, EmbeddingsUsage
from service.api.tei.answers import Prediction
from service.api.types import Closed, about

Id = Annotated[str, about("Of this answer: infinity- and a UUID.", "infinity-6fe2")]
Created = Annotated[int, about("When it was made, in seconds since 1970.", 1790000000)]


class InfinityEmbeddings(EmbeddingsAnswer):
    """What POST /embeddings answers."""

    id: Id
    created: Created


class InfinityResult(Closed):
    """One document's score."""

    relevance_score: Annotated[float, about("Between 0 and 1, or the logit.", 0.93)]
    index: Annotated[int, about("Its place among the documents, counted from 0.", 1)]
    document: Annotated[
        str | None, about("The document, where the request asks for it; else null.", "All is well")
    ]


class InfinityRanks(Closed):
    """What POST /rerank answers to `documents`."""

    object: Annotated[Literal["rerank"], about("What this object is.", "rerank")]
    results: Annotated[list[InfinityResult], about("The documents, best first.")]
    model: Annotated[str, about("Name of the model that is served.", "my-reranker")]
    usage: Annotated[EmbeddingsUsage, about("What the request took.")]
    id: Id
    created: Created


class InfinityClasses(Closed):
    """What POST /classify answers."""

    object: Annotated[Literal["classify"], about("What this object is.", "classify")]
    data: Annotated[
        list[Annotated[list[Prediction], about("The classes of one, best first.")]],
        about("The classes of each text."),
    ]
    model: Annotated[str, about("Name of the model that is served.", "my-classifier")]
    usage: Annotated[EmbeddingsUsage, about("What the request took.")]
    id: Id
    created: Created


class InfinityStats(Closed):
    """What waits in the replica that answers."""

    queue_fraction: Annotated[float, about("Share of the room for waiting requests in use.")]
    queue_absolute: Annotated[int, about("Requests that wait.")]
    results_pending: Annotated[int, about("Batches that run.")]
    batch_size: Annotated[int, about("Inputs of a request, at most.")]


class InfinityModel(Closed):
    """The model that is served."""

    id: Annotated[str, about("The model's name.")]
    object: Annotated[Literal["model"], about("What this object is.")]
    owned_by: Annotated[Literal["infinity"], about("What Infinity's clients expect.")]
    created: Annotated[int, about("Always 0: a checkpoint does not say when it was made.")]
    backend: Annotated[Literal["torch"], about("What computes.")]
    capabilities: Annotated[
        list[Literal["embed", "rerank", "classify"]], about("What the model can do.")
    ]
    stats: Annotated[InfinityStats, about("What waits.")]


class InfinityModels(Closed):
    """What GET /models answers."""

    object: Annotated[Literal["list"], about("What this object is.")]
    data: Annotated[list[InfinityModel], about("The one model that is served.")]


class InfinityFault(Closed):
    """What is wrong."""

    message: Annotated[str, about("What is wrong, for people.")]
    type: Annotated[None, about("Always null.")]
    param: Annotated[None, about("Always null.")]
    code: Annotated[int, about("The status.")]


class InfinityError(Closed):
    """A refusal."""

    error: Annotated[InfinityFault, about("The fault.")]
