"""TLS at HAProxy itself: a real client, a CA of our own, and a certificate that is renewed."""

import ipaddress
import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from service.cli import main
from service.cluster import haproxy, network, tls
from service.cluster.drain import Frontend
from service.start import ray_session
from service.tables.settings import Settings
from tests import rays_haproxy

NAME = "api.example.org"
KEY = ec.generate_private_key(ec.SECP256R1())  # of the authority
SIGNS = x509.KeyUsage(False, False, False, False, False, True, False, False, False)


def write(folder: Path, serial: int, password: bytes | None = None) -> tuple[Path, Path]:
    """A certificate of our authority and its key; ca.crt is the authority's."""
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    days = now - timedelta(minutes=1), now + timedelta(days=1)
    names = x509.SubjectAlternativeName(
        [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )

    def signed(who: x509.Name, of: ec.EllipticCurvePrivateKey, authority: bool) -> bytes:
        made = x509.CertificateBuilder().subject_name(who).issuer_name(issuer)
        made = made.public_key(of.public_key()).serial_number(serial)
        made = made.not_valid_before(days[0]).not_valid_after(days[1]).add_extension(names, False)
        made = made.add_extension(x509.BasicConstraints(authority, None), True)
        if authority:
            made = made.add_extension(SIGNS, True)
        for extension in (
            x509.AuthorityKeyIdentifier.from_issuer_public_key(KEY.public_key()),
            x509.SubjectKeyIdentifier.from_public_key(of.public_key()),
        ):
            made = made.add_extension(extension, False)
        return made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    how = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "ca.crt").write_bytes(signed(issuer, KEY, True))
    cert, kept = folder / "tls.crt", folder / "tls.key"
    cert.write_bytes(signed(subject, key, False))
    kept.write_bytes(key.private_bytes(*form, how))
    return cert, kept


@contextmanager
def running(folder: Path, pem: bytes) -> Iterator[int]:
    """HAProxy as Ray runs it, with a certificate; its port."""
    node, port = folder / "haproxy" / "node", rays_haproxy.free_port()
    node.mkdir(parents=True)
    (node / "haproxy.cfg").write_text(rays_haproxy.written_by_ray(port, {}, node))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(haproxy.TLS_VARIABLE, str(tls.write_certificate(pem, folder)))
        with rays_haproxy.running(node / "haproxy.cfg", port):
            yield port


def trusting(authority: Path) -> ssl.SSLContext:
    """What a client of the authority verifies by from Python 3.13 on, on any Python."""
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def serial(port: int, authority: Path) -> int:
    """The number of the certificate that a client of the authority accepts."""
    context = trusting(authority)
    with socket.create_connection(("127.0.0.1", port)) as plain:
        with context.wrap_socket(plain, server_hostname=NAME) as client:
            shown = client.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown).serial_number


def test_a_client_of_the_authority_is_answered_over_tls_and_http_1(tmp_path: Path) -> None:
    """Though it would speak HTTP/2; in clear text nothing is answered."""
    cert, key = write(tmp_path, 1)
    pem = tls.read_certificate(Settings(tls_cert=cert, tls_key=key))
    context = trusting(tmp_path / "ca.crt")
    context.set_alpn_protocols(["h2", "http/1.1"])

    with running(tmp_path, pem) as port:
        with httpx.Client(verify=context) as client:
            answer = client.get(f"https://127.0.0.1:{port}/-/healthz")
            with pytest.raises(httpx.RemoteProtocolError):
                client.get(f"http://127.0.0.1:{port}/-/healthz")
        with pytest.raises(httpx.ConnectError, match="self-signed|unable to get local issuer"):
            httpx.get(f"https://127.0.0.1:{port}/-/healthz")

    assert (answer.text, answer.http_version) == ("success", "HTTP/1.1")


