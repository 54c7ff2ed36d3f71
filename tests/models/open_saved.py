"""Opens a folder that save_pretrained wrote, and compares it with the results that transformers gave before.

    open_saved.py FOLDER FIXTURE
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, fixture = map(pathlib.Path, sys.argv[1:])
model = AutoModelForCausalLM.from_pretrained(folder).eval()
reference = load_file(fixture / "reference.safetensors")
with torch.no_grad():
    apart = (model(reference["tokens"]).logits - reference["logits"]).abs().max().item()
greedy = json.loads((fixture / "greedy.json").read_text())
equal = True
if (folder / "tokenizer.json").exists():
    equal = AutoTokenizer.from_pretrained(folder)(greedy["prompt"])["input_ids"] == greedy["ids"]
print(f"{fixture.name}: logits differ by {apart:g}; tokens {'equal' if equal else 'differ'}")
sys.exit(0 if apart < 1e-5 and equal else 1)
