"""Writes the folder `fixture` next to this file with transformers 4.57.1 and PyTorch 2.11.0: a GPT-J of
two layers, its weights in two torch.save files with an index of the older kind, as in Accelerate's page
on big models, and its continuation of a prompt.

Run by hand to change the fixture.
"""
import json
import pathlib
import shutil

import torch
from transformers import GPTJConfig, GPTJForCausalLM

folder = pathlib.Path(__file__).parent / "fixture"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir()
torch.manual_seed(7)
config = GPTJConfig(vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=4, rotary_dim=4,
                    initializer_range=0.3)
model = GPTJForCausalLM(config).eval()
(folder / "config.json").write_text(json.dumps(
    {"model_type": "gptj", "vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2,
     "n_head": 4, "rotary_dim": 4, "layer_norm_epsilon": config.layer_norm_epsilon}, indent=1))
state = model.state_dict()
files = {"first_state_dict.bin": {}, "second_state_dict.bin": {}}
for name, tensor in state.items():
    which = "second_state_dict.bin" if ".h.1." in name or "lm_head" in name else \
        "first_state_dict.bin"
    files[which][name] = tensor
for name, tensors in files.items():
    torch.save(tensors, folder / name)
(folder / "index.json").write_text(json.dumps(
    {tensor: name for name, tensors in files.items() for tensor in tensors}, indent=1))
tokens = torch.tensor([[3, 1, 4, 1, 5]])
with torch.no_grad():
    given = model.generate(tokens, max_new_tokens=12, do_sample=False, pad_token_id=0)
print("expected:", " ".join(str(t) for t in given[0, 5:].tolist()))
(folder / "expected.txt").write_text(" ".join(str(t) for t in given[0, 5:].tolist()) + "\n")
