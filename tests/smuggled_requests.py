"""Every way in which HTTP/1.1 lets two readers of the same bytes disagree, as data.

Each attack holds a second request where one reader sees a body, a header or nothing at all. If
HAProxy and a replica disagree, the replica answers it, and the answer goes to whichever client
asks next on that connection (tests/ray/test_smuggled_requests.py). Sources: RFC 9112, sections 2.2,
3.2, 5, 6, 7, 9.3 and 11.2; RFC 9110, sections 7.6, 7.8 and 10.1.1.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from service.door.coding import zstd

HIDDEN_ID = "hidden"
MIB = 1024 * 1024
# HAProxy's buffer holds 128 KiB, and a replica reads up to 256 KiB at a time: where the second
# request starts decides whether it comes in a read of its own
PADDINGS = (0, 70_000, 300_000, 400_000)


class Attack(NamedTuple):
    """Some bytes, sent piece by piece with a pause between them.

    Args:
        own: whether what is hidden is, by the letter, a request of the attacker's own, which may
            be answered to it.
    """

    name: str
    pieces: Callable[[], tuple[bytes, ...]]
    own: bool = False


def request(*lines: bytes, body: bytes = b"", start: bytes = b"POST /v1/encode HTTP/1.1") -> bytes:
    """A request with these header lines."""
    fixed = (b"Host: localhost", b"Content-Type: application/json")
    return b"\r\n".join((start, *fixed, *lines, b"", body))


def sized(*lines: bytes, body: bytes, start: bytes = b"POST /v1/encode HTTP/1.1") -> bytes:
    """The same, and its length."""
    return request(*lines, b"Content-Length: %d" % len(body), body=body, start=start)


TEXT = b'{"inputs":["A hidden request"],"encoding":"base64"}'
HIDDEN = sized(b"X-Request-Id: " + HIDDEN_ID.encode(), body=TEXT)
# one that takes what follows it for its body: the next client's request
OPEN = request(b"X-Request-Id: " + HIDDEN_ID.encode(), b"Content-Length: 400")
GOOD = b'{"inputs":["An outer request"],"encoding":"base64"}'


def padded(padding: int, hidden: bytes = HIDDEN) -> bytes:
    """Empty lines, which a server skips before a request, then the hidden one."""
    return b"\r\n" * (padding // 2) + hidden


def apart(*pieces: bytes, own: bool = False, name: str) -> Iterator[Attack]:
    """The pieces in one write, and each by itself."""
    yield Attack(name, lambda: (b"".join(pieces),), own)
    yield Attack(f"{name}, in pieces", lambda: pieces, own)


def split(sent: bytes) -> tuple[bytes, bytes]:
    """Head and rest."""
    head, end, rest = sent.partition(b"\r\n\r\n")
    return head + end, rest


def upgrades() -> Iterator[Attack]:
    """A change of protocol, after which one reader takes the body for the new protocol's."""
    tokens = (b"foo", b"websocket", b"TLS/1.0", b"HTTP/2.0", b"h2c", b"HTTP/1.1", b"h2c, foo", b"")
    for token in tokens:
        for padding in PADDINGS:
            for hidden in (HIDDEN, OPEN):
                sent = sized(
                    b"Connection: upgrade", b"Upgrade: " + token, body=padded(padding, hidden)
                )
                word = "open, " if hidden is OPEN else ""
                yield from apart(
                    *split(sent), name=f"upgrade to {token.decode()!r}, {word}{padding} before"
                )
    for name, lines in {
        "upgrade in capitals": (b"CONNECTION: UPGRADE", b"UPGRADE: FOO"),
        "upgrade among others": (b"Connection: close, upgrade, x", b"Upgrade: foo"),
        "upgrade kept alive": (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket"),
        "upgrade named twice": (b"Connection: upgrade", b"Upgrade: foo", b"Upgrade: websocket"),
        "upgrade of two lines": (b"Connection: x", b"Connection: upgrade", b"Upgrade: foo"),
        "a whole websocket": (
            b"Connection: Upgrade",
            b"Upgrade: websocket",
            b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        "a whole h2c": (
            b"Connection: Upgrade, HTTP2-Settings",
            b"Upgrade: h2c",
            b"HTTP2-Settings: AAMAAABkAAQAAP__",
        ),
        "upgrade to no ASCII": (b"Connection: upgrade", b"Upgrade: foo\xff"),
        "upgrade by a proxy's header": (b"Proxy-Connection: upgrade", b"Upgrade: foo"),
        "upgrade, name with an underscore": (b"Connection: upgrade", b"Up_grade: foo"),
    }.items():
        for padding in (0, 300_000):
            yield from apart(
                *split(sized(*lines, body=padded(padding))), name=f"{name}, {padding} before"
            )
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(padded(300_000)), padded(300_000))
    sent = request(
        b"Connection: upgrade", b"Upgrade: foo", b"Transfer-Encoding: chunked", body=chunks
    )
    yield from apart(*split(sent), name="upgrade, body in chunks")
    for path in (b"localhost:443", b"/v1/encode", b"http://localhost/v1/encode", b"*"):
        for padding in (0, 300_000):
            sent = sized(body=padded(padding), start=b"CONNECT " + path + b" HTTP/1.1")
            yield from apart(
                *split(sent), name=f"CONNECT {path.decode()}, {padding} before", own=True
            )
    for method in (b"PRI", b"GET", b"DELETE", b"PUT", b"OPTIONS", b"SOURCE", b"QUERY"):
        start = method + b" /v1/encode HTTP/1.1"
        sent = sized(b"Connection: upgrade", b"Upgrade: foo", body=padded(0), start=start)
        yield from apart(*split(sent), name=f"upgrade by {method.decode()}")


def hops() -> Iterator[Attack]:
    """Headers of one hop, and Connection naming such as must reach the next."""
    names = (
        *(b"content-length", b"transfer-encoding", b"host", b"authorization", b"content-type"),
        *(b"x-request-id", b"expect", b"upgrade", b"te", b"close, content-length", b"keep-alive"),
    )
    for name in names:
        yield from apart(
            *split(sized(b"Connection: " + name, body=padded(0))),
            name=f"Connection names {name.decode()}",
        )
    for line in (
        *(b"Keep-Alive: timeout=0", b"Proxy-Connection: close", b"TE: trailers, chunked"),
        *(b"TE: chunked;q=1", b"Trailer: Content-Length", b"Max-Forwards: 0", b"Via: 1.0 x"),
        *(b"X-HTTP-Method-Override: CONNECT", b"Content-Encoding: identity", b"Connection: "),
        *(b"Connection: close\r\nConnection: keep-alive", b"Connection: \xff"),
    ):
        yield from apart(*split(sized(line, body=padded(0))), name=line.decode("latin-1"))


def expectations() -> Iterator[Attack]:
    """A body that is announced, and may come or not."""
    for value in (b"100-continue", b"100-Continue", b" 100-continue ", b"200-ok", b"", b"100"):
        for padding in (0, 300_000):
            sent = sized(b"Expect: " + value, body=padded(padding))
            yield from apart(*split(sent), name=f"Expect: {value.decode()!r}, {padding} before")
    sent = sized(b"Expect: 100-continue", b"Expect: x", body=padded(0))
    yield from apart(*split(sent), name="two expectations")
    start = b"GET /live HTTP/1.1"
    sent = sized(b"Expect: 100-continue", body=padded(0), start=start)
    yield from apart(*split(sent), name="a GET that expects")


def lengths() -> Iterator[Attack]:
    """Where a body ends, said in two ways or in one that readers take differently."""
    size, short = len(HIDDEN), len(GOOD)
    for value in (
        *(b"+%d", b"-%d", b"%d, %d", b"%d,0", b"0, %d", b"0x%x", b"0%d", b" %d ", b"%d 0", b"%d.0"),
        *(b"%de0", b"%d_0", b"\t%d", b"%d\t", b'"%d"', b"%d;0", b"\x0b%d", b"%d\x0c", b"\xa0%d"),
        *(b"\xd9\xa1%d", b"%d\x00", b"1844674407370955161%d", b"0b1", b""),
    ):
        value = value % tuple([size] * value.count(b"%"))
        line = b"Content-Length: " + value
        for body in (HIDDEN, GOOD + HIDDEN):
            yield from apart(
                *split(request(line, body=body)),
                name=f"length {value!r}, {'alone' if body is HIDDEN else 'behind'}",
                own=True,
            )
    for first, second in ((0, size), (size, 0), (size, size), (short, short + size), (size, 1)):
        pair = (b"Content-Length: %d" % first, b"Content-Length: %d" % second)
        body = GOOD + HIDDEN if short in (first, second) else HIDDEN
        yield from apart(
            *split(request(*pair, body=body)), name=f"lengths {first} and {second}", own=True
        )
    for name in (b"Content-Length ", b"Content_Length", b"Content-Length\t", b" Content-Length"):
        yield from apart(
            *split(request(name + b": %d" % size, body=HIDDEN)),
            name=f"length as {name!r}",
            own=True,
        )
        yield from apart(
            *split(request(b"Content-Length: 0", name + b": %d" % size, body=HIDDEN)),
            name=f"a length of 0 and {name!r}",
            own=True,
        )
    for method in (b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE", b"PUT", b"PATCH"):
        for path in (b"/live", b"/v1/encode", b"/none"):
            start = method + b" " + path + b" HTTP/1.1"
            for padding in (0, 300_000):
                yield from apart(
                    *split(sized(body=padded(padding), start=start)),
                    name=f"{start.decode()} with a body, {padding} before",
                )


def codings() -> Iterator[Attack]:
    """Chunks announced in a way that one reader knows and the other does not."""
    ends = b"0\r\n\r\n" + HIDDEN  # one reader's end, within the other's length
    for value in (
        *(b"chunked", b"Chunked", b" chunked", b"chunked ", b"\tchunked", b"\x0bchunked"),
        *(b"chunked\x0c", b"xchunked", b"chunkedx", b"chunked;a=b", b'"chunked"', b"chunked,"),
        *(b",chunked", b"chunked, identity", b"identity, chunked", b"identity", b"gzip, chunked"),
        *(b"chunked, chunked", b"chunked, gzip", b"", b"x", b"\xffchunked", b"chunked\x00"),
    ):
        line = b"Transfer-Encoding: " + value
        for lines in ((line,), (line, b"Content-Length: %d" % len(ends))):
            named = f"coding {value!r}" + (", and a length" if len(lines) > 1 else "")
            yield from apart(*split(request(*lines, body=ends)), name=named, own=True)
    chunked, length = b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(ends)
    for name, lines in {
        "two codings": (chunked, b"Transfer-Encoding: identity", length),
        "two codings the other way": (b"Transfer-Encoding: identity", chunked, length),
        "chunked twice": (chunked, chunked, length),
        "a length first": (length, chunked),
        "a space before the colon": (b"Transfer-Encoding : chunked", length),
        "a tab before the colon": (b"Transfer-Encoding\t: chunked", length),
        "an underscore": (b"Transfer_Encoding: chunked", length),
        "a space before the name": (b" Transfer-Encoding: chunked", length),
        "a folded value": (b"Transfer-Encoding:\r\n chunked", length),
        "a folded name": (b"X-A: b\r\n Transfer-Encoding: chunked", length),
        "a bare line feed before": (b"X-A: b\nTransfer-Encoding: chunked", length),
        "a bare carriage return before": (b"X-A: b\rTransfer-Encoding: chunked", length),
        "a NUL before": (b"X-A: b\x00\r\nTransfer-Encoding: chunked", length),
        "a header without a colon": (b"Transfer-Encoding", chunked, length),
        "a name that is empty": (b": x", chunked, length),
        "a name with a space": (b"X A: b", chunked, length),
        "a folded length": (b"X-A: b", b" c", b"Content-Length:\r\n 0", length),
        "a byte over ASCII": (b"Transfer-Encoding\xff: chunked", length),
    }.items():
        yield from apart(*split(request(*lines, body=ends)), name=name, own=True)
    for version in (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/01.1"):
        start = b"POST /v1/encode " + version
        for lines in ((chunked,), (length,), (b"Connection: keep-alive", chunked, length)):
            yield from apart(
                *split(request(*lines, body=ends, start=start)),
                name=f"{start.decode()} with {len(lines)} lines",
                own=True,
            )


def chunks() -> Iterator[Attack]:
    """Chunks whose sizes, extensions, ends or trailers readers take differently."""
    size, inner = b"%x" % len(HIDDEN), HIDDEN
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    for name, body in {
        "an extension": size + b";a=b\r\n" + inner + b"\r\n0\r\n\r\n",
        "an extension without a name": size + b";\r\n" + inner + b"\r\n0\r\n\r\n",
        "an extension with a line feed": b"2;a=\nxx\r\n"
        + size
        + b"\r\n"
        + inner
        + b"\r\n0\r\n\r\n",
        "an extension in quotes": size + b';a="\r\n' + inner + b"\r\n0\r\n\r\n",
        "an extension of 20 kB": size + b";a=" + b"b" * 20_000 + b"\r\n" + inner + b"\r\n0\r\n\r\n",
        "a space before the size": b" " + size + b"\r\n" + inner + b"\r\n0\r\n\r\n",
        "a space after the size": size + b" \r\n" + inner + b"\r\n0\r\n\r\n",
        "a size by 0x": b"0x" + size + b"\r\n" + inner + b"\r\n0\r\n\r\n",
        "a size with a plus": b"+" + size + b"\r\n" + inner + b"\r\n0\r\n\r\n",
        "a size with zeros": b"0" * 30 + size + b"\r\n" + inner + b"\r\n0\r\n\r\n",
        "a size with an underscore": b"1_0\r\n" + inner + b"\r\n0\r\n\r\n",
        "a size of 65 bits": b"1" + b"0" * 15 + size + b"\r\n" + inner + b"\r\n0\r\n\r\n",
        "a size that ends in a line feed": size + b"\n" + inner + b"\r\n0\r\n\r\n",
        "a size that ends in a carriage return": size + b"\r" + inner + b"\r\n0\r\n\r\n",
        "a chunk that ends in a line feed": size + b"\r\n" + inner + b"\n0\r\n\r\n",
        "a chunk without an end": size + b"\r\n" + inner + b"0\r\n\r\n",
        "a chunk with a longer end": size + b"\r\n" + inner + b"xx0\r\n\r\n",
        "an end of line feeds": whole[:-4] + b"\n\n" + inner,
        "an end of one line": whole[:-2] + inner,
        "a trailer": whole[:-2] + b"X-A: b\r\n\r\n" + inner,
        "a trailer with a length": whole[:-2] + b"Content-Length: %d\r\n\r\n" % len(inner) + inner,
        "a trailer with a host": whole[:-2] + b"Host: evil\r\n\r\n" + inner,
        "a trailer with a coding": whole[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + inner,
        "a trailer with an upgrade": whole[:-2] + b"Upgrade: foo\r\n\r\n" + inner,
        "a trailer that is folded": whole[:-2] + b"X-A: b\r\n c: d\r\n\r\n" + inner,
        "a trailer with a NUL": whole[:-2] + b"X-A: \x00\r\n\r\n" + inner,
        "a trailer without a colon": whole[:-2] + b"GET /live HTTP/1.1\r\n\r\n" + inner,
        "a trailer of 70 kB": whole[:-2] + b"X-A: " + b"b" * 70_000 + b"\r\n\r\n" + inner,
        "a last chunk with an extension": whole[:-5] + b"0;a=b\r\n\r\n" + inner,
        "a last chunk of zeros": whole[:-5] + b"0000\r\n\r\n" + inner,
        "a last chunk below zero": whole[:-5] + b"-0\r\n\r\n" + inner,
        "no size": b"\r\n" + inner + b"\r\n0\r\n\r\n",
    }.items():
        sent = request(b"Transfer-Encoding: chunked", body=body)
        yield from apart(*split(sent), name=name, own=True)


def lines() -> Iterator[Attack]:
    """Ends of lines, and bytes that end one for some readers."""
    hidden = HIDDEN
    for name, head in {
        "a header that is folded": b"X-A: b\r\n c",
        "a header folded by a tab": b"X-A: b\r\n\tc",
        "a folded first header": b" X-A: b",
        "a bare line feed": b"X-A: b\nX-B: c",
        "a bare carriage return": b"X-A: b\rX-B: c",
        "a NUL": b"X-A: b\x00c",
        "a NUL in a name": b"X\x00A: b",
        "an escape": b"X-A: \x1b",
        "a delete": b"X-A: \x7f",
        "a line of line feeds": b"X-A: b\n\nPOST /v1/encode HTTP/1.1",
        "an empty line of a carriage return": b"X-A: b\r\n\r\r\n",
        "an end in a value": b"X-A: b\n\r\n",
        "no colon": b"X-A",
        "101 headers": b"\r\n".join(b"X-%d: a" % number for number in range(101)),
        "a header of 20 kB": b"X-A: " + b"b" * 20_000,
        "a header of 140 kB": b"X-A: " + b"b" * 140_000,
    }.items():
        yield from apart(*split(sized(head, body=hidden)), name=name, own=True)
    whole = sized(body=GOOD)
    yield from apart(
        *split(whole.replace(b"\r\n", b"\n") + hidden), name="line feeds alone", own=True
    )
    for start in (
        *(
            b"POST  /v1/encode  HTTP/1.1",
            b"POST\t/v1/encode\tHTTP/1.1",
            b" POST /v1/encode HTTP/1.1",
        ),
        *(b"POST /v1/encode HTTP/1.1 ", b"POST /v1/encode", b"POST /v1/encode HTTP/1.1\r"),
        *(
            b"POST /v1/\x00encode HTTP/1.1",
            b"POST /v1/enc\xffode HTTP/1.1",
            b"post /v1/encode HTTP/1.1",
        ),
        *(
            b"POST /v1/encode#x HTTP/1.1",
            b"POST \\v1\\encode HTTP/1.1",
            b"POSTPOST /v1/encode HTTP/1.1",
        ),
        b"\x00POST /v1/encode HTTP/1.1",
    ):
        yield from apart(
            *split(sized(body=hidden, start=start)), name=f"starts {start!r}", own=True
        )


def targets() -> Iterator[Attack]:
    """Whose request it is, said in two ways."""
    for target in (
        *(b"http://localhost/v1/encode", b"http://evil.example/v1/encode", b"https://localhost/"),
        *(
            b"http://localhost:1/v1/encode",
            b"http://a@localhost/v1/encode",
            b"//localhost/v1/encode",
        ),
        *(b"localhost/v1/encode", b"*", b"", b"?", b"http://", b"ftp://localhost/v1/encode"),
        *(
            b"/-/healthz",
            b"/-/routes",
            b"/v1/encode%0d%0aX-A:b",
            b"/v1/encode%00",
            b"/../v1/encode",
        ),
    ):
        start = b"POST " + target + b" HTTP/1.1"
        yield from apart(
            *split(sized(body=HIDDEN, start=start)), name=f"to {target.decode()!r}", own=True
        )
    for line in (b"Host: localhost", b"Host: evil.example", b"Host:", b"host : x", b" Host: x"):
        yield from apart(*split(sized(line, body=HIDDEN)), name=f"{line!r} too", own=True)


def early() -> Iterator[Attack]:
    """Bodies that a refusal does not wait for, and what comes after it."""
    size = 3 * MIB
    for name, lines in {
        "a body too large": (b"Content-Length: %d" % size,),
        "a body too large, in chunks": (b"Transfer-Encoding: chunked",),
        "headers too large": (b"Content-Length: 300000", b"X-A: " + b"b" * 20_000),
        "another host": (b"Content-Length: 300000", b"Host: evil.example"),
        "another coding": (b"Content-Length: 300000", b"Content-Encoding: gzip"),
        "a coding that it has not": (b"Content-Length: 300000", b"Content-Encoding: zstd"),
        "a foreign site": (b"Content-Length: 300000", b"Origin: http://evil.example"),
        "another type": (b"Content-Length: 300000", b"Accept: text/html"),
        "a twin": (b"Content-Length: 300000", b"content_type: x"),
        "a late deadline": (b"Content-Length: 300000", b"X-Headlight-Deadline-Ms: 1"),
        "a bad deadline": (b"Content-Length: 300000", b"X-Headlight-Deadline-Ms: x"),
    }.items():
        head = request(*lines)
        yield from apart(head, padded(300_000), own=True, name=f"{name}, then another request")
        yield from apart(head, HIDDEN, name=f"{name}, little of it")
    deciding = b"/v1/systemone", b"/v1/decisions"
    for path in (b"/none", b"/live", b"/metrics", b"/v1/models", *deciding):
        start = b"POST " + path + b" HTTP/1.1"
        yield from apart(
            *split(sized(body=padded(300_000), start=start)), name=f"POST {path.decode()}"
        )
    for path in (b"/v1/encode", *deciding):
        start, packed = b"POST " + path + b" HTTP/1.1", zstd.compress(GOOD)
        yield from apart(
            *split(sized(b"Content-Encoding: zstd", body=packed + HIDDEN, start=start)),
            name=f"POST {path.decode()}, behind a frame of zstd",
        )


def pipelines() -> Iterator[Attack]:
    """Several requests at once, where an earlier one ends the connection or fails."""
    good = sized(body=GOOD)
    for name, first in {
        "two": good,
        "behind one that closes": sized(b"Connection: close", body=GOOD),
        "behind HTTP/1.0": sized(body=GOOD, start=b"POST /v1/encode HTTP/1.0"),
        "behind HTTP/1.0 kept alive": sized(
            b"Connection: keep-alive", body=GOOD, start=b"POST /v1/encode HTTP/1.0"
        ),
        "behind a bad one": sized(body=b"{"),
        "behind HEAD": request(start=b"HEAD /live HTTP/1.1"),
        "behind none": sized(body=b"", start=b"POST /none HTTP/1.1"),
        "behind noise": b"\x16\x03\x01",
        "behind empty lines": b"\r\n" * 2000,
        "behind three": good * 3,
        "behind HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "behind half a request": good[:-1],
        "behind a proxy's line": b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
    }.items():
        yield from apart(first, HIDDEN, name=name, own=True)
        yield from apart(first, OPEN, name=f"{name}, and stays open", own=True)


KINDS = {
    "upgrades": upgrades,
    "hops": hops,
    "expectations": expectations,
    "lengths": lengths,
    "codings": codings,
    "chunks": chunks,
    "lines": lines,
    "targets": targets,
    "early answers": early,
    "pipelines": pipelines,
}
ATTACKS: dict[str, list[Attack]] = {kind: list(make()) for kind, make in KINDS.items()}
