"""The client: inputs -> requests -> answers, in order.

AsyncClient   encode     all at once; every request of a job, joined
              stream     request by request, at a memory that does not grow with the job
              maxsim, similarity, highlight, rerank, classify, decide, heads, explain,
              attend, space, check_space, info, ask
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, Unpack

from headlight_client.answers import Compared, Encoded, Kind, Scored
from headlight_client.connection import JSON, Connection
from headlight_client.decided import Decisions, read_decisions
from headlight_client.errors import NoAnswer, RequestRefused
from headlight_client.evidence import Highlighted, read_highlighted
from headlight_client.formats import read_json, write_json
from headlight_client.heads import Heads
from headlight_client.inputs import (
    AttendOptions,
    ComparisonOptions,
    DecideOptions,
    ExplainOptions,
    HighlightOptions,
    Input,
    LabelOptions,
    Limits,
    Options,
    RankOptions,
    Request,
    ScoreOptions,
    check_inputs,
    check_options,
    make_comparison,
    make_requests,
    read_limits,
    to_item,
)
from headlight_client.judged import Classified, Ranked, read_classified, read_ranked
from headlight_client.lessons import Steps, read_steps
from headlight_client.reading import read_answer
from headlight_client.spaces import (
    CANARY_TEXTS,
    SPACE_FACTS,
    Checked,
    Space,
    compare_vectors,
    find_differences,
)

# Codes of requests refused for their size before any work: half of one may pass
TOO_LARGE = {"body_too_large", "too_many_tokens", "batch_too_large"}
TOO_LARGE |= {"attention_too_large", "answer_too_large"}
WEIGHTS_HEADER = "x-headlight-weights"  # of every answer: the digest of what computed it

Progress = Callable[[int, int], None]  # called with the inputs done, and all


class AsyncClient:
    """A client of one service.

    Args:
        url: address of the service, such as http://127.0.0.1:8000.
        key: an API key.
        patience_seconds: how long a request may take, retries and pauses included, in calls
            that have no deadline of their own.
        concurrency: most requests in flight at once.
        expect: name of the space of all vectors; if the service has another one, it refuses
            requests before any work (409 space_changed).

    Raises:
        ValueError: the URL is not one, the key or the space cannot be sent, or a number is not
            positive.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        patience_seconds: float = 60.0,
        concurrency: int = 4,
        expect: str | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be positive")
        self._connection = Connection(url, key, patience_seconds, expect)
        self.url, self._concurrency = self._connection.url, concurrency

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def info(self, *, deadline: float | None = None) -> dict[str, Any]:
        """Return the answer of GET /info: the model and the limits.

        Raises:
            HeadlightError: no answer came.
        """
        try:
            info: dict[str, Any] = await self.ask("/info", deadline=deadline)
            self._connection.limits = read_limits(info)
        except (ValueError, KeyError, TypeError) as error:
            raise NoAnswer(f"{self.url} is not a Headlight service") from error
        return info

    async def ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, deadline: float | None = None
    ) -> Any:
        """Send any request of the HTTP API, a POST where it has a body, and return its JSON.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
        """
        answer, _ = await self._ask(path, body, deadline)
        return answer

    async def _ask(
        self, path: str, body: Mapping[str, Any] | None, deadline: float | None
    ) -> tuple[Any, Mapping[str, str]]:
        """Send a request as `ask`; return the JSON and the headers."""
        content = None if body is None else write_json(body)
        answer = await self._connection.send(path, content, _end_time(deadline), JSON)
        try:
            return read_json(answer.content), answer.headers
        except ValueError as error:
            raise NoAnswer(f"{self.url} is not a Headlight service") from error

    async def heads(self, *, deadline: float | None = None) -> Heads:
        """Return what each head of the model does; the service measures it if it was not yet.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
        """
        return Heads.read(await self.ask("/v1/heads", deadline=deadline))

    async def explain(
        self,
        text: str,
        layer: int = 0,
        *,
        deadline: float | None = None,
        **options: Unpack[ExplainOptions],
    ) -> Steps:
        """Compute one layer of the model step by step on one text.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
            TypeError: an unknown option.
        """
        check_options(options, ExplainOptions)
        body = {"text": text, "layer": layer, **options}
        return read_steps(await self.ask("/v1/explain", body, deadline=deadline))

    async def attend(
        self, *, deadline: float | None = None, **arrays: Unpack[AttendOptions]
    ) -> Steps:
        """Mix values by attention, without a model.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
            TypeError: an unknown option.
        """
        check_options(arrays, AttendOptions)
        return read_steps(await self.ask("/v1/attend", arrays, deadline=deadline))

    async def encode(
        self,
        inputs: Sequence[Input],
        *,
        deadline: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[Options],
    ) -> Encoded:
        """Encode inputs in as many requests as they need, and return the joined answer.

        Args:
            inputs: texts, pairs of texts (tuples), lists of token ids, (tokens, embedding width)
                embeddings, or items as in the JSON API, in any mixture. float64 embeddings are
                rounded to float32.
            deadline: seconds for the whole call; default: patience_seconds for each request.
            progress: called with the inputs done and all of them, after each request.

        Raises:
            RequestRefused: the service refused, after any retries that could help.
            NoAnswer: no answer came in time.
            ModelChanged: the service's model changed in the middle of the job.
            TypeError: an input of another type, or an unknown option.
        """
        parts, done = [], 0
        async with aclosing(self.stream(inputs, deadline=deadline, **options)) as stream:
            async for part in stream:
                parts.append(part)
                done += len(part.items)
                if progress:
                    progress(done, len(inputs))
        return Encoded.join(parts)

    async def stream(
        self, inputs: Iterable[Input], *, deadline: float | None = None, **options: Unpack[Options]
    ) -> AsyncGenerator[Encoded]:
        """Encode inputs and yield one answer for each request, in order; see `encode`.

        Inputs are read as requests are sent. At most `concurrency` requests are in flight, or
        answered and waiting for their turn.
        """
        check_inputs(inputs, options, Options)
        until = _end_time(deadline)
        waiting: deque[asyncio.Task[Encoded]] = deque()
        try:
            limits = await self._read_limits(until)
            for request in make_requests(inputs, limits, options):
                answer = self._request_answer(Encoded, "/v1/encode", request, until)
                waiting.append(asyncio.create_task(answer))
                if len(waiting) == self._concurrency:
                    yield await waiting.popleft()
            while waiting:
                yield await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def maxsim(
        self,
        query: Input,
        documents: Sequence[Input],
        *,
        deadline: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Scored:
        """Score documents for a query by late interaction (MaxSim), in one request.

        Args:
            query, documents: texts, token ids, embeddings or items, as of `encode`, no pairs.
            deadline: seconds for the call; default: patience_seconds.

        Raises:
            RequestRefused: the service refused, after any retries that could help.
            NoAnswer: no answer came in time.
            TypeError: an input of another type, or an unknown option.
        """
        check_inputs(documents, options, ScoreOptions, "documents")
        body = {"query": to_item(query), "documents": [*map(to_item, documents)]}
        content, end = write_json({**options, **body}), _end_time(deadline)
        answer = await self._connection.send("/v1/maxsim", content, end)
        return read_answer(Scored, answer.content)

    async def similarity(
        self,
        left: Input,
        right: Sequence[Input],
        *,
        deadline: float | None = None,
        **options: Unpack[ComparisonOptions],
    ) -> Compared:
        """Compare a text with others: cosines, and the share of each pair of units in them.

        Args:
            left: a text, token ids, embeddings or an item.
            right: any number of them.
            deadline: seconds for the whole call; default: patience_seconds for each request.

        Raises:
            RequestRefused, NoAnswer, ModelChanged, TypeError: as `encode`.
        """
        check_inputs(right, options, ComparisonOptions)
        until = _end_time(deadline)
        request = make_comparison(left, right, options)
        return await self._request_answer(Compared, "/v1/similarity", request, until)

    async def highlight(
        self,
        query: Input,
        documents: Sequence[str],
        *,
        deadline: float | None = None,
        **options: Unpack[HighlightOptions],
    ) -> Highlighted:
        """Find the parts of documents that carry their scores for a query, in one request.

        Args:
            query: a text, token ids, embeddings or an item, as of `encode`; of a reranker a text.
            documents: texts.
            deadline: seconds for the call; default: patience_seconds.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
            TypeError: a query of another type, documents that are no list, or an unknown option.
        """
        check_inputs(documents, options, HighlightOptions, "documents")
        body = {"query": to_item(query), "documents": [*documents]}
        answer = await self.ask("/v1/highlight", {**options, **body}, deadline=deadline)
        return read_highlighted(answer)

    async def space(self, texts: Sequence[str] = CANARY_TEXTS) -> Space:
        """Return the space of the service's vectors, with canaries to check it by later.

        Raises:
            HeadlightError: no answer came, or the service has no spaces.
        """
        info = await self.info()
        if not info.keys() >= {*SPACE_FACTS}:
            raise NoAnswer(f"{self.url} does not say what space its vectors are of")
        encoded = await self.encode(texts)
        if encoded.pooled is None:
            raise NoAnswer(f"{self.url} returned no vectors")
        return Space({name: info[name] for name in SPACE_FACTS}, texts, encoded.pooled)

    async def check_space(self, saved: Space) -> Checked:
        """Compute the canary vectors of a saved space again, and compare them.

        Raises:
            HeadlightError: as `space`.
        """
        now = await self.space(saved.texts)
        changed = find_differences(saved.facts["space_parts"], now.facts["space_parts"])
        bound = now.facts["space_bound"]
        return compare_vectors(saved.texts, saved.vectors, now.vectors, bound, changed)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        deadline: float | None = None,
        **options: Unpack[RankOptions],
    ) -> Ranked:
        """Rank documents by how well they answer a query, in one request.

        Args:
            query, documents: texts.
            deadline: seconds for the call; default: patience_seconds.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
            TypeError: documents that are no list, or an unknown option.
        """
        check_inputs(documents, options, RankOptions, "documents")
        body = {"query": query, "documents": [*documents], "return_documents": False}
        return read_ranked(await self.ask("/v1/rerank", {**options, **body}, deadline=deadline))

    async def classify(
        self,
        inputs: Sequence[str],
        labels: Sequence[str],
        *,
        deadline: float | None = None,
        **options: Unpack[LabelOptions],
    ) -> Classified:
        """Score how well labels fit texts, by natural language inference, in one request.

        Args:
            inputs, labels: texts.
            deadline: seconds for the call; default: patience_seconds.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
            TypeError: inputs or labels that are no list, or an unknown option.
        """
        check_inputs(inputs, options, LabelOptions)
        check_inputs(labels, {}, LabelOptions, "labels")
        body = {"inputs": [*inputs], "labels": [*labels]}
        answer = await self.ask("/v1/classify", {**options, **body}, deadline=deadline)
        return read_classified(answer)

    async def decide(
        self,
        state: str | Mapping[str, Any] | Sequence[Any],
        questions: Mapping[str, Mapping[str, Any]],
        *,
        deadline: float | None = None,
        **options: Unpack[DecideOptions],
    ) -> Decisions:
        """Answer questions about a state with probabilities, in one request.

        Args:
            state: a text or JSON; of a list, a cut keeps the end.
            questions: by name, as of POST /v1/systemone: each with its type, such as "choice", its
                instructions and its criteria.
            deadline: seconds for the call; default: patience_seconds.

        Raises:
            RequestRefused, NoAnswer: as `encode`.
            TypeError: questions that are not by name, or an unknown option.
        """
        check_options(options, DecideOptions)
        if not isinstance(questions, Mapping):
            raise TypeError("questions must be a mapping from their names")
        body = {**options, "state": state, "questions": questions}
        answer, headers = await self._ask("/v1/systemone", body, deadline)
        return read_decisions(answer, headers.get(WEIGHTS_HEADER))

    async def _read_limits(self, until: float | None) -> Limits:
        """Return the service's limits, which are requested once; `until` is a deadline."""
        if self._connection.limits is None:
            await self.info(deadline=None if until is None else until - time.monotonic())
        if self._connection.limits is None:
            raise RuntimeError("no limits after asking for them: this is a bug")
        return self._connection.limits

    async def _request_answer(
        self, kind: type[Kind], path: str, request: Request, until: float | None
    ) -> Kind:
        """Send a request, or its halves where it is too large, and return the joined answer."""
        try:
            answer = await self._connection.send(path, request.body, until)
        except RequestRefused as refused:
            if refused.code not in TOO_LARGE or len(request) < 2 or request.whole:
                raise refused.shift_input_index(request.first) from None
        else:
            return read_answer(kind, answer.content)
        halves = [
            await self._request_answer(kind, path, half, until) for half in request.split_in_half()
        ]
        return kind.join(halves)


def _end_time(deadline: float | None) -> float | None:
    """Return the monotonic time at which a call that begins now must end, if there is one."""
    return None if deadline is None else time.monotonic() + deadline
