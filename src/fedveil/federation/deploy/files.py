"""The files of a deployment: what the aggregator holds, what goes to each site, and a page that says what to do."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from shlex import join
from string import Template
from typing import Any, Final, Literal, get_args

from fedveil.core.errors import require
from fedveil.core.files import public_folder
from fedveil.core.tables import known, read_tables, table, write_tables
from fedveil.engine.files import PUBLIC, private_folder, write_atomically
from fedveil.federation.deploy.certificates import MOST_DAYS, Certified, make_certificates, make_node_key
from fedveil.federation.deploy.own_keys import HOLDER_CARD, read_site, read_text
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.network import LINK_PROGRAM, SECRET, relay_command, superlink_command
from fedveil.federation.nvflare.job import PLACES, job_files, places
from fedveil.wire.keys import AGGREGATOR, Card, Identity, check_name

# What people read in a deployment: a page of instructions, from the texts page*.md beside this file.


def page(
    sites: Sequence[str], host: str, port: int, inside: int, holder: str | None = None, on_flare: bool = False
) -> str:
    """Return the page for these sites, and for a key holder where there is one.

    ``on_flare``: the consortium runs NVFlare already, so there is no link of ours.
    """
    listed = [f"- `sites/{site}/` goes to {site}, by a way that nobody else can read" for site in sites]
    if holder is not None:
        listed.append(f"- `key-holder/` goes to {holder}, who is neither a site nor the aggregator, in the same way")
    values = {"host": host, "port": port, "inside": inside, "count": len(sites), "names": ", ".join(sites)}
    text = _text("page_nvflare.md" if on_flare else "page.md", values | {"listed": "\n".join(listed)})
    if holder is None or on_flare:
        return text
    return f"{text}\n{_text('page_key_holder.md', {**values, 'holder': holder})}"


def _text(file: str, values: dict[str, object]) -> str:
    text = files("fedveil.federation.deploy").joinpath(file).read_text(encoding="utf-8")
    return Template(text).substitute(values)


# The systemd units of a deployment: one unit and one user for each process, and the users themselves.
#
# At the aggregator, three users separate what an attacker might reach one after another: ``fedveil-link`` runs Flower's
# link, ``fedveil-relay`` the relay beside it, and only ``fedveil``, who runs studies, can read the aggregator's keys
# and books. The relay shares its socket with ``fedveil`` and a secret for tasks with the link; nothing else is shared.

ETC: Final = Path("/etc/fedveil")
RELAY_SOCKET: Final = Path("/run/fedveil-relay/relay.sock")
INSIDE: Final = "127.0.0.1"  # the link listens on its own machine only
_HARDENED: Final = """NoNewPrivileges=yes
CapabilityBoundingSet=
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
UMask=0077
Restart=always
RestartSec=5
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
"""
_ALONE: Final = f"""InaccessiblePaths=-{ETC}/aggregator
IPAddressDeny=any
IPAddressAllow=localhost
"""
CENTER_USERS: Final = """# For /etc/sysusers.d/fedveil.conf; fedveil may open the relay's socket.
u fedveil - "fedveil: runs studies, owns keys and books" /var/lib/fedveil
u fedveil-link - "fedveil: Flower link"
u fedveil-relay - "fedveil: relay"
m fedveil fedveil-relay
"""
SITE_USERS: Final = """# For /etc/sysusers.d/fedveil.conf; the guard gives its socket to the node's group.
u fedveil-site - "fedveil: guard, owns data, keys and books" /var/lib/fedveil-site
u fedveil-node - "fedveil: Flower node"
m fedveil-site fedveil-node
"""
HOLDER_USERS: Final = """# For /etc/sysusers.d/fedveil.conf; the holder gives its socket to the node's group.
u fedveil-keyholder - "fedveil: key holder" /var/lib/fedveil-keyholder
u fedveil-node - "fedveil: Flower node"
m fedveil-keyholder fedveil-node
"""


def _unit(what: str, command: str, user: str, extra: str = "") -> str:
    """Return a unit file; the user's name is also the name of its folder in /var/lib."""
    return (
        f"[Unit]\nDescription={what}\nAfter=network-online.target\nWants=network-online.target\n\n"
        f"[Service]\nExecStart={command}\nUser={user}\nStateDirectory={user}\nStateDirectoryMode=0700\n"
        f"Environment=FLWR_HOME=/var/lib/{user}/flower\n{extra}{_HARDENED}\n[Install]\nWantedBy=multi-user.target\n"
    )


