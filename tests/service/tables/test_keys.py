"""API keys: the texts that state them, and what is kept of each."""

import hashlib
from pathlib import Path

import pytest

from service.tables import keys
from service.tables.keys import Limits
from service.tables.sources import load_settings

KEY, OTHER = "canary-Key_123456789", "another-key-123456"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


def test_a_key_has_limits_and_one_client_may_have_two_keys() -> None:
    """In any order; two keys of a name, of which a client changes from one to the other."""
    text = f"a:{KEY} tokens=20000 requests=64\na:{OTHER} requests=64 tokens=20000, "
    text += f"{KEY}x metrics tokens=5"

    held = keys.parse_keys(text)

    assert keys.limits_by_name(held) == {"a": Limits(64, 20000), "key-3": Limits(None, 5)}
    assert [key.metrics for key in held] == [False, False, True]
    assert keys.parse_keys(",".join(map(keys.format_entry, held))) == held
    assert KEY not in repr(held) and DIGEST not in repr(held)


def test_a_key_may_name_the_only_models_that_it_may_use() -> None:
    """In a list that runs to the end of the line, in any order."""
    text = f"a:{KEY} tokens=5 metrics models=minilm,org/reranker:latest\n"
    text += f"a:{OTHER} tokens=5 models=org/reranker:latest , minilm,minilm\n"
    text += f"b:{KEY}x, c:{KEY}y\tmodels=sparse\r\nd:{KEY}z"

    held = keys.parse_keys(text)

    both = ("minilm", "org/reranker:latest")
    assert [key.models for key in held] == [both, both, (), ("sparse",), ()]
    assert held[0].limits == Limits(None, 5) and held[0].metrics
    assert keys.parse_keys("\n".join(map(keys.format_entry, held))) == held
    assert keys.first_key(f"a:{KEY} models=minilm,reranker") == KEY


MODELS_LAST = "names of models, separated by commas; the list runs to the end of the line"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"a:{KEY} models=", MODELS_LAST),
        (f"a:{KEY} models=x,,y", MODELS_LAST),
        (f"a:{KEY} models=x,", MODELS_LAST),
        (f"a:{KEY} models=x tokens=5", MODELS_LAST),
        (f"a:{KEY} models=x models=y", MODELS_LAST),
        (f"a:{KEY} models=x,tokens=5", MODELS_LAST),
        (f"a:{KEY} models=x, b:{OTHER}", MODELS_LAST),
        (f"a:{KEY} models=x,b:sha256:{'0' * 64}", MODELS_LAST),
        (f"a:{KEY} Models=x", "models= last"),
        (f"a:{KEY}, models=xxxxxxxxxxxxxxxx", "has no key of 16"),
        (" models=xxxxxxxxxxxxxxxx", "has no key of 16"),
        (
            f"a:{KEY} models=x\na:{OTHER} models=y",
            "gives its name other models than an earlier line",
        ),
        (f"a:{KEY} models=x\na:{OTHER}", "gives its name other models than an earlier line"),
    ],
)
def test_a_list_of_models_that_is_wrong_is_named_by_its_line(text: str, fault: str) -> None:
    """It never widens what a key may use, and takes no key of the same line for a model."""
    with pytest.raises(ValueError, match=rf"^line \d:? [^\n]*{fault}[^\n]*$") as refused:
        keys.parse_keys(text)
    assert KEY not in str(refused.value) and OTHER not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a:{KEY}\n\nb:short", 3),
        (f"{KEY} requests=0", 1),
        (f"{KEY} requests=-1", 1),
        (f"{KEY} requests=1.5", 1),
        (f"{KEY} requests=1 requests=1", 1),
        (f"{KEY} metrics metrics", 1),
        (f"{KEY} burst=1", 1),
        (f"{KEY} tokens", 1),
        (f"{KEY} tokens=1 {OTHER}", 1),
        (f"b:{OTHER}\na b:{KEY}", 2),
        (f"-:{KEY}", 1),
        (f"{'n' * 65}:{KEY}", 1),
        (f"{KEY}:{OTHER}:{KEY}", 1),
        (f"a:{KEY}\nb:{KEY}", 2),
        (f"a:{KEY} tokens=1\na:{OTHER} tokens=2", 2),
        (f"a:{KEY} tokens=1\nb:{KEY}x\na:{OTHER}", 3),
    ],
)
def test_an_entry_that_is_wrong_is_named_by_its_line(text: str, line: int) -> None:
    """In one line, which holds no part of a key."""
    with pytest.raises(ValueError, match=rf"^line {line}:? \S[^\n]+$") as refused:
        keys.parse_keys(text)
    assert not {KEY, OTHER, "short"} & set(str(refused.value).replace(":", " ").split())


@pytest.mark.parametrize("option", ["rate", "burst"])
def test_an_option_that_is_not_known_is_named(option: str) -> None:
    """One that was known once, too, since what it promised does not hold any more."""
    with pytest.raises(ValueError, match=f"line 2 has the unknown option {option}=; only"):
        keys.parse_keys(f"a:{KEY}\nb:{OTHER} requests=3 {option}=20000")


def test_no_key_goes_by_the_name_of_another() -> None:
    """Keys without a name are numbered."""
    with pytest.raises(ValueError, match="key-1"):
        keys.parse_keys(f"{KEY}\nkey-1:{OTHER}")


def test_keys_are_not_read_from_the_settings_file(tmp_path: Path) -> None:
    """It is shared and shown; keys have a file of their own."""
    file = tmp_path / "headlight.yaml"
    file.write_text(f"api_keys: {KEY}\n")

    with pytest.raises(ValueError, match="api_keys_file") as refused:
        load_settings({}, {}, file)
    assert KEY not in str(refused.value)


MISTYPED = {
    "upper case": f"a:sha256:{'A' * 64}",
    "63 digits": f"sha256:{'a' * 63}",
    "a hyphen": f"a:sha-256:{'a' * 64}",
    "upper case before": f"SHA256:{'a' * 64}",
    "another length": f"sha512:{'a' * 128}",
    "no colon": f"a:sha256-{'a' * 64}",
    "an equals sign": f"sha256={'a' * 64}",
    "a space": f"a:sha256: {'a' * 64}",
    "base64": f"sha256:{'aB3' * 14}d=",
    "md5": f"md5:{'a' * 32}",
}


@pytest.mark.parametrize("entry", MISTYPED.values(), ids=MISTYPED.keys())
def test_what_begins_like_a_digest_and_is_none_is_no_key(entry: str) -> None:
    """It would let in who has read it, and not the holder of the key; the value is not shown."""
    with pytest.raises(ValueError, match="line 2 begins like a digest; expected sha256: and 64"):
        keys.parse_keys(f"b:{OTHER}\n{entry}")
    with pytest.raises(ValueError, match="line 1 ") as refused:
        keys.first_key(entry)
    assert entry.rpartition(":")[2].strip() not in str(refused.value)


@pytest.mark.parametrize("entry", [f"sha256-team:{KEY}", f"sharp.{KEY}", "a" * 64, f"md5sum:{KEY}"])
def test_a_key_that_only_resembles_a_digest_is_one(entry: str) -> None:
    """Names are free, and keys are often 64 hexadecimal digits."""
    assert len(keys.parse_keys(entry)) == 1