def test_a_renewed_certificate_is_taken_up_while_a_wrong_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart; a key without its certificate is said, and the last good pair stays."""
    monkeypatch.setattr(tls, "POLL_SECONDS", 0.02)
    cert, key = write(tmp_path, 1)
    settings = Settings(tls_cert=cert, tls_key=key)
    said: list[str] = []
    told = threading.Semaphore(0)

    def say(line: str) -> None:
        said.append(line)
        told.release()

    with running(tmp_path, tls.read_certificate(settings)) as port:
        frontend = Frontend(tmp_path / "haproxy", port)
        with tls.follow_certificate(settings, tmp_path, frontend, say):
            first = serial(port, tmp_path / "ca.crt")
            good = cert.read_bytes()
            cert.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
            assert told.acquire(timeout=30)
            kept = serial(port, tmp_path / "ca.crt")
            cert.write_bytes(good)
            write(tmp_path, 2)
            while "the certificate was renewed" not in said:
                assert told.acquire(timeout=30)
            renewed = serial(port, tmp_path / "ca.crt")

    assert (first, kept, renewed) == (1, 1, 2)
    assert said[0].startswith("warning: the last good certificate stays: tls_cert")


def test_certificate_and_key_lie_where_only_we_read_them(tmp_path: Path) -> None:
    """Also when they replace others."""
    cert, key = write(tmp_path, 1)
    pem = tls.read_certificate(Settings(tls_cert=cert, tls_key=key))

    for _ in range(2):
        placed = tls.write_certificate(pem, tmp_path)

    assert stat.S_IMODE(placed.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob("tls.pem*")] == ["tls.pem"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda cert, key: key.unlink(), "No such file"),
        (lambda cert, key: cert.write_text("no PEM"), "no PEM|not PEM"),
        (lambda cert, key: write(cert.parent, 3, b"a password"), "it is encrypted"),
        (lambda cert, key: key.write_bytes(other()), "key values mismatch"),
    ],
)
def test_a_certificate_that_cannot_be_used_ends_the_start_with_a_line(
    tmp_path: Path, change: object, why: str
) -> None:
    """Before Ray starts, and never with the key in it."""
    cert, key = write(tmp_path, 1)
    change(cert, key)  # type: ignore[operator]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    told = CliRunner().invoke(
        main, ["serve", "--port", str(port), "--tls-cert", str(cert), "--tls-key", str(key)]
    )

    asked = ["--port", str(port), "--tls-cert", str(cert), "--tls-key", str(key)]
    doctor = CliRunner().invoke(main, ["doctor", *asked])
    assert told.exit_code == doctor.exit_code == 2 and len(told.output.splitlines()) == 1
    assert told.output.removeprefix("headlight: ").strip() in doctor.output
    with pytest.raises(tls.BadCertificate, match=why):
        tls.read_certificate(Settings(tls_cert=cert, tls_key=key))


def other() -> bytes:
    """Another key."""
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    made = ec.generate_private_key(ec.SECP256R1())
    return made.private_bytes(*form, serialization.NoEncryption())


def test_the_one_needs_the_other(tmp_path: Path) -> None:
    """A certificate without a key, or the other way round, is half a setting."""
    told = CliRunner().invoke(main, ["serve", "--tls-cert", str(tmp_path / "a")])

    assert told.exit_code == 2 and "--tls-cert needs --tls-key" in told.output


def test_keys_in_clear_text_are_warned_about(tmp_path: Path) -> None:
    """On other addresses than this machine's own; and a file of keys that others can read."""
    file = tmp_path / "keys"
    file.touch(0o600)
    keyed = Settings(api_keys_file=file, host="0.0.0.0")
    safe = keyed.model_copy(update={"tls_cert": Path("a"), "tls_key": Path("b")})

    here = keyed.model_copy(update={"host": "127.0.0.1"})

    assert "in clear text" in "".join(network.warn_of_exposure(keyed))
    assert not [*network.warn_of_exposure(safe)] and not [*network.warn_of_exposure(here)]
    file.chmod(0o640)
    assert [*network.warn_of_exposure(here)] == [
        f"other users of this machine can read {file}: chmod 600 {file}"
    ]


def test_what_haproxys_wrapper_reads_is_there_when_ray_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The variables of our own settings are gone by then, these two are not."""
    seen: dict[str, str] = {}
    monkeypatch.setenv("HEADLIGHT_MODEL", "another")
    monkeypatch.setattr(ray_session, "start_ray_processes", lambda *_: seen.update(os.environ))
    cert, key = write(tmp_path, 1)
    settings = Settings(tls_cert=cert, tls_key=key)
    before = dict(os.environ)
    try:
        with ray_session.start_own_ray(
            settings, lambda _: None, tls.read_certificate(settings)
        ) as run:
            assert seen[haproxy.TLS_VARIABLE] == str(run / "tls.pem") and (run / "tls.pem").exists()
    finally:
        os.environ.clear()
        os.environ.update(before)

    assert seen[haproxy.HOST_VARIABLE] == "127.0.0.1" and "HEADLIGHT_MODEL" not in seen
