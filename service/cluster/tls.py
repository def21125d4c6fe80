"""TLS at a service's own HAProxy: one file of certificate and key, followed as it is renewed.

HAProxy reads the file when it starts and at every reload of Ray's; a renewed certificate is handed
to it through its admin socket, so that no connection is lost (HAProxy's management guide, "set ssl
cert").
"""

import os
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from service.cluster.drain import Frontend
from service.tables.settings import Settings

POLL_SECONDS = 5.0  # between two readings of the files
# How a key says that it needs a password, for which OpenSSL would ask the terminal
ENCRYPTED = re.compile("^(-----BEGIN ENCRYPTED |Proc-Type: 4,ENCRYPTED)", re.MULTILINE)
PEM_NAME = "tls.pem"  # of certificate and key as HAProxy reads them


class BadCertificate(Exception):
    """The certificate or its key cannot be used; the message is one line."""


def read_certificate(settings: Settings) -> bytes:
    """Return the certificate, those that lead to its root, and its key as one PEM; b"" without TLS.

    Raises:
        BadCertificate: a file cannot be read, or the key does not fit or is encrypted.
    """
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None or key is None:
        return b""
    texts = [_read_text("tls_cert", cert), _read_text("tls_key", key)]
    if ENCRYPTED.search(texts[1]):
        raise BadCertificate(f"tls_key {key}: it is encrypted; expected one that needs no password")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        reason = getattr(error, "reason", None)
        why = reason.lower().replace("_", " ") if reason else "not PEM"
        raise BadCertificate(f"tls_cert {cert} and tls_key {key}: {why}") from error
    lines = (line for text in texts for line in text.splitlines() if line.strip())
    return ("\n".join(lines) + "\n").encode()


def _read_text(name: str, file: Path) -> str:
    """Return what the file of a setting holds; raises BadCertificate."""
    try:
        return file.read_text("ascii").strip()
    except OSError as error:
        raise BadCertificate(f"{name} {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadCertificate(f"{name} {file}: not PEM") from error


def write_certificate(pem: bytes, folder: Path) -> Path:
    """Write certificate and key into a folder, atomically and for us alone; return the path."""
    path, part = folder / PEM_NAME, folder / f"{PEM_NAME}.part"
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    part.replace(path)
    return path


@contextmanager
def follow_certificate(
    settings: Settings, folder: Path, frontend: Frontend, say: Callable[[str], None]
) -> Iterator[None]:
    """Hand each renewed certificate to HAProxy while the block runs.

    One that cannot be used is reported once, and the last good one in `folder` stays.
    """
    ended = threading.Event()

    def follow() -> None:
        """Read the files until the block ends, and hand over each certificate that is new."""
        held, wrong = (folder / PEM_NAME).read_bytes(), ""
        while not ended.wait(POLL_SECONDS):
            try:
                pem = read_certificate(settings)
                if pem == held:
                    continue
                frontend.replace_certificate(write_certificate(pem, folder), pem)
            except (BadCertificate, OSError) as error:
                if str(error) != wrong:
                    wrong = str(error)
                    say(f"warning: the last good certificate stays: {wrong}")
            else:
                held, wrong = pem, ""
                say("the certificate was renewed")

    thread = threading.Thread(target=follow, name="certificate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
