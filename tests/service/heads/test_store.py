"""GET /v1/heads: the survey that is kept, or one made among other requests."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.heads import sentences, store
from service.heads.sentences import Corpus
from service.heads.store import SURVEY_VERSION, RunWorks, StoredSurvey
from service.pipeline.replica import Replica
from service.tables.refusals import Refused

DIGEST = "sha256:5fc648cb18e4"
MINE = {"relation": "subject", "text": "Cats sleep.", "from": [5, 10], "to": [0, 4]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headlight" / "heads-5fc648cb18e4.json"


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus of one sentence in the place of the bundled one: nothing is measured on it yet."""
    path = tmp_path / "few.jsonl"
    path.write_text(json.dumps(MINE))
    corpus = sentences.read_corpus(path)
    bundled = Corpus(sentences.BUNDLED_CORPUS, corpus.digest, corpus.sentences)
    monkeypatch.setattr(sentences, "read_bundled", lambda: bundled)
    return bundled


@pytest.fixture
def batches(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The works of each batch of a survey, one a sentence, as they go into the replica's queue."""
    seen: list[int] = []

    async def watched(works: Any, deadline: float) -> Any:
        seen.append(len(works))
        return await replica.admission.run_own(works, deadline)

    monkeypatch.setattr(replica, "heads", survey(replica, watched))
    return seen


def survey(replica: Replica, run: RunWorks) -> StoredSurvey:
    """A survey of the replica's model, which none has asked for yet."""
    return StoredSurvey(replica.lanes.model, replica.name, run, replica.settings.deadline_seconds)


def kept(path: Path) -> Any:
    """What lies in the cache, None where nothing does."""
    return json.loads(path.read_bytes()) if path.exists() else None


def leave(path: Path, content: bytes) -> None:
    """Put something into the cache."""
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


async def ask(client: httpx.AsyncClient) -> dict[str, Any]:
    """The answer, which must be one."""
    answer = await client.get("/v1/heads")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_the_bundled_models_heads_are_answered_from_the_package(
    client: httpx.AsyncClient, batches: list[int], cache: Path
) -> None:
    """Nothing is measured and nothing written."""
    told = await ask(client)

    assert (told["model"], told["weights"]) == ("all-MiniLM-L6-v2", DIGEST)
    assert told["corpus"] == sentences.read_bundled().describe()
    assert len(told["heads"]) == 72 and told["relations"]["coreference"]["head"] is None
    assert batches == [] and kept(cache) is None


async def test_what_was_never_measured_is_measured_once_and_kept(
    client: httpx.AsyncClient, batches: list[int], cache: Path, few: Corpus
) -> None:
    """Two that ask at once wait for the same survey; later ones find it next to the digest."""
    first, second = await asyncio.gather(ask(client), ask(client))
    later = await ask(client)

    assert first == second == later and first["corpus"] == few.describe()
    assert batches == [1]
    assert kept(cache)["weights"] == DIGEST


async def test_a_cache_that_cannot_be_written_changes_no_answer(
    client: httpx.AsyncClient,
    batches: list[int],
    few: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The survey is then held in memory, and not made again."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert (await ask(client)) == (await ask(client))
    assert batches == [1]


async def test_a_user_without_a_home_is_answered_from_the_package(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user is a mere number."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)

    assert len((await ask(client))["heads"]) == 72


async def test_a_survey_of_the_users_own_corpus_wins(
    client: httpx.AsyncClient, batches: list[int]
) -> None:
    """`headlight heads --corpus` leaves it in the cache; the model keeps the name it serves by."""
    shipped = store.read_stored(DIGEST)
    assert shipped is not None
    corpus = {"name": "mine.jsonl", "digest": "sha256:0", "sentences": 7}
    store.store_survey({**shipped, "model": "a folder", "corpus": corpus})

    told = await ask(client)

    assert told["corpus"] == corpus and told["model"] == "all-MiniLM-L6-v2"
    assert batches == []


CORPUS = {"name": "mine.jsonl", "digest": "sha256:0", "sentences": 1}
OLD: dict[str, Any] = {
    "no survey": [],
    "of other rules": {"format": 0, "weights": DIGEST, "corpus": CORPUS},
    "of other weights": {"format": SURVEY_VERSION, "weights": "sha256:0", "corpus": CORPUS},
    "of the corpus as it was": {
        "format": SURVEY_VERSION,
        "weights": DIGEST,
        "corpus": {**CORPUS, "name": sentences.BUNDLED_CORPUS},
    },
}


@pytest.mark.parametrize(
    "content",
    [b"{", *(json.dumps(old).encode() for old in OLD.values())],
    ids=["torn", *OLD.keys()],
)
async def test_a_kept_file_that_does_not_hold_any_more_is_passed_over(
    client: httpx.AsyncClient, cache: Path, content: bytes
) -> None:
    """The package's own is answered instead."""
    leave(cache, content)

    assert len((await ask(client))["heads"]) == 72


@pytest.mark.usefixtures("few")
async def test_whoever_cannot_wait_is_refused_and_the_survey_goes_on(
    client: httpx.AsyncClient, replica: Replica, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """504 for the one with a short deadline; the next finds the work done."""
    free = asyncio.Event()

    async def slow(works: Any, deadline: float) -> Any:
        batches.append(len(works))
        await free.wait()
        return await replica.admission.run_own(works, deadline)

    monkeypatch.setattr(replica, "heads", survey(replica, slow))
    late = await client.get("/v1/heads", headers={"x-headlight-deadline-ms": "100"})
    free.set()
    told = await ask(client)

    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    assert len(told["heads"]) == 72 and batches == [1]


@pytest.mark.usefixtures("few")
async def test_a_survey_that_was_refused_may_be_tried_again(replica: Replica) -> None:
    """A busy moment is not held against the model."""
    refusals = [Refused("overloaded", retry_after=1)]

    async def busy(works: Any, deadline: float) -> Any:
        if refusals:
            raise refusals.pop()
        return await replica.admission.run_own(works, deadline)

    survey = StoredSurvey(replica.lanes.model, "m", busy, 30.0)
    deadline = asyncio.get_running_loop().time() + 30

    with pytest.raises(Refused, match="overloaded"):
        await survey.answer(deadline)
    assert (await survey.answer(deadline))["model"] == "m"


async def test_a_survey_that_lies_there_unchanged_is_parsed_once(
    client: httpx.AsyncClient, batches: list[int], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the corpus nor the survey is read for each who asks; another one is, at once."""
    shipped, parsed = store.read_stored(DIGEST), list[int]()
    assert shipped is not None

    def counted(content: bytes) -> Any:
        parsed.append(len(content))
        return json.loads(content)

    monkeypatch.setattr(store.orjson, "loads", counted)
    first, second = [await ask(client) for _ in range(2)]
    once = len(parsed)
    store.store_survey({**shipped, "corpus": CORPUS})
    third = await ask(client)

    assert first == second and once == 1
    assert third["corpus"] == CORPUS and len(parsed) == 2
    assert sentences.read_bundled() is sentences.read_bundled()
