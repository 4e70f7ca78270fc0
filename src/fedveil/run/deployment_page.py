"""What people read and what systemd reads in a deployment: a page of instructions and unit files."""

from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import Final

from fedveil.run.flower.network import Link, superexec_command, superlink_command

_CENTER: Final = Path("/etc/fedveil/aggregator")
_HARDENED = """NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=yes
Restart=always
RestartSec=5
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
"""


def _unit(what: str, command: str, extra: str) -> str:
    return (
        f"[Unit]\nDescription={what}\nAfter=network-online.target\nWants=network-online.target\n\n"
        f"[Service]\nExecStart={command}\n{extra}{_HARDENED}\n[Install]\nWantedBy=multi-user.target\n"
    )


def _link(port: int) -> Link:
    """As the aggregator's own machine sees it; the commands are those of every trial."""
    return Link(name="fedveil", host="localhost", port=port, authority=_CENTER / "authority.pem")


def superlink_unit(port: int) -> str:
    """The link: TLS, registered nodes only, tasks by secret, no database, nothing installed at run time."""
    certificate, key, secret = (_CENTER / name for name in ("server.pem", "server.key", "superexec.secret"))
    command = join(superlink_command(_link(port), certificate, key, secret, "0.0.0.0"))  # noqa: S104  sites reach it
    extra = "User=fedveil\nStateDirectory=fedveil\nEnvironment=FLWR_HOME=/var/lib/fedveil/link\n"
    return _unit("fedveil: Flower link", command, extra)


def superexec_unit(port: int) -> str:
    """The link's executor; it starts the relay, which opens the aggregator's socket, so both have one user."""
    command = join(superexec_command(_link(port), _CENTER / "superexec.secret"))
    extra = "User=fedveil\nStateDirectory=fedveil\nEnvironment=FLWR_HOME=/var/lib/fedveil/executor\n"
    return _unit("fedveil: Flower executor", command, extra)


def guard_unit() -> str:
    """The guard: the only process of a site that can read its data and its keys."""
    command = (
        "fedveil site --data /etc/fedveil/site/data.toml --key /etc/fedveil/site/identity.key"
        " --records /var/lib/fedveil-site --socket /run/fedveil-site/guard.sock --group fedveil-node --accept PLAN-HASH"
    )
    extra = "User=fedveil-site\nStateDirectory=fedveil-site\nRuntimeDirectory=fedveil-site\n"
    return _unit("fedveil: site guard", command, extra)


def holder_unit() -> str:
    """The key holder: the only process that can open sums."""
    command = (
        "fedveil keyholder --key /etc/fedveil/keyholder/identity.key --records /var/lib/fedveil-keyholder"
        " --socket /run/fedveil-keyholder/guard.sock --group fedveil-node --accept PLAN-HASH"
    )
    extra = "User=fedveil-keyholder\nStateDirectory=fedveil-keyholder\nRuntimeDirectory=fedveil-keyholder\n"
    return _unit("fedveil: key holder", command, extra)


def node_unit(host: str, port: int, guard: str = "fedveil-site") -> str:
    """The node, under a user of its own that can read neither the data nor the guard's keys."""
    command = (
        f"fedveil node --superlink {host}:{port} --key /etc/fedveil/node/node.key"
        f" --authority /etc/fedveil/node/authority.pem --socket /run/{guard}/guard.sock"
    )
    extra = "User=fedveil-node\nStateDirectory=fedveil-node\nEnvironment=FLWR_HOME=/var/lib/fedveil-node\n"
    return _unit("fedveil: Flower node", command, extra)


