"""A kept-alive connection to the link's post box, for a node and for the relay; it needs nothing of Flower.

Every request of a node is signed with the key under which it is registered, over the time and the body; the relay shows
the token of its task. What passes is sealed, so this decides only who may take up the link's time.
"""

import base64
import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_private_key,
)

from fedveil.core.errors import BadValue, FedveilError
from fedveil.wire import frames

# Of the post box, which a node need not load.

NODE_PATH: Final = "/v1/fleet/fedveil-post"
RELAY_PATH: Final = "/v1/runtime/fedveil-post"
HOLD: Final = "hold"  # what a node asks for: its next question, within so many seconds
SIGN: Final = "sign"  # or nothing; it says that it is still there
LONGEST_HOLD: Final = 20.0  # seconds that a request is kept open; a proxy's own limit must be longer

KEY_HEADER: Final = "fedveil-node"
TIME_HEADER: Final = "fedveil-time"
SIGNATURE_HEADER: Final = "fedveil-signature"
_SKEW: Final = 300.0  # seconds by which the clocks of a node and the link may differ
_SILENCE: Final = LONGEST_HOLD + 20.0  # seconds without a byte after which a connection counts as cut
_SAID: Final = 200  # characters of the link's words that are repeated in a message

Headers = Callable[[bytes], Mapping[str, str]]


class NoPostBox(FedveilError):
    """The link has no post box: it is Flower's own program."""


class NotAdmitted(FedveilError):
    """The link does not know this node or this task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The address of a SuperLink and its certificate; ``name``: its name in Flower's configuration."""

    name: str
    host: str
    port: int
    authority: Path

    @property
    def address(self) -> str:
        """Host and port, as one string."""
        return f"{self.host}:{self.port}"


@final
@dataclass(slots=True)
class Channel:
    """One connection to the post box of a link; ``headers``: what a request with this body must show.

    ``silence``: seconds without a byte after which it counts as cut. ``sent``: called when so many bytes were handed to
    the system; ``began``: when their answer begins to arrive.
    """

    host: str
    port: int
    authority: Path
    path: str
    headers: Headers
    silence: float = _SILENCE
    sent: Callable[[int], None] = lambda size: None
    began: Callable[[], None] = lambda: None
    _connection: http.client.HTTPSConnection | None = None
    _context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self._context = ssl.create_default_context(cafile=str(self.authority))

    def exchange(self, blocks: frames.Blocks) -> frames.Blocks:
        """Send blocks and return the answer; raise ``OSError`` if the link cannot be reached or the line is cut."""
        body, reused = frames.encode(blocks), self._connection is not None
        try:
            return self._request(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # A server closes connections that are idle. Asking twice is safe: the post box knows what was answered.
            if not reused or isinstance(error, TimeoutError):
                raise OSError(f"the link cannot be reached ({type(error).__name__})") from error
        try:
            return self._request(body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise OSError(f"the link cannot be reached ({type(error).__name__})") from error

    def close(self) -> None:
        """Close the connection; the next exchange opens another."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None

    def _request(self, body: bytes) -> frames.Blocks:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=self.silence, context=self._context
            )
        self._connection.request("POST", self.path, body, dict(self.headers(body)))
        self.sent(len(body))
        response = self._connection.getresponse()
        self.began()
        said = response.read()
        if response.status in (404, 405):
            raise NoPostBox("The link has no post box.")
        if response.status in (401, 403):
            raise NotAdmitted(f"The link says: {said[:_SAID].decode('utf-8', 'replace')}")
        if response.status != 200:
            raise ConnectionError(f"the link answered with status {response.status}")
        return frames.decode(said)


def node_headers(key: Path, now: Callable[[], float] = time.time) -> Headers:
    """Return what signs the requests of a node with its key."""
    try:
        private = load_ssh_private_key(key.read_bytes(), None)
    except ValueError as error:
        raise BadValue(f"{key.name} must hold a node's private key, as fedveil deploy wrote it: {error}.") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise BadValue(f"{key.name} must hold an elliptic-curve key, as fedveil deploy wrote it.")
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    shown = base64.b64encode(public).decode("ascii")

    def headers(body: bytes) -> Mapping[str, str]:
        moment = f"{now():.3f}"
        signature = private.sign(_statement(moment, body), ec.ECDSA(SHA256()))
        return {
            KEY_HEADER: shown,
            TIME_HEADER: moment,
            SIGNATURE_HEADER: base64.b64encode(signature).decode("ascii"),
        }

    return headers


def key_of(headers: Mapping[str, str]) -> bytes:
    """Return the public key, in PEM, that a request claims to be from; not yet verified."""
    try:
        return base64.b64decode(headers.get(KEY_HEADER, ""), validate=True)
    except ValueError:
        return b""


def check_signed(headers: Mapping[str, str], body: bytes, now: float) -> None:
    """Raise ``ValueError`` unless the key that a request shows has signed it, now."""
    try:
        signature, moment = base64.b64decode(headers[SIGNATURE_HEADER], validate=True), headers[TIME_HEADER]
        key = load_pem_public_key(key_of(headers))
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("not signed by a node's key")
        key.verify(signature, _statement(moment, body), ec.ECDSA(SHA256()))
    except (KeyError, InvalidSignature) as error:
        raise ValueError("not signed by a node's key") from error
    if not abs(float(moment) - now) <= _SKEW:
        raise ValueError("of another time; compare the clocks of the two machines")


def _statement(moment: str, body: bytes) -> bytes:
    return b"fedveil post box\n" + moment.encode("ascii") + b"\n" + sha256(body).digest()
