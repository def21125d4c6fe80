"""model/text/template.py: where a template puts texts, read without running it."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from model.errors import CheckpointError
from model.text.template import Template
from tests.decoders import TEMPLATE

QUERY = '{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}'
DOCUMENT = QUERY.replace("query", "document")
SYSTEM = QUERY.replace("query", "system")
READ = {
    "published": TEMPLATE,
    "no instruction": f"Q: {QUERY} D: {DOCUMENT}\n",
    "without a default": f"{SYSTEM}|{QUERY}|{DOCUMENT}",
    "the document first": f"<{DOCUMENT}><{QUERY}>\n\n",
    "single quotes": f"{QUERY}{DOCUMENT}".replace('"', "'"),
    "no spaces": f"{QUERY}-{DOCUMENT}".replace(" ", ""),
    "equalto": f"{QUERY}\n{DOCUMENT}".replace("eq", "equalto"),
}
TEXTS = [("why?", "it rains"), ("{{ a }}", "{% b %}\n"), ("q", "<|im_end|> {# c #}")]


@pytest.mark.parametrize("instruction", ["", "Find {{ it }}"])
@pytest.mark.parametrize("source", READ.values(), ids=READ)
def test_a_template_is_filled_as_jinja_fills_it(source: str, instruction: str) -> None:
    """Whatever the texts hold, which are no templates."""
    template = Template.parse(source)
    for query, document in TEXTS:
        messages = [{"role": "system", "content": instruction}] * bool(instruction)
        messages += [{"role": "query", "content": query}, {"role": "document", "content": document}]
        rendered, _ = render_jinja_template([messages], chat_template=source)

        filled = template.fill(query, document, instruction)

        assert filled.text == rendered[0]
        assert filled.text[slice(*filled.query)] == query
        assert filled.text[slice(*filled.document)] == document


REFUSED = {
    "a loop": ("{% for m in messages %}{{ m.content }}{% endfor %}", "with '{{'"),
    "a condition": (f"{{% if x %}}{QUERY}{{% endif %}}{DOCUMENT}", "with '{%'"),
    "a comment": (f"{{# x #}}{QUERY}{DOCUMENT}", "with '{#'"),
    "trimmed spaces": (f"{QUERY} {DOCUMENT}".replace("{{", "{{-"), "with '{{'"),
    "another filter": (f"{QUERY} {DOCUMENT}".replace("first", "last"), "with '{{'"),
    "no document": (QUERY, "of the roles query;"),
    "a query twice": (QUERY * 2 + DOCUMENT, "of the roles query, query, document;"),
    "another role": (QUERY + DOCUMENT + QUERY.replace("query", "user"), "document, user;"),
    "nothing": ("", "of the roles none;"),
}


@pytest.mark.parametrize(("source", "told"), REFUSED.values(), ids=REFUSED)
def test_a_program_is_refused(source: str, told: str) -> None:
    """By what it has, in one line that says what is read."""
    with pytest.raises(CheckpointError) as refused:
        Template.parse(source)

    assert told in str(refused.value) and "\n" not in str(refused.value)