def _link(inside: int, folder: Path) -> Link:
    """Return the link as seen from its own machine; the commands are the same as in a trial."""
    return Link(name="fedveil", host=INSIDE, port=inside, authority=folder / "authority.pem")


def link_unit(inside: int) -> str:
    """Return the unit of the link.

    It listens on the loopback interface with TLS, for registered nodes only; tasks need a secret, and nothing is
    installed.
    """
    here = ETC / "link"
    files = (here / "server.pem", here / "server.key", here / SECRET)
    command = superlink_command(_link(inside, here), *files, program=(LINK_PROGRAM,))
    return _unit("fedveil: Flower link", join(command), "fedveil-link", _ALONE)


def relay_unit(inside: int) -> str:
    """Return the unit of the relay, the only process between link and aggregator; it runs no uploaded code."""
    here = ETC / "relay"
    command = relay_command(_link(inside, here), here / SECRET, RELAY_SOCKET, "fedveil-relay")
    extra = f"RuntimeDirectory=fedveil-relay\nRuntimeDirectoryMode=0750\n{_ALONE}InaccessiblePaths=-{ETC}/link\n"
    return _unit("fedveil: relay", join(command), "fedveil-relay", extra)


def guard_unit() -> str:
    """Return the unit of the guard, the only process of a site that can read its data and its keys."""
    command = (
        "fedveil site --data /etc/fedveil/site/data.toml --key /etc/fedveil/site/identity.key"
        " --records /var/lib/fedveil-site --socket /run/fedveil-site/guard.sock --group fedveil-node --accept PLAN-HASH"
    )
    return _unit("fedveil: site guard", command, "fedveil-site", "RuntimeDirectory=fedveil-site\n")


def holder_unit() -> str:
    """Return the unit of the key holder, the only process that can open sums."""
    command = (
        "fedveil keyholder --key /etc/fedveil/keyholder/identity.key --records /var/lib/fedveil-keyholder"
        " --socket /run/fedveil-keyholder/guard.sock --group fedveil-node --accept PLAN-HASH"
    )
    return _unit("fedveil: key holder", command, "fedveil-keyholder", "RuntimeDirectory=fedveil-keyholder\n")


def node_unit(host: str, port: int, guard: str = "fedveil-site") -> str:
    """Return the unit of a node; its own user can read neither the data nor the guard's keys."""
    command = (
        f"fedveil node --superlink {host}:{port} --key /etc/fedveil/node/node.key"
        f" --authority /etc/fedveil/node/authority.pem --socket /run/{guard}/guard.sock"
    )
    return _unit("fedveil: Flower node", command, "fedveil-node")


# The proxy in front of the link: an nginx that passes on what nodes need of Flower's fleet interface, nothing else.
#
# Flower's link answers everything on one port, including the commands that start runs and register nodes, and asks for
# no password there. So the link listens on its own machine only, and outsiders reach nothing but the paths below.

FLEET: Final = (
    "fedveil-post",
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)


def proxy_configuration(port: int, inside: int, place: Path = ETC / "proxy") -> str:
    """Return a configuration for nginx's folder ``conf.d``; ``place``: the folder of the certificate and its key.

    The path that is passed on is built from the name that matched, so no spelling of a path leads elsewhere.
    """
    return f"""# Passes on what the sites' nodes need, and nothing else: neither the commands that start runs
# (/v1/control) nor tasks (/v1/runtime). Put this file into /etc/nginx/conf.d.
upstream fedveil_link {{
    server {INSIDE}:{inside};
    keepalive 32;
}}
limit_conn_zone $binary_remote_addr zone=fedveil:1m;

server {{
    listen {port} ssl;
    ssl_certificate {place}/server.pem;
    ssl_certificate_key {place}/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    server_tokens off;
    limit_conn fedveil 64;
    client_header_timeout 10s;
    client_body_timeout 30s;
    client_max_body_size 1g;  # the largest update of a site

    location ~ ^/v1/fleet/({"|".join(FLEET)})\\z {{
        limit_except POST {{ deny all; }}
        proxy_pass https://fedveil_link/v1/fleet/$1;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_request_buffering off;
        proxy_read_timeout 120s;
        proxy_ssl_trusted_certificate {place}/authority.pem;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
    }}

    location / {{
        return 404;
    }}
}}
"""


