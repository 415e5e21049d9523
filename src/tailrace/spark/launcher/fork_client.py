"""Asks the fork server for a process, and waits for its end. Run as `python -I -S`, with nothing but built-in modules.

Arguments: the Python to run if there is no server, then its arguments.
"""

import _socket
import array
import marshal
import os
import struct
import sys

python, arguments = sys.argv[1], sys.argv[2:]
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
try:
    server.connect(os.environ["TAILRACE_FORK_SERVER"])
except OSError:
    os.execv(python, [python, *arguments])  # noqa: S606 (Spark's own arguments)
request = marshal.dumps((arguments, dict(os.environ), os.getcwd()))
message = struct.pack("!I", len(request)) + request
sent = server.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))])
server.sendall(message[sent:])
for stream in (0, 1, 2):
    os.close(stream)  # they are the fork's now: whoever reads them sees its end
status = server.recv(4)
os._exit(struct.unpack("i", status)[0] & 0xFF if len(status) == 4 else 1)
