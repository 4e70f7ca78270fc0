"""The files of a deployment: complete, closed to others, and such that sites and aggregator know each other."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedveil.run.deploy_check import check_place
from fedveil.run.deployment import Wanted, read_deployment, read_holder, read_peers, read_site, rekey, write_deployment

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
    assert center.everybody == {**center.cards, "notary": own.card}
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
    assert len(secret) == 7
    for path in secret:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700, path


def test_the_authority_proves_the_server_and_its_key_is_not_kept(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "aggregator" / "authority.pem").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "aggregator" / "server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "link.example.org" in names.get_values_for_type(x509.DNSName)
    assert server.not_valid_after_utc - NOW == timedelta(days=365)
    assert isinstance(authority.public_key(), ec.EllipticCurvePublicKey)
    context = ssl.create_default_context(cafile=str(folder / "aggregator" / "authority.pem"))
    assert len(context.get_ca_certs()) == 1
    assert not any(b"authority" in path.name.encode() for path in folder.rglob("*.key"))


def test_units_keep_the_flags_that_keep_us_safe(folder: Path) -> None:
    link = (folder / "aggregator" / "fedveil-superlink.service").read_text()
    for flag in ("--enable-supernode-auth", "--disable-runtime-dependency-installation", "--isolation process"):
        assert flag in link
    assert "--superexec-auth-secret-file" in link
    for unit in folder.rglob("*.service"):
        assert "--insecure" not in unit.read_text()
        assert "--database" not in unit.read_text()
    users = {
        (folder / "sites" / "north" / f"fedveil-{n}.service").read_text().split("User=")[1].split()[0]
        for n in ("guard", "node")
    }
    assert users == {"fedveil-site", "fedveil-node"}


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
    rows = {row.what: row for row in check_place(folder / "sites" / "north", None, NOW)}
    assert "--superlink" in rows["link"].detail
