"""The systemd units of a deployment: one unit and one user for each process, and the users themselves.

At the aggregator, three users separate what an attacker might reach one after another: ``fedveil-link`` runs Flower's
link, ``fedveil-relay`` the relay beside it, and only ``fedveil``, who runs studies, can read the aggregator's keys and
books. The relay shares its socket with ``fedveil`` and a secret for tasks with the link; nothing else is shared.
"""

from pathlib import Path
from shlex import join
from typing import Final

from fedveil.federation.flower.network import LINK_PROGRAM, SECRET, Link, relay_command, superlink_command

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
