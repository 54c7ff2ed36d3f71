"""Two machines: network namespaces of this one, joined by a wire of 1 Gbit/s in each direction."""
import contextlib
import os
import secrets
import shutil
import subprocess

from . import children

ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "wire"
BYTES_PER_SECOND = 1e9 / 8
# What tc limits the wire with. Some kernels lack netem, and so the delay.
LIMITED = "tbf rate 1gbit burst 128kb latency 200ms"
DELAYED = "netem delay 1ms rate 1gbit limit 10000"


def why_not():
    """Why there can be none here, or "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        return f"missing: {', '.join(missing)}; run apt-get install iproute2 util-linux"
    return ""


def run(*words):
    try:
        subprocess.run(words, check=True, capture_output=True, text=True, timeout=30)
    except subprocess.CalledProcessError as error:
        raise children.Failed(f"{' '.join(words)}: {error.stderr.strip()}")


def limit(host, wires):
    """Limits what a host sends by the first of `wires` that this kernel has, and returns that one."""
    for wire in wires:
        done = subprocess.run(["tc", "-n", host, "qdisc", "add", "dev", INTERFACE, "root", *wire.split()],
                              capture_output=True, text=True, timeout=30)
        if done.returncode == 0:
            return wire
    raise children.Failed(f"tc cannot limit the wire of {host}: {done.stderr.strip()}")


@contextlib.contextmanager
def two_hosts(*wires):
    """The names of both hosts, and which of `wires` joins them."""
    names = [f"bench-{os.getpid()}-{host}" for host in range(2)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "-n", names[0], "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns",
            names[1])
        for name, address in zip(names, ADDRESSES):
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            run("ip", "-n", name, "link", "set", INTERFACE, "up")
            wire = limit(name, wires)
        yield names, wire
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30)


def on(host, *command, own_processes=False):
    """The command line that runs a command on a host, which has a name and may have process ids of its own."""
    space = ("--pid", "--fork", "--mount-proc", "--kill-child") if own_processes else ()
    return ["ip", "netns", "exec", host, "unshare", "--uts", *space, "sh", "-c", f'hostname {host} && exec "$@"', "sh",
            *command]


def launch_flags(rank, port=29500):
    """coupler launch's flags on the host of that rank."""
    return ("--machines", "2", "--machine-rank", str(rank), "--main-address", ADDRESSES[0], "--main-port", str(port))


def check_wire(what, seconds, received):
    """For hosts that each have to receive as many bytes. Who is faster used something else than the wire."""
    least = received / BYTES_PER_SECOND
    if seconds < 0.9 * least:
        raise children.Failed(f"{what} took {1e3 * seconds:.1f} ms, but the wire takes {1e3 * least:.1f} ms for as "
                              "many bytes: not all of them went through it")


def write_secret(folder):
    """The path of a file for launch.secret_file."""
    path = os.path.join(folder, "secret")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(16))
    return path


def write_agent(folder, host):
    """The path of a program that mpirun takes for ssh, with which it starts processes on that host."""
    path = os.path.join(folder, "agent")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w") as file:
        file.write(f"""#!/bin/sh
shift
exec ip netns exec {host} unshare --uts sh -c 'hostname {host}; exec sh -c "$1"' sh "$*"
""")
    return path
