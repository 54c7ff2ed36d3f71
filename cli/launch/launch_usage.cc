#include "cli/commands.h"

namespace coupler::cli {

const char kLaunchHelp[] =
    R"help(usage: coupler launch [OPTION]... PROGRAM [ARGUMENT]...

Starts PROGRAM as several processes that train together, on this machine or through another
launcher. Options come before PROGRAM; everything after it is passed to the program.

  -n N                 total number of processes on all machines (default: launch.processes)
  --config FILE        configuration for launcher and processes (default: ./train.toml)
  -o KEY=VALUE         override one configuration key; may be repeated
  --interface NAME     network interface for connections: -o backend.interface=NAME
  --bind none|core|numa
                       bind each process to its own cores (core) or to one NUMA node (numa)
                       (default: none)
  --log-dir FOLDER     also append each rank's output to FOLDER/rank-N.log
  --outcome FILE       if the job fails, write to FILE, as JSON, which rank failed and how
  --max-restarts N     restart a failed job up to N times
  --prefix             prefix each line of output with its rank: "[rank 0] "
  --dry-run            print what would be started, but start nothing
  --print-env          print the variables each process would get, but start nothing
  -h, --help           print this help

several machines, with `coupler launch` on each:
  --machines M         number of machines
  --machine-rank R     index of this machine, from 0
  --main-address H     address of machine 0
  --main-port P        free port on machine 0
  --per-machine N      number of processes on each machine, instead of -n

through another launcher:
  --via local          no other launcher: start the processes directly (default)
  --via mpirun         mpirun of Open MPI or MPICH
  --via slurm          srun inside an allocation; with --print, an sbatch script
  --via torchrun       torchrun
  --via k8s            print a Kubernetes manifest
  --hostfile FILE      machines for mpirun, one per line: "node1 slots=4"
  --print              with --via slurm: print an sbatch script, but start nothing
  --image IMAGE        container image for the manifest
  --manifest jobset|pytorchjob
                       kind of manifest (default: jobset)
  --name NAME          job name in a script or manifest (default: the program's name)

Accelerate-compatible options, with - or _:
  --num_processes N    same as -n N
  --num_machines M     same as --machines M
  --main_process_ip H  same as --main-address H
  --main_process_port P
                       same as --main-port P
  --config_file FILE   same as --config FILE
  --mpirun_hostfile FILE
                       same as --via mpirun --hostfile FILE
  --enable_cpu_affinity
                       same as --bind numa
  --num_cpu_threads_per_process N
                       same as -o launch.threads_per_process=N
  --mixed_precision no|bf16|fp16|fp8
                       set training.mixed_precision
  --gradient_accumulation_steps N
                       same as -o training.gradient_accumulation_steps=N
  --cpu                train on CPUs
  --multi_gpu          train on CUDA devices
  --use_fsdp           shard parameters, gradients and optimizer state
  --fsdp_sharding_strategy full_shard|shard_grad_op|no_shard|hybrid_shard
                       what --use_fsdp shards; a number from 1 to 4 also works
  --use_deepspeed      shard by DeepSpeed's ZeRO stages
  --zero_stage 0|1|2|3
                       the stage of --use_deepspeed
  --same_network, --no_python, -q, --quiet
                       no effect (already the default)

Exit code: that of the first process that failed (128 + signal if killed), 2 for a usage or
configuration error, 3 for an unusable backend.

  coupler launch -n 2 -o training.mixed_precision=bf16 ./train
)help";

}  // namespace coupler::cli
