"""A Python that has already loaded what is slow to load: `warm.py SOCKET` waits, `warm.py SOCKET FILE ARGUMENT…` runs a file.

The documentation shows dozens of commands, and each would spend two seconds on loading PyTorch. Here one process loads it,
computes nothing, and forks for every command; the command has its own arguments, folder, environment and streams, and its
exit status is the one it would have had.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path


def serve(path: str) -> None:
    """Waits for commands; returns in the process forked for one, made up as if it had been started for it alone."""
    import hybridfl.cli
    import hybridfl.dense_training
    import hybridfl.experiment
    import hybridfl.report  # noqa: F401 - and with it Plotly

    server = socket.socket(socket.AF_UNIX)
    server.bind(path + ".part")
    server.listen()
    Path(path + ".part").rename(path)  # it is there once somebody listens
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = server.accept()
        if os.fork() == 0:
            break
        connection.close()
    server.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.send(bytes([code if code >= 0 else 128 - code]))
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.argv, folder, environment = json.loads(command)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def ask(path: str, arguments: list[str]) -> int:
    """Has the waiting process run the file, here and on our streams; its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        command = json.dumps((arguments, str(Path.cwd()), dict(os.environ))).encode()
        socket.send_fds(connection, [command], [0, 1, 2])
        return connection.recv(1)[0]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    serve(sys.argv[1])
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
