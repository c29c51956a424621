"""What the HTTP services share."""

import socket

from clipsilon._core import web


def test_answers_over_a_kept_connection_do_not_wait_for_acknowledgements():
    with web.listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
