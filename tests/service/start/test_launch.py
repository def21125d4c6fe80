"""Starts that take long or fail."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from service.cluster.start_report import StartFailed
from service.preflight import isolated
from service.start import launch
from service.tables.settings import Settings
from tests.several_models import EMBEDDER, save_embedder


def test_of_several_models_the_one_that_cannot_start_is_named(tmp_path: Path) -> None:
    """Alone it need not be."""
    broken = save_embedder(tmp_path)
    (broken / "tokenizer.json").write_text("{}")
    alone = Settings(model=str(broken))
    one_of_two = alone.model_copy(update={"other_replicas": 1})

    with pytest.raises(StartFailed, match="^tokenizer.json cannot be read"):
        isolated.check_here({launch.own_name(alone): alone})
    with pytest.raises(StartFailed, match=f"^{EMBEDDER}: tokenizer.json cannot be read"):
        isolated.check_here({launch.own_name(one_of_two): one_of_two})


HEAD = (
    "Deployment 'Encoder' in application 'headlight' has 1 replicas that have taken more than 30s"
)
SLOW = f"""{HEAD} to initialize.
This may be caused by a slow __init__ or reconfigure method."""
NO_ROOM = f"""{HEAD} to be scheduled. This may be due to waiting for the cluster to auto-scale or \
for a runtime environment to be installed. Resources required for each replica: {{"GPU": 1}}, \
total resources available: {{"CPU": 7.0}}. Use `ray status` for more details."""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", ""),
        (SLOW, "loading and checking the model takes long; on a busy machine it may take minutes"),
        (
            NO_ROOM,
            'no node has room for one more: each needs {"GPU": 1}, free are {"CPU": 7.0}',
        ),
        ("Traceback\nservice.Unservable: max_tokens 513", "max_tokens 513"),
    ],
    ids=["nothing", "slow", "no room", "a failure"],
)
def test_why_replicas_have_not_started_is_said_in_our_words(message: str, said: str) -> None:
    """Ray's speak of code that a user never sees."""
    assert launch.word_wait(message) == said


def test_ray_still_words_a_slow_start_so() -> None:
    """Else its own words would be passed on again."""
    ray = Path(find_spec("ray").submodule_search_locations[0])  # type: ignore[union-attr,index]
    file = ray / "serve" / "_private" / "deployment_state.py"
    source = file.read_text()
    words = (
        "initialize.\\n",
        "Resources required for each replica: {required}, ",
        "total resources available: {available}. ",
    )

    assert [word for word in words if word not in source] == []
