"""The files of a deployment: complete, closed to others, and such that sites and aggregator know each other."""

import re
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedveil.federation.deploy.check import check_place
from fedveil.federation.deploy.files import Wanted, read_deployment, rekey, write_deployment
from fedveil.federation.deploy.own_keys import read_holder, read_peers, read_site

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_deployment(tmp_path / "d", Wanted(sites=("north", "south"), host="link.example.org", port=9092), NOW)
    return tmp_path / "d"


def test_everyone_knows_everyone(folder: Path) -> None:
    center = read_deployment(folder)
    assert read_deployment(folder / "aggregator") == center
    for site in ("north", "south"):
        identity, aggregator = read_site(folder / "sites" / site / "identity.key")
        assert center.cards[site] == identity.card
        assert aggregator == center.identity.card
        peers = read_peers(folder / "sites" / site / "identity.key")
        assert peers == {name: card for name, card in center.cards.items() if name != site}
        assert center.node_key(site).read_bytes() == (folder / "sites" / site / "node.pub").read_bytes()


def test_a_key_holder_is_known_to_all_and_is_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    wanted = Wanted(sites=("north", "south"), host="link.example.org", port=9092, holder="notary")
    write_deployment(folder, wanted, NOW)
    center, (own, aggregator) = read_deployment(folder), read_site(folder / "key-holder" / "identity.key")
    assert (center.holder, aggregator) == (own.card, center.identity.card)
    assert center.parties == {**center.cards, "notary": own.card}
    assert set(center.cards) == {"north", "south"}
    assert center.node_key("notary").read_bytes() == (folder / "key-holder" / "node.pub").read_bytes()
    for site in wanted.sites:
        assert read_holder(folder / "sites" / site / "identity.key") == own.card
        assert "notary" not in read_peers(folder / "sites" / site / "identity.key")  # it is no site
    assert stat.S_IMODE((folder / "key-holder").stat().st_mode) == 0o700
    assert "fedveil keyholder" in (folder / "key-holder" / "fedveil-keyholder.service").read_text()
    door = "--socket /run/fedveil-keyholder/guard.sock"
    for unit in ("keyholder", "node"):
        assert door in (folder / "key-holder" / f"fedveil-{unit}.service").read_text()
    page = (folder / "README.md").read_text()
    assert "`key-holder/` goes to notary" in page
    assert "aggregator/nodes/notary.pub" in page
    (folder / "aggregator" / "nodes" / "notary.pub").unlink()
    rows = {row.what: row for row in check_place(folder, None, NOW)}
    assert rows["files"].detail == "no node key of notary"
    text = (folder / "aggregator" / "sites" / "south.pub").read_text()
    (folder / "aggregator" / "key-holder.pub").write_text(text)
    with pytest.raises(ValueError, match=r"key-holder\.pub must be the key of notary"):
        read_deployment(folder)


def test_a_deployment_without_a_key_holder_says_nothing_of_one(folder: Path) -> None:
    assert read_deployment(folder).holder is None
    assert read_holder(folder / "sites" / "north" / "identity.key") is None
    assert "key-holder" not in (folder / "README.md").read_text()
    assert not [path for path in folder.rglob("*") if "holder" in path.name]


@pytest.mark.parametrize("name", ["north", "aggregator", "a/b", ""])
def test_key_holders_that_cannot_be(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        Wanted(sites=("north", "south"), host="h", port=1, holder=name)


def test_what_is_secret_is_closed_to_others(folder: Path) -> None:
    secret = [path for path in folder.rglob("*") if path.suffix in (".key", ".secret")]
    assert len(secret) == 9
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path


def test_the_authority_proves_the_server_and_its_key_is_not_kept(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "aggregator" / "authority.pem").read_bytes())
    hosts = {"proxy": ["link.example.org"], "link": ["localhost"]}  # outsiders never see the link's own
    for name, expected in hosts.items():
        server = x509.load_pem_x509_certificate((folder / name / "server.pem").read_bytes())
        server.verify_directly_issued_by(authority)
        names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == expected
        assert server.not_valid_after_utc - NOW == timedelta(days=365)
    assert isinstance(authority.public_key(), ec.EllipticCurvePublicKey)
    context = ssl.create_default_context(cafile=str(folder / "aggregator" / "authority.pem"))
    assert len(context.get_ca_certs()) == 1
    assert not any(b"authority" in path.name.encode() for path in folder.rglob("*.key"))


def unit(path: Path) -> dict[str, list[str]]:
    """The lines of a unit, by what stands before the equals sign."""
    found: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in path.read_text().splitlines()):
        found.setdefault(name, []).append(value)
    return found


def test_units_keep_the_flags_that_keep_us_safe(folder: Path) -> None:
    (link,) = unit(folder / "link" / "fedveil-link.service")["ExecStart"]
    for flag in ("--enable-supernode-auth", "--disable-runtime-dependency-installation", "--isolation process"):
        assert flag in link
    assert "--superexec-auth-secret-file" in link
    assert "--host 127.0.0.1 --port 9093" in link  # its commands are for its own machine
    for path in folder.rglob("*.service"):
        assert "--insecure" not in path.read_text()
        assert "--database" not in path.read_text()
        assert "flower-superexec" not in path.read_text()  # it would run what somebody uploads


