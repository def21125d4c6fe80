"""The bases of every request: strict, with fields whose names a refusal may repeat.

Our own are closed. Those of other APIs are as open as their servers are, and say what they ignore.
"""

import re
from collections.abc import Collection, Mapping
from functools import cache
from itertools import chain, islice
from typing import Annotated, Any, ClassVar, LiteralString, Self, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.tables.wording.changing_fields import CHANGING_FIELDS

# A list that fails at its first error: a million errors would cost more than the request
Integers = TypeAliasType("Integers", Annotated[list[int], FailFast()])
FIELD_NAMES = {*CHANGING_FIELDS}  # and every name of every request, as the models are defined
REQUEST_TYPES: dict[str, Any] = {}  # the types of requests, by the title in their errors


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
        FIELD_NAMES.update(cls.named_fields())
        REQUEST_TYPES[cls.__name__] = cls

    @classmethod
    @cache
    def named_fields(cls) -> Mapping[str, FieldInfo]:
        """Return the fields of the model by the names used in requests."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    @classmethod
    @cache
    def switches(cls) -> Collection[str]:
        """Return the names of the fields that may hold true or false."""
        fields = cls.named_fields().items()
        return {
            name
            for name, field in fields
            if bool in (field.annotation, *get_args(field.annotation))
        }

    def altered(self, **fields: Any) -> Self:
        """Return a copy with other values of some fields, which have been checked.

        As pydantic's model_copy, in a fifth of its time: nothing of a request is ever changed.
        """
        copy, set_field = object.__new__(type(self)), object.__setattr__
        set_field(copy, "__dict__", {**self.__dict__, **fields})
        set_field(copy, "__pydantic_fields_set__", self.__pydantic_fields_set__)
        set_field(copy, "__pydantic_extra__", None)
        set_field(copy, "__pydantic_private__", None)
        return copy


# Headers of an answer
SPACE, TRUNCATED = "x-headlight-space", "x-headlight-truncated"
IGNORED, WARNING = "x-headlight-ignored", "x-headlight-warning"
SWITCH_VALUES = {"true": True, "false": False}  # of boolean fields that come as strings
PARAMETERS_FIELD = "parameters"  # where Hugging Face's clients put fields of the body
GIVEN_TWICE: LiteralString = (
    "`{name}` is given twice, under two names or in `parameters`, and differs"
)
SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # no client may write our headers
MOST_NAMED, MOST_LOOKED_AT = 8, 64  # ignored fields: named in the header, looked at for that


class ForeignRequest(Wire):
    """A request of another API, whose clients send null for what they leave out, and more.

    Within a request of our own it is as strict as that one.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names of its fields."""
    holds_others: ClassVar[bool] = False
    """Whether it may hold any fields next to its own, which mean nothing here."""

    @classmethod
    def parse(cls, body: bytes, ignored: dict[str, None]) -> Self:
        """Parse the JSON of a body.

        Args:
            ignored: filled with the names of the fields that are not known.

        Raises:
            ValidationError: the body is no such request, or has one of CHANGING_FIELDS that the
                request does not know.
        """
        return cls.model_validate_json(body, context=ignored)

    @model_validator(mode="before")
    @classmethod
    def _resolve_aliases(cls, body: Any, info: ValidationInfo) -> Any:
        """Return a body's known fields, each once and by one name, and those to refuse by name.

        The others are noted as ignored.
        """
        if info.context is None or not isinstance(body, dict):
            return body
        fields, known, more = cls.named_fields(), dict[str, Any](), body.get(PARAMETERS_FIELD)
        if PARAMETERS_FIELD in fields or not isinstance(more, dict):
            more = {}
        for sent, value in chain(body.items(), more.items()):
            name = cls.aliases.get(sent, sent)
            if value is None or value is more:
                continue
            if name not in fields and (sent not in CHANGING_FIELDS or cls.holds_others):
                info.context[sent] = None
                continue
            if isinstance(value, str) and name in cls.switches():
                value = SWITCH_VALUES.get(value, value)
            if name in known and _differ(known[name], value):
                raise PydanticCustomError("named_twice", GIVEN_TWICE, {"name": name})
            known[name] = value
        return known

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        json_schema: dict[str, Any] = handler.resolve_ref_schema(handler(schema))
        json_schema.pop("additionalProperties", None)
        return json_schema


def _differ(one: Any, other: Any) -> bool:
    """Tell whether two values of JSON differ; 1 and true do, and NaN does not from itself."""
    are_nan = one != one and other != other
    return type(one) is not type(other) or (one != other and not are_nan)


def ignored_header(ignored: Collection[str]) -> str:
    """Return the header value that names ignored fields: the first safe names, then +N others."""
    safe = (name for name in islice(ignored, MOST_LOOKED_AT) if SAFE_NAME.fullmatch(name))
    named = [*islice(safe, MOST_NAMED)]
    others = len(ignored) - len(named)
    return ", ".join([*named, *([f"+{others}"] if others else [])])


def request_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the validator of a request that has one of several types."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    REQUEST_TYPES[adapter.validator.title] = kind
    return adapter
