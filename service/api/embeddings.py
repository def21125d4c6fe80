"""The body of POST /v1/embeddings, as clients of OpenAI and of six other APIs send it.

Sources: OpenAI's openapi.yaml, CreateEmbeddingRequest; https://api.jina.ai/openapi.json of April
2026, EmbeddingsV3Request and EmbeddingsV5Request; the former name of `embedding_type`:
llama-index-embeddings-jinaai 0.7; the references of Voyage, Mistral and NVIDIA NIM; vLLM's and
llama.cpp's servers.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Tag
from typing_extensions import TypeAliasType

from model.text.tokenizer import Truncate
from service.api.inputs import Batch, CutEnd, Dimensions, Ids, MostTokens, Text, tag_form
from service.api.precisions import Precision
from service.shapes.inputs import Document, Documents
from service.shapes.outputs import SmallPrecision
from service.tables.wording.wire import ForeignRequest


def _tag_form(value: object) -> str:
    """Return the tag of the member of EmbeddingInputs that an input is, by its first entry."""
    if isinstance(value, dict):
        return "<document>"
    objects = isinstance(value, list) and value and isinstance(value[0], dict)
    return "<texts>" if objects else tag_form(value)


EmbeddingInputs = TypeAliasType(
    "EmbeddingInputs",
    Annotated[
        Text
        | Annotated[Document, Tag("<document>")]
        | Annotated[Documents, Tag("<texts>")]
        | Ids
        | Batch,
        Discriminator(_tag_form),
    ],
)
Cut = Annotated[  # of a text that is too long: whether, or on which side
    Annotated[bool, Tag("<switch>")] | Annotated[Truncate | CutEnd, Tag("<side>")],
    Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<side>"),
]
Form = Annotated[  # some clients send a list of one
    Precision, BeforeValidator(lambda value: value[0] if _is_alone(value) else value)
]


def _is_alone(value: object) -> bool:
    """Tell whether a value is a list of one entry."""
    return isinstance(value, list) and len(value) == 1


class EmbeddingsRequest(ForeignRequest):
    """The body of OpenAI's POST /v1/embeddings."""

    aliases: ClassVar = {
        "embedding_type": "encoding_format",  # Jina's
        "encoding_type": "encoding_format",  # Jina's former one, which LlamaIndex's client sends
        "embedding_types": "encoding_format",  # Cohere's
        "output_dimension": "dimensions",  # Voyage's
        "truncation": "truncate",  # Voyage's
        "prefix": "prompt",  # as Open WebUI may be set to
        "instruction": "prompt",
        "normalize": "normalized",  # vLLM's, as the next ones
        "use_activation": "normalized",
        "truncation_side": "truncate",
    }

    input: EmbeddingInputs
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`.
    Jina's clients may send a text as {"text": ..}."""
    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    encoding_format: Form = "float"
    """How vectors are written: as JSON numbers; as base64 of little-endian float32; or in fewer
    bytes, as whole numbers of one byte for each number ("int8", "uint8") or for eight of them
    ("binary", "ubinary"). Jina's `embedding_type` and Cohere's `embedding_types` of one entry are
    the same."""
    output_dtype: Literal["float", SmallPrecision] | None = None
    """Voyage's and Mistral's: the numbers, which `encoding_format` has as JSON ("float") or as
    base64 of their bytes."""
    dimensions: Dimensions | None = None
    """How many numbers of each vector to keep, the first ones, at most `width`; all where left
    out. The vector is cut, then scaled to length 1."""
    truncate: Cut | None = None
    """Headlight's own, and others': what happens to an input of more than `max_tokens` tokens: it
    is refused, or cut on this side; of Jina's, as of Voyage's `truncation`, true is "right" and
    false "refuse"; of NIM's, "NONE" is "refuse", "START" is "left" and "END" is "right". Left out
    or null: `truncate` of GET /info."""
    user: str | None = None
    """Who asks, for your own records; the service ignores it."""
    truncate_prompt_tokens: MostTokens | None = None
    """vLLM's: how many tokens of an input are read, special ones included; -1 is `max_tokens`. What
    is longer is cut as `truncate` says, on the right where that is left out."""
    normalized: bool = True
    """Jina's: whether vectors have length 1. False does not go with "int8" and "uint8"."""
    embd_normalize: Literal[-1, 2] | None = None
    """llama.cpp's: 2 is `normalized`, -1 is not; it has other lengths, which are refused."""
    prompt: str | None = None
    """What goes before each text, in place of the checkpoint's own prompts. `prefix` and
    `instruction` are the same."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: as `task` or `input_type`
    says, else its default."""
    input_type: str | None = None
    """Cohere's and others': what the texts are for, which chooses the checkpoint's prompt of that
    name, in any case, or of one that means the same. It is ignored where there is none."""
    task: str | None = None
    """Jina's: what the texts are for, which chooses the checkpoint's adapter of that name, in any
    case, and its instruction or, without one, its prompt of that name; for "retrieval.query" else
    "query", for "retrieval.passage" else "document", "passage" or "corpus". Refused where it has
    none."""
    late_chunking: bool | None = None
    """Jina's: true is refused, as each input is read alone; `spans` of POST /v1/encode are vectors
    of the parts of one text."""
    return_multivector: Literal[False] = False
    """Jina's: POST /embed_all has a vector for each token."""
    add_special_tokens: Literal[True] = True
    """vLLM's: token ids as `input` are read without."""
    embed_dtype: Literal["float32"] = "float32"
    """vLLM's: `encoding_format` has the smaller ones."""
    endianness: Literal["native", "little"] = "native"
    """vLLM's: base64 is little-endian."""
    modality: Literal["text"] = "text"
    """Infinity's: texts are all that is read."""