def test_every_process_has_a_user_and_a_folder_of_its_own(folder: Path) -> None:
    """What a unit names below /etc/fedveil is its own folder; keys and books are named by no unit but their owner's."""
    paths = [folder / "link" / "fedveil-link.service", folder / "relay" / "fedveil-relay.service"]
    paths += [folder / "sites" / "north" / f"fedveil-{name}.service" for name in ("guard", "node")]
    units = {path.stem: unit(path) for path in paths}
    users = [found["User"] for found in units.values()]
    assert users == [["fedveil-link"], ["fedveil-relay"], ["fedveil-site"], ["fedveil-node"]]
    for name, own in (("link", "link"), ("relay", "relay"), ("guard", "site"), ("node", "node")):
        named = re.findall(r"/etc/fedveil/(\w+)", units[f"fedveil-{name}"]["ExecStart"][0])
        assert set(named) == {own}
    for name in ("link", "relay"):
        assert "-/etc/fedveil/aggregator" in units[f"fedveil-{name}"]["InaccessiblePaths"]
        assert units[f"fedveil-{name}"]["IPAddressDeny"] == ["any"]
        assert units[f"fedveil-{name}"]["IPAddressAllow"] == ["localhost"]
        assert not list((folder / name).glob("identity*"))
    assert {path.name for path in (folder / "relay").iterdir()} == {
        "authority.pem",
        "superexec.secret",
        "fedveil-relay.service",
    }
    users = (folder / "aggregator" / "fedveil-users.conf").read_text()
    assert [line.split()[1] for line in users.splitlines() if line.startswith("u ")] == [
        "fedveil",
        "fedveil-link",
        "fedveil-relay",
    ]


def test_an_incomplete_deployment_is_refused_with_the_way_out(folder: Path) -> None:
    path = folder / "aggregator" / "deployment.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(("inside", "relay"))))
    with pytest.raises(ValueError, match=r"name inside and relay.*Write a new one"):
        read_deployment(folder)


def test_the_link_and_the_proxy_need_two_ports() -> None:
    with pytest.raises(ValueError, match="--inside-port must differ from --port"):
        Wanted(sites=("north",), host="link.example.org", port=9092, inside=9092)


def test_a_site_can_make_keys_that_nobody_else_has_seen(folder: Path) -> None:
    before, _ = read_site(folder / "sites" / "north" / "identity.key")
    rekey(folder / "sites" / "north")
    after, _ = read_site(folder / "sites" / "north" / "identity.key")
    assert after.name == before.name
    assert after != before
    assert (folder / "sites" / "north" / "identity.pub").read_text() == after.card.text()
    (folder / "aggregator" / "sites" / "north.pub").write_text(after.card.text())
    assert read_deployment(folder).cards["north"] == after.card


def test_a_key_under_another_name_is_refused(folder: Path) -> None:
    text = (folder / "aggregator" / "sites" / "south.pub").read_text()
    (folder / "aggregator" / "sites" / "north.pub").write_text(text)
    with pytest.raises(ValueError, match=r"north\.pub must be the key of north"):
        read_deployment(folder)


@pytest.mark.parametrize(
    ("sites", "host", "port"),
    [
        ((), "h", 1),
        (("a", "a"), "h", 1),
        (("a/b",), "h", 1),
        (("aggregator",), "h", 1),
        (("a",), "", 1),
        (("a",), "h", 0),
    ],
)
def test_deployments_that_cannot_be(sites: tuple[str, ...], host: str, port: int) -> None:
    with pytest.raises(ValueError, match="must"):
        Wanted(sites=sites, host=host, port=port)


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_that_no_certificate_lasts_are_refused_before_a_folder_is_made(days: int) -> None:
    with pytest.raises(ValueError, match="--days must lie between 1 and 3650"):
        Wanted(sites=("north",), host="h", port=1, days=days)


def test_a_folder_in_use_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(ValueError, match="be a new folder"):
        write_deployment(folder, Wanted(sites=("a",), host="h", port=1), NOW)


def test_a_check_says_what_is_wrong(folder: Path) -> None:
    (folder / "aggregator" / "identity.key").chmod(0o644)
    rows = {row.what: row for row in check_place(folder, None, NOW + timedelta(days=400))}
    assert not rows["identity.key"].fine
    assert "chmod 600" in rows["identity.key"].detail
    assert "no longer valid" in rows["authority"].detail
    assert not rows["reach"].fine
    assert {"link/server.key", "relay/superexec.secret", "proxy/server.key"} <= set(rows)
    rows = {row.what: row for row in check_place(folder / "sites" / "north", None, NOW)}
    assert "--superlink" in rows["link"].detail
