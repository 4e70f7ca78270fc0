"""A real nginx with the configuration that ``deploy init`` writes, in front of a trial's link."""

import os
import shutil
import socket
from contextlib import suppress

from flower_trials import until

from fedveil.federation.carrying.processes import free_port
from fedveil.federation.deploy.files import proxy_configuration
from fedveil.federation.flower.local import LocalNetwork

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING = "nginx is not installed (Debian's package nginx-light)"
AROUND = """daemon off;
USER
worker_processes 1;
pid FOLDER/nginx.pid;
error_log FOLDER/error.log info;
events {}
http {
    access_log FOLDER/access.log;
    client_body_temp_path FOLDER/body;
    proxy_temp_path FOLDER/proxy;
    fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi;
    scgi_temp_path FOLDER/scgi;
    include FOLDER/fedveil-proxy.conf;
}
"""


def start_proxy(network: LocalNetwork) -> int:
    """The port that outsiders reach."""
    assert NGINX is not None
    port, folder = free_port(), network.folder / "nginx"
    folder.mkdir()
    text = proxy_configuration(port, network.link.port, network.files.absolute() / "proxy")
    (folder / "fedveil-proxy.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""  # its folder is closed to others
    (folder / "nginx.conf").write_text(AROUND.replace("FOLDER", str(folder)).replace("USER", user))
    started = network.processes.start("nginx", [NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder)])

    def listens() -> bool:
        assert started.alive, started.written()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5.0):
            return True
        return False

    until(listens, pause=0.05)
    return port
