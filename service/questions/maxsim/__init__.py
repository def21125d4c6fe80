"""POST /v1/maxsim: its request, and how its answer is written."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from model.text.tokenizer import Truncate
from service.questions import compared
from service.questions.compared import BothOr, SidePrompts, Single, Singles
from service.shapes.answer import Answer
from service.shapes.ask import Ask
from service.shapes.inputs import Gates, Texts


class MaxsimRequest(Ask):
    """The body of POST /v1/maxsim."""

    question: ClassVar = "service.questions.maxsim.question:Maxsim"

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: Single
    """What the documents are to answer: a text, token ids or embeddings, as an input of
    POST /v1/encode."""
    documents: Singles
    """What is scored: one or more of the same, with the query at most `max_sequences`."""
    prompt_name: BothOr[SidePrompts] | None = None
    """The checkpoint's prompt that goes before the texts: one for both sides, or one for each;
    left out: `default_prompt_name` of GET /info."""
    truncate: Truncate | None = None
    """What happens to a sequence of more tokens than the checkpoint gives its side: it is refused,
    or cut on this side; left out or null: `truncate` of GET /info."""
    gates: Gates = []
    """Heads to scale or drop, in this request alone, on both sides."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""

    def texts(self) -> Texts:
        """Return the query, then the documents."""
        return [self.query, *self.documents]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return the answer as JSON: the query, then each document's score and matches."""
        return compared.to_json(encoded, "query", "results", "matches.", self.encoding)

    def write_file(self, encoded: Answer) -> Iterator[bytes]:
        return compared.write_file(encoded, "query", "results")
