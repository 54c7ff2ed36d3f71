#include "launch_plan.h"

namespace coupler::cli {

const char kLaunchUsage[] =
    R"help(usage: coupler launch [OPTION]... program [args...]

Starts processes of the program that meet through Coupler: on this machine, or through another
launcher. Options end at the program; what follows is the program's own.

  -n N                how many processes, on all machines together (default: launch.processes)
  --config FILE       the configuration of launcher and processes (default: ./train.toml)
  -o key=value        overrides one key of it; may be repeated
  --interface NAME    the network interface of connections: -o backend.interface=NAME
  --bind WHAT         none (default), core: each process cores of its own, numa: one NUMA node
  --log-dir FOLDER    adds each rank's output to FOLDER/rank-N.log as well
  --outcome FILE      writes there, as JSON, which rank made the job fail, and how
  --max-restarts N    start a job that failed again, N times at most
  --prefix            write "[rank 0] " before every line of rank 0's output, and so on
  --dry-run           say what would be started, start nothing
  --print-env         print what each process would find in its environment, start nothing
  -h, --help          this text

several machines, `coupler launch` on each:
  --machines M        how many
  --machine-rank R    which of them this is, from 0
  --main-address H    an address of machine 0
  --main-port P       a port of machine 0 that is free
  --per-machine N     how many processes on each, in place of -n

through another launcher:
  --via mpirun        Open MPI's or MPICH's; --hostfile FILE names machines: "node1 slots=4"
  --via slurm         srun, inside an allocation; with --print a script for sbatch
  --via torchrun      torchrun
  --via k8s           prints a manifest: --image IMAGE, --manifest jobset or pytorchjob
  --name NAME         the job's name in a script or manifest (default: the program's)

Accelerate's words are understood, with - or _: --num_processes, --num_machines, --machine_rank,
--main_process_ip, --main_process_port, --max_restarts, --mpirun_hostfile, --num_cpu_threads_per_process,
--enable_cpu_affinity, --config_file, --log_dir, --cpu, --multi_gpu, --mixed_precision,
--gradient_accumulation_steps, --use_fsdp, --fsdp_sharding_strategy, --use_deepspeed, --zero_stage.

Exit code: that of the first process that failed (128 + signal), 2 for a wrong command line or
configuration, 3 for an unusable backend.
)help";

}  // namespace coupler::cli
