"""The page of instructions for the people who set up a deployment."""

from collections.abc import Sequence


def page(sites: Sequence[str], host: str, port: int, inside: int, holder: str | None = None) -> str:
    """Return the page of instructions."""
    listed = "\n".join(f"- `sites/{site}/` goes to {site}, by a way that nobody else can read" for site in sites)
    apart = "" if holder is None else _holder_page(holder, host, port)
    if holder is not None:
        listed += f"\n- `key-holder/` goes to {holder}, who is neither a site nor the aggregator, in the same way"
    return f"""# A deployment of fedveil

The aggregator at `{host}`, and {len(sites)} sites: {", ".join(sites)}.

## Who gets what

Four folders stay on the aggregator's machine, each readable by one user alone:

- `aggregator/` as `/etc/fedveil/aggregator`, for the user `fedveil`, who runs studies
- `link/` as `/etc/fedveil/link`, for the user `fedveil-link`
- `relay/` as `/etc/fedveil/relay`, for the user `fedveil-relay`
- `proxy/` as `/etc/fedveil/proxy`, for root, from whom nginx has it

The others leave:

{listed}

Delete this folder when everything has been handed out. A site that wants keys that nobody else has ever seen runs
`fedveil deploy rekey` in its own folder and sends the two public halves, `identity.pub` and `node.pub`, to the
aggregator, who puts them at `aggregator/sites/NAME.pub` and `aggregator/nodes/NAME.pub`. Every other site puts the
`identity.pub` at `peers/NAME.pub` beside its own key, and makes sure by another way than the aggregator (a call) that
it is the right one: by these keys sites seal what the aggregator must not read.

## Ports

| machine | port | open to |
|---|---|---|
| aggregator | {port} (TLS, nginx) | the sites' addresses |
| aggregator | {inside} (TLS, the link) | nobody: it is bound to 127.0.0.1 |
| site | none | a site opens connections and accepts none |

Flower's link answers everything on one port, also the commands that start runs, and gives them to whoever reaches it.
So it listens on its own machine alone, and nginx passes on what the sites' nodes need of it (`/v1/fleet/`, ten paths).
What then stands between an outsider and the aggregator's keys:

- nodes prove themselves by registered keys; whoever has none is turned away by the link;
- whoever gets past nginx (a user of the aggregator's machine, or an outsider where the proxy is missing) can start and
  stop runs at the link and register nodes. None of their code runs: the relay never loads an uploaded app, and neither
  does a node;
- whoever takes over the link or the relay itself has a user that can read neither keys nor books. What passes there is
  sealed; they can lose it, which stops a run, and see who is asked when, how often and at what length;
- at a site, the node has a user of its own (`fedveil-node`) that cannot read the data, the guard's keys or its records.
  The guard runs under another (`fedveil-site`), and answers only what the aggregator has signed, once, and for a plan
  that the site's operator has accepted.

Whoever becomes root or `fedveil` on the aggregator's machine has the aggregator's keys.

## At the aggregator

1. `pip install 'fedveil[flower]'` and `apt install nginx-light`
2. Put `aggregator/fedveil-users.conf` into `/etc/sysusers.d` as `fedveil.conf` and run `systemd-sysusers`.
3. Put the four folders into `/etc/fedveil` and give each to its user: `chown -R fedveil-link: /etc/fedveil/link`, ...
4. Put `proxy/fedveil-proxy.conf` into `/etc/nginx/conf.d`, and reload nginx.
5. Install the units `link/fedveil-link.service` and `relay/fedveil-relay.service`, and start them.
6. `fedveil deploy check /etc/fedveil/aggregator` (as the user `fedveil`)
7. `fedveil run study.toml --on /etc/fedveil/aggregator --out results` (as the user `fedveil`)

## At a site

1. `pip install 'fedveil[flower]'`; put `fedveil-users.conf` into `/etc/sysusers.d` as `fedveil.conf` and run
   `systemd-sysusers`.
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

1. `pip install 'fedveil[flower,he]'`; put `fedveil-users.conf` into `/etc/sysusers.d` as `fedveil.conf` and run
   `systemd-sysusers`.
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
