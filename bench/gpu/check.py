#!/usr/bin/env python3
"""Runs the device checks of scripts/gpu-check and writes their report."""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "bench"))
sys.dont_write_bytecode = True

from driver import report  # noqa: E402

LIMIT = 300  # seconds of one check


# (name, ranks, checks, settings) of models on meshes
MESHES = [
    ("tensor 2", 2, "texts_", ["parallel.tensor=2"]),
    ("tensor 2, sequence", 2, "texts_", ["parallel.tensor=2", "parallel.sequence=true"]),
    ("tensor 2, exchanges in chunks", 2, "texts_",
     ["parallel.tensor=2", "parallel.overlap_chunks=2"]),
    ("context 2", 2, "texts_", ["parallel.context=2"]),
    ("context 2, all_to_all", 2, "texts_",
     ["parallel.context=2", "parallel.context_method=all_to_all"]),
    ("data 2, tensor 2", 4, "texts_", ["parallel.data=2", "parallel.tensor=2"]),
    ("shard 2, tensor 2", 4, "texts_",
     ["backend.use=fsdp", "backend.fsdp.base=gloo_cpu", "backend.fsdp.unit_join_below=10",
      "parallel.shard=2", "parallel.tensor=2"]),
    ("expert 2", 2, "experts_", ["parallel.data=1", "parallel.expert=2"]),
]


def device_of(kind):
    """A description of the machine's device."""
    if kind != "cuda":
        return f"{kind}: a fake accelerator, not a GPU"
    return "; ".join(report.gpus())


def checks_of(build, kind, scratch):
    """(name, command) of every check."""
    program = os.path.join(build, "bin", "coupler")
    checks = os.path.join(build, "bin", "tests", "device_checks")
    matrix = os.path.join(build, "bin", "tests", "coupler_matrix")
    on_gpu = kind == "cuda"

    def job(world, use, *words, only=""):
        command = [program, "launch", "-n", str(world), "-o", f"training.device={kind}",
                   "-o", f"backend.use={use}"]
        for word in words:
            command += ["-o", word]
        return command + [checks] + ([only] if only else [])

    def mesh(world, only, *words, use="gloo_cpu"):
        command = [program, "launch", "-n", str(world), "-o", f"training.device={kind}",
                   "-o", f"backend.use={use}"]
        for word in words:
            command += ["-o", word]
        return [*command, os.path.join(build, "bin", "tests", "device_mesh_checks"), only]

    # nccl takes one rank per GPU; several ranks share a GPU over gloo_cpu, through host memory.
    alone = "nccl" if on_gpu else "gloo_cpu"
    fsdp = ["backend.fsdp.unit_join_below=0"]
    result = []
    if on_gpu:
        result.append(("matrix of nccl, CUDA memory, world 1",
                       [matrix, "--plugin", "nccl", "--world", "1", "--launcher", program]))
    result += [
        (f"training, {alone}, world 1", job(1, alone)),
        ("training, gloo_cpu, 2 ranks on one device", job(2, "gloo_cpu")),
        (f"fsdp over {alone}, world 1", job(1, "fsdp", f"backend.fsdp.base={alone}", *fsdp)),
        ("fsdp, 2 ranks on one device", job(2, "fsdp", "backend.fsdp.base=gloo_cpu", *fsdp)),
        ("fsdp in bf16, 2 ranks on one device",
         job(2, "fsdp", "backend.fsdp.base=gloo_cpu", "backend.fsdp.param_dtype=bf16", *fsdp,
             only="bf16_learns")),
        ("stage 3, 2 ranks on one device",
         job(2, "deepspeed_like", "backend.deepspeed_like.base=gloo_cpu",
             "backend.deepspeed_like.stage=3",
             "backend.deepspeed_like.stage3_param_persistence_threshold=0")),
        ("optimizer in backward, 2 ranks on one device",
         job(2, "gloo_cpu", "training.optimizer_in_backward=true", only="in_backward")),
        ("optimizer's state in pinned memory, world 1",
         job(1, alone, "memory.offload_optimizer_device=cpu", only="trains")),
        ("optimizer's state on a disk, world 1",
         job(1, alone, "memory.offload_optimizer_device=nvme",
             f"memory.offload_optimizer_nvme_path={scratch}", only="trains")),
        ("fsdp, all of it in pinned memory, 2 ranks on one device",
         job(2, "fsdp", "backend.fsdp.base=gloo_cpu", "backend.fsdp.offload.device=cpu",
             "backend.fsdp.offload.pin_memory=true", *fsdp, only="trains")),
        ("a pipeline, 2 ranks on one device",
         [program, "launch", "-n", "2", "-o", f"training.device={kind}", "-o",
          "backend.use=gloo_cpu", os.path.join(build, "bin", "tests", "device_pipeline_checks")]),
        *((f"{name}, {world} ranks on one device", mesh(world, only, *words))
          for name, world, only, words in MESHES),
        ("training, shm, 2 ranks on one device", job(2, "shm")),
        ("a mesh over shm, 2 ranks on one device",
         mesh(2, "texts_", "parallel.tensor=2", use="shm")),
        ("a model over device, host memory and disk",
         job(1, alone, only="a_model_lies_on_the_device_the_cpu_and_the_disk")),
    ]
    if on_gpu:
        result += [
            (f"coupler test, {alone}, world 1",
             [program, "test", "-o", "training.device=cuda", "-o", f"backend.use={alone}"]),
            ("coupler test, 2 ranks on one device",
             [program, "test", "-n", "2", "-o", "training.device=cuda", "-o",
              "backend.use=gloo_cpu"]),
            ("bf16 autocast, world 1",
             job(1, alone, "training.mixed_precision=bf16", only="bf16_learns")),
            ("bf16 autocast, tensor 2, 2 ranks on one device",
             mesh(2, "bf16_learns", "parallel.tensor=2", "training.mixed_precision=bf16")),
            ("a loss in autocast, world 1",
             job(1, alone, "training.mixed_precision=bf16",
                 only="a_loss_in_autocast_is_as_exact_as_in_fp32")),
            ("loss scale of fp16, world 1",
             job(1, alone, "training.mixed_precision=fp16", only="trains")),
        ]
    return result


def run(name, command):
    """Runs a check; returns its row of the report."""
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        status, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        status, output = 124, f"{late}"
    row = {"name": name, "verdict": "pass" if status == 0 else "fail", "exit": status,
           "seconds": round(time.monotonic() - began, 1)}
    peak = re.search(r"peak device memory: (\d+) bytes", output)
    if peak:
        row["peak_device_bytes"] = int(peak.group(1))
    if status != 0:
        row["output"] = output[-2000:]
    print(f"{row['verdict']:4} {row['seconds']:6.1f} s  {name}", flush=True)
    if status != 0:
        print(output[-2000:], flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", required=True)
    parser.add_argument("--libraries", default="", help="folders in which programs find theirs")
    arguments = parser.parse_args()
    if arguments.libraries:  # for the programs, not for this Python
        os.environ["LD_LIBRARY_PATH"] = ":".join(
            [arguments.libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    with tempfile.TemporaryDirectory() as scratch:
        rows = [run(name, command) for name, command in
                checks_of(os.path.abspath(arguments.build), arguments.device, scratch)]
    path = os.path.join(arguments.out, f"gpu-check-{datetime.date.today()}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"machine": report.machine(), "device": device_of(arguments.device),
                   "commit": report.commit(SOURCE), "rows": rows}, file, indent=1)
        file.write("\n")
    failed = [row["name"] for row in rows if row["verdict"] != "pass"]
    print(f"{len(rows) - len(failed)} of {len(rows)} passed; {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
