"""POST /v1/encode: its request, which other APIs make too, and how its answer is written."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Tag

from model.config import Side
from model.text.tokenizer import Truncate
from service.pipeline.write import answer
from service.shapes.answer import Answer
from service.shapes.ask import Ask
from service.shapes.inputs import Attention, Floats, Gates, Inputs, SweepField, Texts
from service.shapes.outputs import (
    Classify,
    LabelTokens,
    MultiVector,
    Pooled,
    ScoreReason,
    Sparse,
    Wanted,
)
from service.tables.wording.wire import Integers

# A field that is true, false or an object with options
BY_KIND = Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<how>")
Switch = Annotated[bool, Tag("<switch>")]
PooledField = Annotated[Switch | Annotated[Pooled, Tag("<how>")], BY_KIND]
ClassifyField = Annotated[Switch | Annotated[Classify, Tag("<how>")], BY_KIND]
LabelTokensField = Annotated[Switch | Annotated[LabelTokens, Tag("<how>")], BY_KIND]
SparseField = Annotated[Switch | Annotated[Sparse, Tag("<how>")], BY_KIND]
MultiVectorField = Annotated[Switch | Annotated[MultiVector, Tag("<how>")], BY_KIND]


class EncodeRequest(Ask):
    """The body of POST /v1/encode."""

    question: ClassVar = "service.questions.encode.question:Encode"

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    inputs: Inputs
    """What to encode: 1 to `max_sequences` texts, pairs, token ids and embeddings, mixed."""
    truncate: Truncate | None = None
    """What happens to a sequence of more than `max_tokens` tokens: it is refused, or cut on this
    side; left out or null: `truncate` of GET /info."""
    pooled: PooledField = True
    """Whether to answer one vector for each input, and how it is made; true: the checkpoint's own
    way."""
    tokens: bool = False
    """Whether to answer the last layer's vector of each token, special tokens included."""
    layers: Integers = ()  # type: ignore[assignment]  # pydantic copies a list for each request
    """Hidden states to answer: 0 is the embeddings, i the output of i layers, -1 the last."""
    attention: Attention | None = None
    """What to show of the attention; left out or null: nothing, and nothing is computed for it."""
    gates: Gates = ()  # type: ignore[assignment]  # pydantic copies a list for each request
    """Heads to scale or drop, in this request alone."""
    sweep: SweepField | None = None
    """Heads to scale one at a time, "heads" for all of them: how far each moves the vector, and
    with `classify` the logits."""
    classify: ClassifyField = False
    """Whether to answer the classes of each input, pairs included, of a checkpoint that has
    them: "classify" stands in `tasks` of GET /info."""
    label_tokens: LabelTokensField = False
    """Whether to answer a label for each token or word; "label_tokens" in `tasks`."""
    sparse: SparseField = False
    """Whether to answer weights over the vocabulary; "sparse" in `tasks`."""
    multi_vector: MultiVectorField = False
    """Whether to answer a vector for each token that is kept, of inputs read as documents or as
    queries; "multi_vector" in `tasks`."""
    reason: ScoreReason | None = None
    """With `classify` or `label_tokens`: which input tokens or words the best class's logit rests
    on, less the next one's, or each best label's. Without `sweep` and `patch`."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: the task's instruction or,
    without one, `default_prompt_name` of GET /info."""
    task: str | None = None
    """The adapter that is added to the model, by its name alone: a task of the checkpoint's own,
    such as "retrieval.query", or one of `--adapter`. Left out: the one that `model` names, or
    none."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""
    dtype: Floats = "float32"
    """Number format of vectors; `attention` has its own."""

    @staticmethod
    def of(texts: Texts, **fields: Any) -> "EncodeRequest":
        """Return a request for these texts, with fields that another API's request has checked."""
        return BLANK.altered(inputs=texts, **fields)

    @property
    def role(self) -> Side | None:
        """Return the side that the inputs are encoded for, "query" or "document", if either."""
        role: Side | None = "document" if self.multi_vector is True else None
        for how in (self.sparse, self.multi_vector):
            role = role if isinstance(how, bool) else how.role
        return role

    @property
    def wanted(self) -> list[Wanted]:
        """Return the tasks that are asked for, with their options."""
        fields = (
            (self.classify, Classify),
            (self.label_tokens, LabelTokens),
            (self.sparse, Sparse),
            (self.multi_vector, MultiVector),
        )
        wanted = list[Wanted]()
        for how, task in fields:
            if how is not False:
                wanted.append(task() if how is True else how)
        return wanted

    def texts(self) -> Texts:
        return self.inputs

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        return answer.to_json(encoded)

    def write_file(self, encoded: Answer) -> Iterator[bytes]:
        return answer.write_safetensors(encoded)


BLANK = EncodeRequest.model_construct(inputs=[])  # copied by `of`, with the defaults of all fields
