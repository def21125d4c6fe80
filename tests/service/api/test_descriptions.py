"""The document of the API says of every field what it is, and shows one."""

from collections.abc import Iterator
from typing import Any

from service.api.document import document


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every request and answer by its schema's name and its own."""
    for name, schema in document()["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            yield f"{name}.{field}", described


def test_every_field_is_described_by_a_sentence() -> None:
    """From a capital letter to a full stop."""
    undescribed = [
        name for name, field in fields() if not field.get("description", "").rstrip().endswith(".")
    ]

    assert len(list(fields())) > 300
    assert undescribed == []
