"""The files of a deployment: what the aggregator holds, what goes to each site, and a page that says what to do."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.run.certificates import MOST_DAYS, make_certificates, make_node_key
from fedveil.run.deployment_page import guard_unit, node_unit, page, superexec_unit, superlink_unit
from fedveil.run.files import PUBLIC, private_folder, write_atomically
from fedveil.tables import known, read_tables, table, write_tables
from fedveil.wire.keys import AGGREGATOR, Card, Identity, check_name

_MOST_SITES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A deployment to be written; ``host`` is how sites reach the link."""

    sites: tuple[str, ...]
    host: str
    port: int
    days: int = 365

    def __post_init__(self) -> None:
        for site in self.sites:
            check_name(site)
            require(site != AGGREGATOR, "--sites", "not name the aggregator", site)
        distinct = len(set(self.sites)) == len(self.sites)
        require(distinct and 1 <= len(self.sites) <= _MOST_SITES, "--sites", "name each site once", self.sites)
        plain = self.host != "" and self.host.isprintable() and not set(self.host) & set(" /:\"'\\")
        require(plain, "--host", "be a host's name or IPv4 address", self.host)
        require(1 <= self.port <= 65535, "--port", "lie between 1 and 65535", self.port)
        require(1 <= self.days <= MOST_DAYS, "--days", f"lie between 1 and {MOST_DAYS}", self.days)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An aggregator's folder, read: where its link is, who it is, and who its sites are."""

    folder: Path
    host: str
    port: int
    identity: Identity
    cards: dict[str, Card]

    @property
    def authority(self) -> Path:
        """The certificate that proves the link."""
        return self.folder / "authority.pem"

    def node_key(self, site: str) -> Path:
        """The public key that a site's node proves itself with."""
        return self.folder / "nodes" / f"{site}.pub"

    @property
    def node_keys(self) -> dict[str, Path]:
        """That key of every site."""
        return {site: self.node_key(site) for site in self.cards}


def write_deployment(folder: Path, wanted: Wanted, now: datetime, random: Callable[[int], bytes] = os.urandom) -> None:
    """Write a new deployment; private files are closed to others."""
    require(not folder.exists() or not any(folder.iterdir()), "FOLDER", "be a new folder", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    hosts = [wanted.host] if wanted.host in ("127.0.0.1", "localhost") else [wanted.host, "127.0.0.1"]
    certified = make_certificates(list(dict.fromkeys([*hosts, "localhost"])), now, wanted.days)
    center = private_folder(folder / AGGREGATOR)
    identity = Identity.make(AGGREGATOR, random(64))
    where = {"host": wanted.host, "port": wanted.port, "sites": wanted.sites}
    private = {"server.key": certified.key, "superexec.secret": random(32), "identity.key": identity.text().encode()}
    public = {
        "deployment.toml": write_tables({"deployment": where}).encode(),
        "authority.pem": certified.authority,
        "server.pem": certified.certificate,
        "aggregator.pub": identity.card.text().encode(),
        "fedveil-superlink.service": superlink_unit(wanted.port).encode(),
        "fedveil-superexec.service": superexec_unit(wanted.port).encode(),
    }
    _write(center, private, public)
    for kind in ("sites", "nodes"):
        (center / kind).mkdir()
    private_folder(folder / "sites")
    owned = {site: Identity.make(site, random(64)) for site in wanted.sites}
    for site, own in owned.items():
        node = make_node_key()
        place = private_folder(folder / "sites" / site)
        units = {"fedveil-guard.service": guard_unit(), "fedveil-node.service": node_unit(wanted.host, wanted.port)}
        shown = {"authority.pem": certified.authority, "aggregator.pub": identity.card.text().encode()}
        shown |= {"identity.pub": own.card.text().encode(), "node.pub": node.public}
        shown |= {name: text.encode() for name, text in units.items()}
        shown |= {f"peers/{name}.pub": peer.card.text().encode() for name, peer in owned.items() if name != site}
        (place / "peers").mkdir()
        _write(place, {"identity.key": own.text().encode(), "node.key": node.private}, shown)
        write_atomically(center / "sites" / f"{site}.pub", own.card.text().encode(), mode=PUBLIC)
        write_atomically(center / "nodes" / f"{site}.pub", node.public, mode=PUBLIC)
    write_atomically(folder / "README.md", page(wanted.sites, wanted.host, wanted.port).encode(), mode=PUBLIC)


def read_deployment(folder: Path) -> Deployment:
    """The aggregator's folder of a deployment, or the deployment's folder itself."""
    center = folder if (folder / "deployment.toml").exists() else folder / AGGREGATOR
    tables = read_tables(read_text(center / "deployment.toml"), "deployment.toml")
    where = table(tables.get("deployment", {}), "deployment")
    known(where, ["host", "port", "sites"], "[deployment]")
    wanted = Wanted(
        sites=tuple(where.get("sites", ())), host=str(where.get("host", "")), port=int(where.get("port", 0))
    )
    cards = {site: Card.read(read_text(center / "sites" / f"{site}.pub")) for site in wanted.sites}
    for site, card in cards.items():
        require(card.name == site, f"sites/{site}.pub", f"be the key of {site}", card.name)
    identity = Identity.read(read_text(center / "identity.key"))
    return Deployment(folder=center.absolute(), host=wanted.host, port=wanted.port, identity=identity, cards=cards)


def read_site(key: Path) -> tuple[Identity, Card]:
    """A site's own key and its aggregator's public one, which lies beside it."""
    return Identity.read(read_text(key)), Card.read(read_text(key.parent / "aggregator.pub"))


def read_peers(key: Path) -> dict[str, Card]:
    """The other sites' public keys, in the folder peers beside a site's own key; none where there is no such folder."""
    cards = {path.stem: Card.read(read_text(path)) for path in sorted((key.parent / "peers").glob("*.pub"))}
    for name, card in cards.items():
        require(card.name == name, f"peers/{name}.pub", f"be the key of {name}", card.name)
    return cards


def rekey(folder: Path, random: Callable[[int], bytes] = os.urandom) -> None:
    """New keys of a site, made where they are used; their public halves are for the aggregator (and other sites)."""
    identity, _ = read_site(folder / "identity.key")
    own, node = Identity.make(identity.name, random(64)), make_node_key()
    _write(
        folder,
        {"identity.key": own.text().encode(), "node.key": node.private},
        {"identity.pub": own.card.text().encode(), "node.pub": node.public},
    )


def read_text(path: Path) -> str:
    """A text file of a deployment."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"{path} must be a readable file of a deployment: {error}.") from error


def _write(folder: Path, private: dict[str, bytes], public: dict[str, bytes]) -> None:
    for name, data in private.items():
        write_atomically(folder / name, data)
    for name, data in public.items():
        write_atomically(folder / name, data, mode=PUBLIC)


def site_folders(folder: Path, sites: Sequence[str]) -> dict[str, Path]:
    """Where each site's files were written."""
    return {site: (folder / "sites" / site).absolute() for site in sites}
