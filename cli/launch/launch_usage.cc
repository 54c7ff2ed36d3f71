#include "cli/commands.h"

namespace coupler::cli {

const char kLaunchHelp[] =
    R"help(usage: coupler launch [OPTION]... PROGRAM [ARGUMENT]...

Starts processes of the program that meet through Coupler: on this machine, or through another
launcher. Options end at the program; what follows is the program's own.

  -n N                 how many processes, on all machines together (default: launch.processes)
  --config FILE        the configuration of launcher and processes (default: ./train.toml)
  -o KEY=VALUE         overrides one key of it; may be repeated
  --interface NAME     the network interface of connections: -o backend.interface=NAME
  --bind none|core|numa
                       core: each process cores of its own, numa: one NUMA node (default: none)
  --log-dir FOLDER     adds each rank's output to FOLDER/rank-N.log as well
  --outcome FILE       writes there, as JSON, which rank made the job fail, and how
  --max-restarts N     start a job that failed again, N times at most
  --prefix             write "[rank 0] " before every line of rank 0's output, and so on
  --dry-run            say what would be started, start nothing
  --print-env          print what each process would find in its environment, start nothing
  -h, --help           this text

several machines, `coupler launch` on each:
  --machines M         how many
  --machine-rank R     which of them this is, from 0
  --main-address H     an address of machine 0
  --main-port P        a port of machine 0 that is free
  --per-machine N      how many processes on each, in place of -n

through another launcher:
  --via local          none: `coupler launch` starts the processes itself (the default)
  --via mpirun         Open MPI's or MPICH's
  --via slurm          srun, inside an allocation; with --print a script for sbatch
  --via torchrun       torchrun
  --via k8s            prints a manifest of Kubernetes
  --hostfile FILE      the machines of mpirun, a line each: "node1 slots=4"
  --print              with slurm: print a script for sbatch, start nothing
  --image IMAGE        of the manifest
  --manifest jobset|pytorchjob
                       its kind (default: jobset)
  --name NAME          the job's name in a script or manifest (default: the program's)

Accelerate's words, with - or _:
  --num_processes N    -n
  --num_machines M     --machines
  --main_process_ip H  --main-address
  --main_process_port P
                       --main-port
  --config_file FILE   --config
  --mpirun_hostfile FILE
                       --via mpirun --hostfile FILE
  --enable_cpu_affinity
                       --bind numa
  --num_cpu_threads_per_process N
                       -o launch.threads_per_process=N
  --mixed_precision no|bf16|fp16|fp8
                       -o training.mixed_precision
  --gradient_accumulation_steps N
                       -o training.gradient_accumulation_steps=N
  --cpu                train on CPUs
  --multi_gpu          train on CUDA devices, over nccl
  --use_fsdp           -o backend.use=fsdp
  --fsdp_sharding_strategy full_shard|shard_grad_op|no_shard|hybrid_shard
                       -o backend.fsdp.strategy; a number from 1, too
  --use_deepspeed      -o backend.use=deepspeed_like
  --zero_stage 0|1|2|3
                       -o backend.deepspeed_like.stage
  --same_network, --no_python, -q, --quiet
                       taken, since what they ask for is so anyhow

Exit code: that of the first process that failed (128 + signal), 2 for a wrong command line or
configuration, 3 for an unusable backend.

  coupler launch -n 2 -o backend.use=gloo_cpu ./train
)help";

}  // namespace coupler::cli