def page(sites: Sequence[str], host: str, port: int, holder: str | None = None) -> str:
    """The page of instructions."""
    listed = "\n".join(f"- `sites/{site}/` goes to {site}, by a way that nobody else can read" for site in sites)
    apart = "" if holder is None else _holder_page(holder, host, port)
    if holder is not None:
        listed += f"\n- `key-holder/` goes to {holder}, who is neither a site nor the aggregator, in the same way"
    return f"""# A deployment of fedveil

The aggregator at `{host}`, and {len(sites)} sites: {", ".join(sites)}.

## Who gets what

- `aggregator/` stays with the aggregator (as `/etc/fedveil/aggregator`, readable by the user `fedveil` alone).
{listed}

Delete this folder when everything has been handed out. A site that wants keys that nobody else has ever seen runs
`fedveil deploy rekey` in its own folder and sends the two public halves, `identity.pub` and `node.pub`, to the
aggregator, who puts them at `aggregator/sites/NAME.pub` and `aggregator/nodes/NAME.pub`. Every other site puts the
`identity.pub` at `peers/NAME.pub` beside its own key, and makes sure by another way than the aggregator (a call) that
it is the right one: by these keys sites seal what the aggregator must not read.

## Ports

| machine | port | open to |
|---|---|---|
| aggregator | {port} (TLS) | the sites' addresses, and nobody else |
| site | none | a site opens connections and accepts none |

One port carries everything that Flower's link does, also the commands that start runs. Whoever reaches it can start a
run, and have code of theirs executed at the aggregator and by every node that runs uploaded code. So open it to the
sites' addresses only; better, let a reverse proxy in front pass `/v1/fleet/` alone. And at the sites:

- the node (`fedveil node`) carries messages and runs no uploaded code; it has a user of its own (`fedveil-node`) that
  cannot read the data, the guard's keys or its records;
- the guard runs under another (`fedveil-site`), from the site's own installation of fedveil. It answers only what the
  aggregator has signed, once, and for a plan that the site's operator has accepted.

So whoever gets hold of the link can stop a run, but finds neither data nor keys nor anything to read.

## At the aggregator

1. `pip install 'fedveil[flower]'`
2. Install the units `fedveil-superlink.service` and `fedveil-superexec.service`, and start them.
3. `fedveil deploy check aggregator`
4. `fedveil run study.toml --on aggregator --out results` (as the user `fedveil`)

## At a site

1. `pip install 'fedveil[flower]'`
2. Put `node.key` and `authority.pem` into `/etc/fedveil/node` (user `fedveil-node`), the rest into `/etc/fedveil/site`
   (user `fedveil-site`); describe the data in `data.toml` as in a study's `[data]` and `[clients]`.
3. `fedveil deploy check /etc/fedveil/site --superlink {host}:{port}`
4. Start `fedveil-guard.service`. It shows every plan that is proposed, with what it would cost, and refuses it until
   its hash stands after `--accept`, for one run (or until `--accept any --cap ADVERSARY=EPSILON,DELTA` allows all that
   fit a cap; the cap counts records, replace-one, unless `--unit` and `--neighbours` say otherwise). Its folder
   `/var/lib/fedveil-site` is its memory: never restore an older copy of it, and never run a second guard on these data.
5. Start `fedveil-node.service`.
6. After a run: `fedveil certify /var/lib/fedveil-site/runs/RUN`.
{apart}"""


def _holder_page(holder: str, host: str, port: int) -> str:
    return f"""
## At the key holder, {holder}

It opens encrypted sums, and sees them; it has no data. Whoever has its key and the messages at the aggregator reads
single updates: the two must not be in one hand. Studies with `trust.key_holder = "third-party"` need it, others do not.

1. `pip install 'fedveil[flower,he]'`
2. Put `node.key` and `authority.pem` into `/etc/fedveil/node` (user `fedveil-node`), the rest into
   `/etc/fedveil/keyholder` (user `fedveil-keyholder`).
3. `fedveil deploy check /etc/fedveil/keyholder --superlink {host}:{port}`
4. Start `fedveil-keyholder.service`. It shows every plan that is proposed, and refuses it until its hash stands after
   `--accept`; then `fedveil-node.service`.
5. `/var/lib/fedveil-keyholder/runs/RUN/opened.jsonl` says which rounds' sums it has opened, and when.

Every site has its public key as `key-holder.pub`, and makes sure by another way than the aggregator that it is the
right one: a site encrypts under no key that this one has not signed. After `fedveil deploy rekey` its `identity.pub`
goes there at every site and at the aggregator, and its `node.pub` to `aggregator/nodes/{holder}.pub`.
"""