HOLDER: Final = "key-holder"  # its folder's name
LINK: Final = "link"  # folders on the aggregator's machine, one for each user
RELAY: Final = "relay"
PROXY: Final = "proxy"
_USERS: Final = "fedveil-users.conf"
_MOST_SITES: Final = 1000

Engine = Literal["flower", "nvflare"]  # what carries the envelopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A deployment to be written; ``holder``: a third party, if there is one.

    ``host`` and ``port`` are how sites reach the proxy. ``inside`` is the link's own port, reachable on its machine
    only, and ``relay`` the socket that the relay shares with the aggregator. A trial on one machine has no proxy and
    one port. On NVFlare, which the consortium runs already, host and ports are NVFlare's own affair.
    """

    sites: tuple[str, ...]
    host: str
    port: int
    inside: int = 9093
    relay: str = str(RELAY_SOCKET)
    days: int = 365
    holder: str | None = None
    engine: Engine = "flower"

    def __post_init__(self) -> None:
        require(self.engine in get_args(Engine), "--engine", f"be one of {', '.join(get_args(Engine))}", self.engine)
        for site in self.sites:
            check_name(site)
            require(site != AGGREGATOR, "--sites", "not name the aggregator", site)
        distinct = len(set(self.sites)) == len(self.sites)
        require(distinct and 1 <= len(self.sites) <= _MOST_SITES, "--sites", "name each site once", self.sites)
        if self.holder is not None:
            check_name(self.holder)
            hint = "Whoever holds the key must be neither a site nor the aggregator."
            apart = self.holder not in (*self.sites, AGGREGATOR)
            require(apart, "--key-holder", "be somebody else than the sites", self.holder, hint)
        plain = self.host != "" and self.host.isprintable() and not set(self.host) & set(" /:\"'\\")
        require(plain, "--host", "be a host's name or IPv4 address", self.host)
        for option, port in (("--port", self.port), ("--inside-port", self.inside)):
            whole = type(port) is int and 1 <= port <= 65535
            require(whole, option, "lie between 1 and 65535", port)
        apart = self.port != self.inside or self.host == INSIDE
        require(apart, "--inside-port", "differ from --port, where the proxy listens", self.inside)
        absolute = isinstance(self.relay, str) and self.relay.startswith("/")
        require(absolute, "deployment.relay", "be the absolute path of the relay's socket", self.relay)
        require(1 <= self.days <= MOST_DAYS, "--days", f"lie between 1 and {MOST_DAYS}", self.days)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The content of an aggregator's folder: its link, its own identity, its sites, and the key holder if any."""

    folder: Path
    host: str
    port: int
    inside: int
    relay: Path
    identity: Identity
    cards: dict[str, Card]
    holder: Card | None = None
    engine: Engine = "flower"

    @property
    def parties(self) -> dict[str, Card]:
        """Public keys of all parties that are reached: the sites, and the key holder."""
        return self.cards if self.holder is None else {**self.cards, self.holder.name: self.holder}

    @property
    def authority(self) -> Path:
        """The certificate that authenticates the link."""
        return self.folder / "authority.pem"

    def node_key(self, site: str) -> Path:
        """Return the public key that authenticates the node of a site, or of the key holder."""
        return self.folder / "nodes" / f"{site}.pub"

    @property
    def node_keys(self) -> dict[str, Path]:
        """The public node keys of all sites and of the key holder."""
        return {site: self.node_key(site) for site in self.parties}


