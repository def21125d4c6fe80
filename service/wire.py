"""The base of every request: strict, closed, with fields whose names a refusal may repeat."""

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo

FIELDS: set[str] = set()  # every name of every request, as the models are defined
BODIES: dict[str, Any] = {}  # the types of requests, by what their errors call them


class Wire(BaseModel):
    """What crosses the wire: no unknown field, no coercion."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,  # the API document shows them
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        FIELDS.update(cls.named_fields())
        BODIES[cls.__name__] = cls

    @classmethod
    def named_fields(cls) -> dict[str, FieldInfo]:
        """Return its fields by the names used in requests."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}


def body(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of a request that has one of several types."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    BODIES[adapter.validator.title] = kind
    return adapter
