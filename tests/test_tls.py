"""The proxies of docs/tls.md, run as they stand there, in front of a service."""

import asyncio
import ipaddress
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PAGE = (Path(__file__).parent.parent / "docs" / "tls.md").read_text()
NAME = "api.example.org"
START_SECONDS = 20
MIB = 1024 * 1024
SNI = {"sni_hostname": NAME}  # of an address that is this machine's


def certificate(folder: Path) -> None:
    """Write tls.crt and tls.key: a certificate for the page's name, by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    names = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "tls.key").write_bytes(private)


def placed(language: str, folder: Path, upstream: str, secure: int, plain: int) -> str:
    """The page's configuration, with our ports and files."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    assert found
    text = found[1].replace("/etc/headlight", str(folder)).replace("127.0.0.1:8000", upstream)
    return text.replace("listen 443", f"listen 127.0.0.1:{secure}").replace(
        "listen 80", f"listen 127.0.0.1:{plain}"
    )


def free() -> int:
    """A port on which nothing listens now."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@contextmanager
def nginx(folder: Path, upstream: str) -> Iterator[tuple[int, int]]:
    """nginx of the page: its ports for TLS and without."""
    secure, plain = free(), free()
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    site = placed("nginx", folder, upstream, secure, plain)
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, folder, secure):
        yield secure, plain


@contextmanager
def caddy(folder: Path, upstream: str) -> Iterator[tuple[int, int]]:
    """Caddy of the page: its ports for TLS and without."""
    secure, plain = free(), free()
    options = f"{{\nadmin off\nhttps_port {secure}\nhttp_port {plain}\n}}\n"
    site = placed("caddyfile", folder, upstream, secure, plain)
    (folder / "Caddyfile").write_text(options + site)
    command = ["caddy", "run", "--config", str(folder / "Caddyfile")]
    with running(command, folder, secure):
        yield secure, plain


@contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """A proxy, until the block ends; what it says is in a file."""
    found = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin")
    if not found:
        pytest.skip(f"no {command[0]} (Debian: apt-get install {command[0]})")
    environment = {**os.environ, "HOME": str(folder)}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen([found, *command[1:]], stdout=said, stderr=said, env=environment)
    try:
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise AssertionError((folder / "said").read_text())
        yield
    finally:
        process.terminate()
        process.wait()


def handshake(port: int, name: str, trusted: Path, newest: ssl.TLSVersion) -> tuple[str, str]:
    """Shake hands for a name: the version, and the protocol of HTTP that the server chose."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.maximum_version = newest
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname=name) as secured,
    ):
        return str(secured.version()), str(secured.selected_alpn_protocol())


async def holds(address: str, folder: Path, secure: int, plain: int) -> None:
    """What the page says of each proxy."""
    trusted = folder / "tls.crt"
    body = {"inputs": ["All is well"], "encoding": "base64"}
    names = {"Host": f"{NAME}:{secure}"}
    verify = ssl.create_default_context(cafile=str(trusted))
    url = f"https://127.0.0.1:{secure}"
    async with httpx.AsyncClient(verify=verify, headers=names, timeout=30) as client:

        async def send(size: int) -> httpx.Response:
            head = {"content-type": "application/octet-stream"}
            return await client.post(
                f"{url}/v1/encode", content=bytes(size), headers=head, extensions=SNI
            )

        direct = await client.post(f"{address}/v1/encode", json=body)
        through = await client.post(f"{url}/v1/encode", json=body, extensions=SNI)
        large, too_large = await send(7 * MIB), await send(8 * MIB + MIB // 2)
        inside = [
            await client.get(f"{url}{path}", extensions=SNI)
            for path in ("/metrics/targets", "//metrics/", "/metrics//targets")
        ]
        own = await unasked(client, url, f"https://{NAME}:{secure}")
        other = await unasked(client, url, "https://elsewhere.example")
        http = await client.get(f"http://127.0.0.1:{plain}/live", headers={"Host": NAME})

    assert through.status_code == 200 and through.json()["data"] == direct.json()["data"]
    assert (large.status_code, large.json()["code"]) == (415, "unsupported_media_type")
    assert too_large.status_code == 413 and too_large.json()["code"] == "body_too_large"
    assert [answer.status_code for answer in inside] == [404] * 3
    assert not any("json" in answer.headers.get("content-type", "") for answer in inside)
    assert (other.status_code, other.json()["code"]) == (403, "forbidden_origin")
    assert own.json()["code"] != "forbidden_origin"
    assert http.status_code in (301, 308)
    assert http.headers["location"].startswith(f"https://{NAME}")
    tls = ssl.TLSVersion
    at = (secure, NAME, trusted)
    assert await asyncio.to_thread(handshake, *at, tls.TLSv1_3) == ("TLSv1.3", "h2")
    assert await asyncio.to_thread(handshake, *at, tls.TLSv1_2) == ("TLSv1.2", "h2")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(handshake, secure, "other.example", trusted, tls.TLSv1_3)


async def unasked(client: httpx.AsyncClient, url: str, origin: str) -> httpx.Response:
    """What a page of an origin gets that posts without asking first."""
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    return await client.post(f"{url}/v1/encode", content=b"{}", headers=headers, extensions=SNI)


async def test_nginx_in_front_does_what_the_page_says(address: str, tmp_path: Path) -> None:
    """With TLS towards clients, and HTTP/1.1 on kept connections behind."""
    certificate(tmp_path)
    with nginx(tmp_path, address.removeprefix("http://")) as (secure, plain):
        await holds(address, tmp_path, secure, plain)


@pytest.mark.prove
async def test_caddy_in_front_does_what_the_page_says(address: str, tmp_path: Path) -> None:
    """The same."""
    certificate(tmp_path)
    with caddy(tmp_path, address.removeprefix("http://")) as (secure, plain):
        await holds(address, tmp_path, secure, plain)