def write_deployment(folder: Path, wanted: Wanted, now: datetime, random: Callable[[int], bytes] = os.urandom) -> None:
    """Write a new deployment; private files can be read by their owner only."""
    require(not folder.exists() or not any(folder.iterdir()), "FOLDER", "be a new folder", str(folder))
    public_folder(folder)
    center, identity = private_folder(folder / AGGREGATOR), Identity.make(AGGREGATOR, random(64))
    _write_center(center, wanted, identity)
    known_to_all = {"aggregator.pub": identity.card.text().encode()}
    if wanted.engine == "flower":
        certified = make_certificates({PROXY: [wanted.host], LINK: ["localhost", INSIDE]}, now, wanted.days)
        known_to_all["authority.pem"] = certified.authority
        write_atomically(center / "authority.pem", certified.authority, mode=PUBLIC)
        _write_around(folder, wanted, certified, random(32))
    else:
        _write_flare(folder / "nvflare", wanted)
    private_folder(folder / "sites")
    if wanted.holder is not None:
        own = Identity.make(wanted.holder, random(64))
        units = {"fedveil-keyholder.service": holder_unit(), _USERS: HOLDER_USERS}
        _write_member(folder / HOLDER, own, center, known_to_all, units, wanted, "fedveil-keyholder")
        known_to_all[HOLDER_CARD] = own.card.text().encode()
        write_atomically(center / HOLDER_CARD, known_to_all[HOLDER_CARD], mode=PUBLIC)
    owned = {site: Identity.make(site, random(64)) for site in wanted.sites}
    for site, own in owned.items():
        units = {"fedveil-guard.service": guard_unit(), _USERS: SITE_USERS}
        place = folder / "sites" / site
        _write_member(place, own, center, known_to_all, units, wanted, "fedveil-site")
        public_folder(place / "peers")
        peers = {f"peers/{name}.pub": peer.card.text().encode() for name, peer in owned.items() if name != site}
        _write(place, {}, peers)
        write_atomically(center / "sites" / f"{site}.pub", own.card.text().encode(), mode=PUBLIC)
    text = page(
        wanted.sites, wanted.host, wanted.port, wanted.inside, wanted.holder, on_flare=wanted.engine == "nvflare"
    )
    write_atomically(folder / "README.md", text.encode(), mode=PUBLIC)


def _write_center(center: Path, wanted: Wanted, identity: Identity) -> None:
    """Write the files of the aggregator's own user, except the public keys of the others."""
    where: dict[str, Any] = {"host": wanted.host, "port": wanted.port, "inside": wanted.inside, "relay": wanted.relay}
    where |= {"sites": wanted.sites, "engine": wanted.engine}
    where |= {} if wanted.holder is None else {"key_holder": wanted.holder}
    public = {
        "deployment.toml": write_tables({"deployment": where}).encode(),
        "aggregator.pub": identity.card.text().encode(),
        _USERS: CENTER_USERS.encode(),
    }
    _write(center, {"identity.key": identity.text().encode()}, public)
    for kind in ("sites", "nodes"):
        public_folder(center / kind)


def _write_around(folder: Path, wanted: Wanted, certified: Certified, secret: bytes) -> None:
    """Write the files of the link, the relay and the proxy, in separate folders because each is another user."""
    link, proxy = certified.servers[LINK], certified.servers[PROXY]
    shown = {"authority.pem": certified.authority}
    unit = {"fedveil-link.service": link_unit(wanted.inside).encode(), "server.pem": link.certificate}
    _write(private_folder(folder / LINK), {"server.key": link.key, SECRET: secret}, shown | unit)
    unit = {"fedveil-relay.service": relay_unit(wanted.inside).encode()}
    _write(private_folder(folder / RELAY), {SECRET: secret}, shown | unit)
    text = proxy_configuration(wanted.port, wanted.inside)
    unit = {"fedveil-proxy.conf": text.encode(), "server.pem": proxy.certificate}
    _write(private_folder(folder / PROXY), {"server.key": proxy.key}, shown | unit)


