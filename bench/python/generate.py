"""The counterpart of bench/generate/generate.cc: transformers, in memory and with disk_offload.

generate.py --checkpoint FOLDER --control SOCKET, or --make FOLDER, which writes a random LLaMA of
SmolLM-135M's shape. Modes: memory and disk, as in the C++ program.
"""
import argparse
import os

import torch
from accelerate import disk_offload
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import control

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
    made = []

    def generate(mode, number):
        with torch.no_grad():
            given = models[mode].generate(prompt, attention_mask=torch.ones_like(prompt),
                                          do_sample=False, min_new_tokens=number,
                                          max_new_tokens=number, pad_token_id=0)
        made[:] = given[0, len(PROMPT):].tolist()

    def checksum(mode):
        answer = 0.0
        for token in made:
            answer = answer / 2 + token
        return answer

    control.serve(arguments.control, 0, sum(p.numel() for p in models["memory"].parameters()),
                  train=generate, loss=checksum)


if __name__ == "__main__":
    main()
