"""The counterpart of bench/generate/generate.cc: transformers, in memory and with disk_offload.

generate.py --checkpoint FOLDER --control SOCKET, or --make FOLDER, which writes a random LLaMA of
SmolLM-135M's shape. Modes: memory and disk, as in the C++ program.
"""
import argparse
import os
import socket
import time

import torch
from accelerate import disk_offload
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

PROMPT = [11, 70, 3301, 29, 17000, 5, 812, 9]


def make(folder):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536,
                         num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                         max_position_embeddings=2048, tie_word_embeddings=True,
                         initializer_range=0.1)
    LlamaForCausalLM(config).save_pretrained(folder)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def main():
    parser = argparse.ArgumentParser()
    for name in ("make", "checkpoint", "control"):
        parser.add_argument("--" + name)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.make:
        make(arguments.make)
        return
    models = {"memory": load(arguments.checkpoint)}
    models["disk"] = disk_offload(load(arguments.checkpoint),
                                  os.path.join(os.path.dirname(arguments.checkpoint), "offloaded"),
                                  execution_device=torch.device("cpu"))
    prompt = torch.tensor([PROMPT])
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.connect(arguments.control)
    control.settimeout(15 * 60)
    lines = control.makefile("rw")
    print("ready", 0, sum(p.numel() for p in models["memory"].parameters()), file=lines, flush=True)
    for line in lines:
        if line.strip() == "quit":
            break
        _, mode, number = line.split()
        cpu_before = time.process_time()
        start = time.perf_counter()
        with torch.no_grad():
            given = models[mode].generate(prompt, attention_mask=torch.ones_like(prompt),
                                          do_sample=False, min_new_tokens=int(number),
                                          max_new_tokens=int(number), pad_token_id=0)
        seconds = time.perf_counter() - start
        answer = 0.0
        for token in given[0, len(PROMPT):].tolist():
            answer = answer / 2 + token
        print(f"done {seconds:.9f} {cpu_before:.6f} {time.process_time():.6f} {answer:.9g}",
              file=lines, flush=True)


if __name__ == "__main__":
    main()
