"""The proxy in front of the link: an nginx that passes on what nodes need of Flower's fleet interface, nothing else.

Flower's link answers everything on one port, including the commands that start runs and register nodes, and asks for no
password there. So the link listens on its own machine only, and outsiders reach nothing but the paths below.
"""

from pathlib import Path
from typing import Final

from fedveil.federation.deploy.units import ETC, INSIDE

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
