"""CONTRIBUTING.md's five recipes are followed, each with a toy, in a copy of the project.

The toys: a family that transformers has and we do not, an API, a question, a probe that it is
answered by, and a metric. What a recipe says is all that is done, so that a list kept by hand that
no recipe names fails here.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parent.parent
RECIPE = re.compile(
    r"^- \*\*A (\w+)\*\*[^.]* takes (three|four|five) files\. (.*?)(?=^- \*\*)",
    re.MULTILINE | re.DOTALL,
)
NUMBERS = {"three": 3, "four": 4, "five": 5}
LEFT_OUT = shutil.ignore_patterns(".*", "build", "benchmarks", "ray", "cluster", "helm")

Change = Callable[[str], str]  # what a file's text becomes; a new one's is empty


def new(text: str) -> Change:
    """Make a file."""
    return lambda _: dedent(text).lstrip()


def after(*lines: tuple[str, str]) -> Change:
    """Put more behind each of these lines, of which there is one."""

    def change(text: str) -> str:
        for line, more in lines:
            assert text.count(f"{line}\n") == 1, line
            text = text.replace(f"{line}\n", f"{line}\n{more}")
        return text

    return change


FAMILY: Mapping[str, Change] = {
    "model/families/toy.py": new('''
        """data2vec-text, which is RoBERTa by another name."""

        from dataclasses import replace

        from model.families import roberta
        from model.families.family import TinyModel

        FAMILY = replace(
            roberta.ROBERTA,
            name="data2vec-text",
            prefixes=("data2vec_text.",),
            tiny_model=TinyModel("Data2VecText", roberta.TINY_ROBERTA),
        )
    '''),
    "model/families/__init__.py": after(
        ("    roberta,", "    toy,\n"), ("    roberta.CAMEMBERT,", "    toy.FAMILY,\n")
    ),
    "docs/models.md": after(
        (
            "| camembert | positions from the padding id on | 1.9e-06 | 0.99999 |",
            "| data2vec-text | positions from the padding id on | 1.9e-06 | 0.99999 |\n",
        )
    ),
}
DIALECT: Mapping[str, Change] = {
    "service/api/toy.py": new('''
        """A toy's API: POST /v1/toy/embed."""

        from typing import Any

        from service.api.dialect import JSONCall, json_reply
        from service.observe.families import OF_TEXT
        from service.questions.encode import EncodeRequest
        from service.tables.refusals import Refused
        from service.shapes.answer import Answer, Each
        from service.shapes.call import EMBEDDING_CODES, Api, Example, Reply
        from service.shapes.inputs import Strings
        from service.tables.wording.wire import ForeignRequest


        class ToyRequest(ForeignRequest):
            """The body of POST /v1/toy/embed."""

            sentences: Strings
            """What to embed."""


        class Toy(JSONCall):
            """A request."""

            def to_json(self, encoded: Answer) -> dict[str, Any]:
                return {"vectors": Each(item.pooled for item in encoded.items)}


        def parse(body: bytes, sent: Any, served: Any) -> Toy:
            """Read a request."""
            return Toy(request=EncodeRequest.of(ToyRequest.parse(body, sent.ignored).sentences))


        def problem(refused: Refused, request_id: str) -> Reply:
            """Return a refusal as a toy knows it."""
            return json_reply({"toy": refused.code}, refused.status)


        API = Api("Toy", problem, body_codes=EMBEDDING_CODES, document="https://toy.example")
        EXAMPLE = Example("one", "A vector", '{"sentences": ["All is well"]}')
        ROUTES = [
            API.post(
                "/v1/toy/embed", "Vectors", ToyRequest, parse, inputs=OF_TEXT, examples=[EXAMPLE]
            )
        ]
    '''),
    "service/api/__init__.py": lambda text: text.replace("    tei,\n", "    tei,\n    toy,\n"),
    "docs/api.md": after(
        (
            "| `POST /v1/explain` | one text through one layer, every intermediate step |",
            "| `POST /v1/toy/embed` | a toy's vectors |\n",
        )
    ),
    "tests/service/api/test_toy.py": new('''
        """POST /v1/toy/embed over HTTP."""

        import httpx
        import pytest

        from tests.space_fields import GIVEN, LONG_TEXT, Spaces

        SPACE: Spaces = {"/v1/toy/embed": ({"sentences": [LONG_TEXT]}, {"sentences": GIVEN})}


        async def test_vectors_are_those_of_encode(client: httpx.AsyncClient) -> None:
            mine = await client.post("/v1/toy/embed", json={"sentences": ["a"], "more": 1})
            ours = await client.post("/v1/encode", json={"inputs": ["a"]})

            assert mine.json() == {"vectors": [ours.json()["data"][0]["pooled"]]}
            assert mine.headers["x-headlight-ignored"] == "more"


        async def test_a_refusal_is_a_toys(client: httpx.AsyncClient) -> None:
            refused = await client.post("/v1/toy/embed", json={"sentences": [""]})

            assert (refused.status_code, refused.json()) == (422, {"toy": "sequence_empty"})
    '''),
}
QUESTION: Mapping[str, Change] = {
    "service/questions/toy/__init__.py": new('''
        """POST /v1/toy: its request and its answer as written."""

        from typing import Any, ClassVar

        from model.text.tokenizer import Truncate
        from service.shapes.answer import Answer
        from service.shapes.ask import Ask
        from service.shapes.inputs import Gates, Strings, Texts
        from service.tables.wording.wire import Wire


        class Lengths(Wire):
            """What POST /v1/toy answers."""

            lengths: list[int]
            """Tokens of each input."""


        class LengthsRequest(Ask):
            """The body of POST /v1/toy."""

            question: ClassVar = "service.questions.toy.question:Toy"
            answer: ClassVar = Lengths

            inputs: Strings
            """What is measured."""
            model: str | None = None
            """The model you expect."""
            truncate: Truncate | None = None
            """What happens to a sequence that is too long."""
            gates: Gates = []
            """Heads to scale or drop."""

            def texts(self) -> Texts:
                return self.inputs

            def to_json(self, encoded: Answer) -> dict[str, Any]:
                return {"lengths": [item.facts["length"] for item in encoded.items]}
    '''),
    "service/questions/toy/question.py": new('''
        """How many tokens texts have."""

        from collections.abc import Iterable, Sequence

        from service.pipeline.find.resolver import Resolver
        from service.pipeline.worker import Workers
        from service.questions.toy import LengthsRequest
        from service.shapes.answer import AnswerItem
        from service.shapes.ask import Custom
        from service.shapes.price import Price
        from service.shapes.record import Record
        from service.shapes.side import Side
        from service.shapes.step import Plan, Read, Step
        from service.shapes.work import Work


        class Toy:
            """A request for lengths."""

            def __init__(
                self, ask: LengthsRequest, custom: Custom, resolver: Resolver, workers: Workers
            ) -> None:
                self._layout = custom.layout
                outputs, cut = resolver.outputs(False), resolver.cut(None)
                self.sides: Sequence[Side] = (Side(ask.inputs, outputs, cut=cut),)

            async def plan(
                self, works: list[Work], read: Read, deadline: float, record: Record
            ) -> Plan:
                async def make_items() -> Iterable[AnswerItem]:
                    return [AnswerItem(len(work), {"length": work.length}) for work in works]

                return Plan(Step(works), Price({}, self._layout), make_items)
    '''),
    "service/api/questions.py": after(
        ("from service.api.own import question_route", "from service.shapes.call import Example\n"),
        (
            "from service.questions.similarity import ComparisonRequest",
            "from service.questions.toy import LengthsRequest\n",
        ),
        (
            "ROUTES = [",
            """\
    question_route(
        "/v1/toy",
        "How long texts are",
        LengthsRequest,
        inputs=OF_TEXT,
        examples=[Example("one", "One text", '{"inputs": ["All is well"]}')],
    ),
""",
        ),
    ),
    "docs/questions.md": lambda text: (
        text
        + dedent("""
        ## How long is a text?

        ```pycon
        >>> client.post("/v1/toy", json={"inputs": ["All is well"]}).json()
        {'lengths': [5]}

        ```
        """)
    ),
}
PROBE: Mapping[str, Change] = {
    "model/probes/toy.py": new('''
        """How much attention each token receives in layer 0."""

        from collections.abc import Collection
        from typing import ClassVar

        from torch import Tensor

        from model.config import EncoderConfig
        from model.encoder import Encoded, Encoder
        from model.maps.maps import full_maps
        from model.maps.tiles import MapReader
        from model.packing import Sequence
        from model.probes.probe import Probe


        class Received(Probe):
            """Makes the sum of each key's column, as a mean over heads, (tokens,)."""

            name: ClassVar = "received"

            @property
            def traces(self) -> Collection[int]:
                return (0,)

            def run(
                self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence
            ) -> Tensor:
                reader = MapReader(encoded.traces[0], rows, range(encoder.config.heads))
                return full_maps(reader).mean(0).sum(0)

            def flops(self, config: EncoderConfig, tokens: int) -> int:
                return 2 * config.mixed_width * tokens**2
    '''),
    "model/probes/__init__.py": after(
        (
            "from model.probes.steps import Steps as Steps",
            "from model.probes.toy import Received as Received\n",
        )
    ),
    "service/questions/toy/question.py": lambda text: after(
        ("from collections.abc import Iterable, Sequence", "\nfrom model.probes import Received\n"),
        (
            "    ) -> Plan:",
            "        for work in works:\n"
            "            work.outputs = work.outputs.asking(Received())\n",
        ),
    )(text).replace("work.length", 'round(float(work.result.made["received"].sum()))'),
    "docs/questions.md": lambda text: text + "\nIt is what its tokens receive of attention.\n",
    "tests/model/probes/test_toy.py": new('''
        """model/probes/toy.py"""

        import torch

        from model.lessons import explain_layer
        from model.packing import Sequence
        from model.probes import Received
        from tests.model.lessons.test_explain import drawn


        @torch.inference_mode()
        def test_what_tokens_receive_is_the_sum_of_columns() -> None:
            encoder, sequence = drawn("bert"), Sequence([1, 2, 3, 4, 5, 6, 7])
            packed = encoder.pack([sequence])
            encoded = encoder(packed, hidden=frozenset({0}), traces=frozenset({0}))

            made = Received().run(encoder, encoded, packed.rows(0), sequence)

            x = encoded.hidden[0][packed.rows(0)]
            slow = explain_layer(encoder, 0, x)["probabilities"].mean(0).sum(0)
            torch.testing.assert_close(made, slow)
    '''),
}
METRIC: Mapping[str, Change] = {
    "service/proof/health.py": after(
        (
            '        metrics.add_gauge("ready", "Whether the replica may serve.", '
            "lambda: float(self._is_fine()))",
            '        self._probes = metrics.add_counter("toy_probes", "Probes of a toy.")\n',
        ),
        (
            '        """Raise RuntimeError with the reason when the replica must not serve."""',
            "        self._probes.add()\n",
        ),
    ),
    "docs/observability.md": after(
        (
            "| `headlight_ready` | | 1 while the replica may serve |",
            "| `headlight_toy_probes_total` | | probes |\n",
        )
    ),
    "deploy/prometheus/rules/recording.yml": lambda text: (
        text
        + "      - record: instance:headlight_toy_probes:rate5m\n"
        + '        expr: rate(headlight_toy_probes_total{job="headlight"}[5m])\n'
    ),
}
TOYS = {
    "family": FAMILY,
    "dialect": DIALECT,
    "question": QUESTION,
    "probe": PROBE,
    "metric": METRIC,
}
# of no recipe: what tests/test_docs.py and test_space_fields.py ask, of the toys alone
TESTS_OF_TOYS = """
import asyncio
import doctest

import pytest

from tests.service.api.test_toy import SPACE
from tests.space_fields import body_of, fields
from tests.test_docs import DOCS, EXAMPLES, Waiting



async def test_the_section_gives_the_answer_shown(client):
    section = (DOCS / "questions.md").read_text("utf-8").rpartition("\\n## ")[2]
    (example,) = EXAMPLES.findall(section)
    session = doctest.DocTestParser().get_doctest(example, {"client": Waiting(client)}, "", "", 0)

    failed, tried = await asyncio.to_thread(doctest.DocTestRunner().run, session)

    assert (failed, tried) == (0, 1)


async def test_a_probe_is_priced_beside_the_pass(client):
    body = {"inputs": ["All is well"]}
    routes = ("/v1/encode", "/v1/toy")
    plain, asked = [await client.post(f"{route}?dry_run=true", json=body) for route in routes]

    assert asked.json()["flops"] - plain.json()["flops"] == 2 * 384 * 5**2


async def test_every_field_says_what_it_does_to_the_space():
    for path, (_, stated) in SPACE.items():
        assert {*stated} == {*fields(body_of(path)["schema"])}
"""
# what sees the toys' answers, and some of what holds that nothing else had to be told of them
FAMILIES, DOCUMENT = "tests/model/loading/test_families.py", "tests/service/api/test_document.py"
METRICS = "tests/service/observe/test_metrics.py"
SEEN_BY = [
    f"{FAMILIES}::test_a_family_computes_what_transformers_computes[data2vec-text-pairs-40]",
    f"{FAMILIES}::test_the_page_of_models_has_a_true_row_for_every_family[data2vec-text]",
    "tests/model/probes/test_toy.py",
    "tests/service/api/test_toy.py",
    f"{DOCUMENT}::test_an_example_is_allowed_and_answered_as_described[/v1/toy, one]",
    f"{DOCUMENT}::test_a_route_of_another_api_has_its_document_and_one_example",
    f"{DOCUMENT}::test_every_answer_but_a_problem_is_closed",
    f"{DOCUMENT}::test_every_field_is_described_by_a_sentence",
    f"{DOCUMENT}::test_the_table_needs_no_torch",
    "tests/test_toys.py",
    f"{METRICS}::test_the_page_about_them_has_every_family_with_its_labels",
    f"{METRICS}::test_every_help_text_stands_alone",
    "tests/deploy/test_grafana.py::"
    "test_every_metric_that_is_published_is_asked_for_and_the_other_way_round",
]
# without those that import transformers, or start a process that imports all again
OF_ANSWERS = [one for one in SEEN_BY if FAMILIES not in one and "needs_no_torch" not in one]


@pytest.mark.parametrize("kind", TOYS)
def test_a_recipe_names_all_that_its_toy_touches_in_ten_lines(kind: str) -> None:
    """By their paths, as many as it says."""
    recipes = {
        name: (NUMBERS[number], recipe)
        for name, number, recipe in RECIPE.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    }
    number, recipe = recipes[kind]
    paths = [path.replace("toy", "NAME") for path in TOYS[kind]]

    assert recipe.count("\n") <= 10
    assert len(paths) == number
    assert all(f"`{path}`" in recipe for path in paths)


@pytest.mark.prove
@pytest.mark.parametrize(
    "seen_by", [OF_ANSWERS, pytest.param(SEEN_BY, marks=pytest.mark.prove)], ids=["some", "all"]
)
def test_a_copy_that_follows_the_recipes_answers_as_they_say(
    tmp_path: Path, seen_by: list[str]
) -> None:
    """The copy's own tests find the toys, and miss nothing; the family's by `make prove`."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    for toy in TOYS.values():
        for path, change in toy.items():
            file = copy / path
            file.parent.mkdir(parents=True, exist_ok=True)
            before = file.read_text("utf-8") if file.exists() else ""
            file.write_text(change(before), "utf-8")
            assert file.read_text("utf-8") != before, path

    (copy / "tests" / "test_toys.py").write_text(TESTS_OF_TOYS)

    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *seen_by], cwd=copy, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
