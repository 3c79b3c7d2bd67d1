"""A relay between two tasks of a cluster, which counts the bytes that go through it.

What is counted is what TCP carries: gRPC's frames are in it, headers of packets are not.
"""

import contextlib
import socket
import threading

_PIECE = 1 << 18


class Relay:
    """Listens on a port of the system's choice, and passes on to another one.

    Args:
        port: Where what comes in goes.

    Attributes:
        port: Where the relay listens.
        there: How many bytes came in so far.
        back: How many went back.
    """

    def __init__(self, port: int):
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listening.getsockname()[1]
        self.there = self.back = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Closes the port and all connections."""
        for connection in [self._listening, *self._open]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the task does not listen yet: who asked will ask again
                    near.close()
                    continue
                self._open += [near, far]
                for source, target, name in ((near, far, "there"), (far, near, "back")):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    passing = (source, target, name)
                    threading.Thread(target=self._pass, args=passing, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                # Each direction of a connection has a thread, and there may be several of them.
                with _counting:
                    setattr(self, name, getattr(self, name) + len(piece))
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


_counting = threading.Lock()


class Mesh:
    """W tasks that reach each other by relays.

    Args:
        ports: Where each task listens.
    """

    def __init__(self, ports: list[int]):
        numbers = range(len(ports))
        self._ports = ports
        self._relays = {(i, j): Relay(ports[j]) for i in numbers for j in numbers if i != j}

    def seen_by(self, task: int) -> list[int]:
        """Returns the ports of all tasks as one of them is told: its own, and relays."""
        return [
            port if task == other else self._relays[task, other].port
            for other, port in enumerate(self._ports)
        ]

    def moved(self, task: int) -> tuple[int, int]:
        """Returns how many bytes a task has sent, and received, so far."""
        sent = received = 0
        for (i, j), relay in self._relays.items():
            sent += relay.there if i == task else relay.back if j == task else 0
            received += relay.back if i == task else relay.there if j == task else 0
        return sent, received

    def close(self) -> None:
        """Closes all relays."""
        for relay in self._relays.values():
            relay.close()