def _write_flare(folder: Path, wanted: Wanted) -> None:
    """Write the job for the consortium's NVFlare, and what goes into the startup kit of its server."""
    public_folder(folder)
    for name, text in job_files([*wanted.sites, *([wanted.holder] if wanted.holder else [])]).items():
        public_folder((folder / "job" / name).parent)
        write_atomically(folder / "job" / name, text, mode=PUBLIC)
    write_atomically(folder / PLACES, places(relay=wanted.relay, group="fedveil"), mode=PUBLIC)


def _write_member(
    folder: Path,
    own: Identity,
    center: Path,
    shown: Mapping[str, bytes],
    units: Mapping[str, str],
    wanted: Wanted,
    user: str,
) -> None:
    """Write what goes to a site, or to the key holder: its keys, the public keys it must know, its unit files.

    ``user``: who runs its guard. What stands between guard and engine is a node of Flower's, or NVFlare's client.
    """
    private = {"identity.key": own.text().encode()}
    public = {
        **shown,
        "identity.pub": own.card.text().encode(),
        **{name: text.encode() for name, text in units.items()},
    }
    if wanted.engine == "flower":
        node = make_node_key()
        private["node.key"], public["node.pub"] = node.private, node.public
        public["fedveil-node.service"] = node_unit(wanted.host, wanted.port, user).encode()
        write_atomically(center / "nodes" / f"{own.name}.pub", node.public, mode=PUBLIC)
    else:
        public[PLACES] = places(guard=f"/run/{user}/guard.sock")
    _write(private_folder(folder), private, public)


def read_deployment(folder: Path) -> Deployment:
    """Read a deployment from the aggregator's folder, or from the folder that contains it."""
    center = folder if (folder / "deployment.toml").exists() else folder / AGGREGATOR
    tables = read_tables(read_text(center / "deployment.toml"), "deployment.toml")
    where = table(tables.get("deployment", {}), "deployment")
    known(where, ["host", "port", "inside", "relay", "sites", "key_holder", "engine"], "[deployment]")
    hint = "Write a new one with: fedveil deploy."
    require({"inside", "relay"} <= set(where), "deployment.toml", "name inside and relay", sorted(where), hint)
    wanted = Wanted(
        sites=tuple(where.get("sites", ())),
        host=str(where.get("host", "")),
        port=int(where.get("port", 0)),
        inside=where["inside"],
        relay=where["relay"],
        holder=where.get("key_holder"),
        engine=where.get("engine", "flower"),
    )
    cards = {site: Card.read(read_text(center / "sites" / f"{site}.pub")) for site in wanted.sites}
    for site, card in cards.items():
        require(card.name == site, f"sites/{site}.pub", f"be the key of {site}", card.name)
    holder = None if wanted.holder is None else Card.read(read_text(center / HOLDER_CARD))
    right = holder is None or holder.name == wanted.holder
    require(right, HOLDER_CARD, f"be the key of {wanted.holder}", None if holder is None else holder.name)
    return Deployment(
        folder=center.absolute(),
        host=wanted.host,
        port=wanted.port,
        inside=wanted.inside,
        relay=Path(wanted.relay),
        identity=Identity.read(read_text(center / "identity.key")),
        cards=cards,
        holder=holder,
        engine=wanted.engine,
    )


def rekey(folder: Path, random: Callable[[int], bytes] = os.urandom) -> None:
    """Make new keys of a site where they are used; their public keys are for the aggregator and the other sites."""
    identity, _ = read_site(folder / "identity.key")
    own = Identity.make(identity.name, random(64))
    private, public = {"identity.key": own.text().encode()}, {"identity.pub": own.card.text().encode()}
    if (folder / "node.key").exists():  # a site on Flower
        node = make_node_key()
        private["node.key"], public["node.pub"] = node.private, node.public
    _write(folder, private, public)


def _write(folder: Path, private: dict[str, bytes], public: dict[str, bytes]) -> None:
    for name, data in private.items():
        write_atomically(folder / name, data)
    for name, data in public.items():
        write_atomically(folder / name, data, mode=PUBLIC)


def site_folders(folder: Path, sites: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each site's files."""
    return {site: (folder / "sites" / site).absolute() for site in sites}
