"""The site's relay: one message in, the guard's answer out. It can read neither, and holds no key and no data."""

import socket
from typing import Any, Final

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedveil.wire import frames

RECORD: Final = "fedveil"
ENVELOPE: Final = "envelope"
PATIENCE: Final = 3600.0  # seconds; the aggregator's own timeout is shorter

app = ClientApp()


@app.query()
def relay(message: Message, context: Context) -> Message:
    """Hand the envelope to the guard on this machine and return its answer."""
    path: Any = context.node_config["guard"]
    envelope: Any = message.content[RECORD][ENVELOPE]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        frames.send(connection, [(ENVELOPE, envelope)])
        ((_, answer),) = frames.receive(connection)
    return Message(RecordDict({RECORD: ConfigRecord({ENVELOPE: answer})}), reply_to=message)
