"""silent_resolver.py COMMAND...: runs the command on a system whose DNS server never answers.

It runs in its own namespaces, which disappear with it: its only network is loopback, where a socket
receives the queries. Exits with 77, and the reason, if that is not allowed.
"""
import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
INSIDE = "COUPLER_TEST_INSIDE"
NAME = "server.example"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


def enter():
    unshare = ["unshare", "-nm"] if os.geteuid() == 0 else ["unshare", "-rnm"]
    try:
        allowed = subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        skip(f"{' '.join(unshare)} is not allowed here")
    os.environ[INSIDE] = "1"
    os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])


def bring_up_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16xH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[0]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def replace(path, text, folder):
    ours = os.path.join(folder, os.path.basename(path))
    with open(ours, "w") as file:
        file.write(text)
    subprocess.run(["mount", "--bind", ours, os.path.realpath(path)], check=True)


def run(command):
    bring_up_loopback()
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind(("127.0.0.1", 53))
    with tempfile.TemporaryDirectory() as folder:
        # The maximum that the resolver allows: two and a half minutes.
        replace("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n", folder)
        replace("/etc/nsswitch.conf", "hosts: files dns\n", folder)
    try:
        subprocess.run(["getent", "hosts", NAME], timeout=1)
        skip("the system's resolver does not use the servers in /etc/resolv.conf")
    except subprocess.TimeoutExpired:
        pass
    del os.environ[INSIDE]
    return subprocess.run(command).returncode


if INSIDE in os.environ:
    sys.exit(run(sys.argv[1:]))
enter()
