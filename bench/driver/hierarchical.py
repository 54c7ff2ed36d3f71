"""All-reduce of two machines of two ranks each over a wire of 1 Gbit/s: hierarchical and flat."""
import os

from . import children, two_hosts
from .collectives import GLOO_CPU, compare, launch, results_of
from .report import Bar

BYTES = 16 << 20


def command(context, hosts):
    """mpirun on the first host starts all ranks, so that MPI, too, knows who shares a machine."""
    hostfile = os.path.join(context.folder, "hosts")
    with open(hostfile, "w") as file:
        file.writelines(f"{address} slots=2\n" for address in two_hosts.ADDRESSES)
    how = ["--via", "mpirun", "--hostfile", hostfile]
    for option in (f"backend.interface={two_hosts.INTERFACE}",
                   f"launch.secret_file={two_hosts.write_secret(context.folder)}"):
        how += ["-o", option]
    # Both hosts have the same cores, so binding would put two ranks on one.
    return two_hosts.on(hosts[0], *launch(
        context, 4, "mpi", "bench_against_mpi", "-o", "backend.use=hierarchical", "-o",
        "backend.hierarchical.across=gloo_cpu", "--beside", "gloo_cpu", "--no-pin", how=how))


def environment(context, hosts):
    """Open MPI over the wire, flat (han is its own hierarchical component), on cores with other ranks."""
    return children.environment(
        OMPI_MCA_plm_rsh_agent=two_hosts.write_agent(context.folder, hosts[1]),
        OMPI_MCA_oob_tcp_if_include=two_hosts.INTERFACE, OMPI_MCA_btl_tcp_if_include=two_hosts.INTERFACE,
        OMPI_MCA_coll="^han", OMPI_MCA_mpi_yield_when_idle="1")


def hierarchical(context):
    """2 machines of 2 ranks over 1 Gbit/s: hierarchical against flat gloo_cpu and flat Open MPI."""
    if reason := two_hosts.why_not():
        raise children.Failed(reason)
    with two_hosts.two_hosts(two_hosts.DELAYED, two_hosts.LIMITED) as (hosts, wire):
        results = results_of(context, command(context, hosts), 7, (BYTES,), environment(context, hosts))
    for name, sizes in results.items():
        two_hosts.check_wire(name, min(sizes[BYTES]["medians_us"]) / 1e6, BYTES)
    rows = []
    for peer, least, title in ((GLOO_CPU, 1.8, "gloo_cpu"), ("MPI_Allreduce", 1.4, "MPI_Allreduce")):
        rows += compare(results, "coupler blocking", [peer], lambda _: Bar(">=", least),
                        f"2 machines of 2 ranks, 1 Gbit/s: hierarchical / {title},")
    for row in rows:
        row.extra["wire"] = wire
    return rows
