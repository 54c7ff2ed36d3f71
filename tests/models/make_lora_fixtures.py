"""Writes the folder `fixtures/lora` next to this script: adapters as PEFT saves them, of the models that
make_fixtures.py wrote, and what PEFT computes with them.

    llama/init, llama/trained   before and after 20 steps of AdamW; llama/losses.json: the loss of each step
    gpt2                        a random rslora adapter of Conv1D layers, and logits.safetensors with it

Run by hand to change a fixture. Made with peft 0.21.2, transformers 5.24.0 and PyTorch 2.11.0.
"""
import json
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import GPT2LMHeadModel, LlamaForCausalLM

FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures"
OUT = FIXTURES / "lora"
STEPS = 20


def tokens(step, rows, columns, vocabulary):
    """The same as in lora_test.cc."""
    return torch.tensor([[(31 * step + 17 * row + 7 * column * (row + 1)) % vocabulary
                          for column in range(columns)] for row in range(rows)])


def save(model, folder):
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = folder / "adapter_config.json"
    keys = json.loads(config.read_text())
    keys["base_model_name_or_path"] = None  # a path of this machine
    keys["target_modules"] = sorted(keys["target_modules"])  # a set
    config.write_text(json.dumps(keys, indent=1) + "\n")


def llama():
    torch.manual_seed(5)
    base = LlamaForCausalLM.from_pretrained(FIXTURES / "llama")
    model = get_peft_model(base, LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    save(model, OUT / "llama" / "init")
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    losses = []
    for step in range(STEPS):
        batch = tokens(step % 3, 3, 12, base.config.vocab_size)
        logits = model(batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(model, OUT / "llama" / "trained")
    (OUT / "llama" / "losses.json").write_text(json.dumps(losses) + "\n")


def gpt2():
    torch.manual_seed(6)
    base = GPT2LMHeadModel.from_pretrained(FIXTURES / "gpt2")
    model = get_peft_model(base, LoraConfig(
        r=2, lora_alpha=4, use_rslora=True, target_modules=["c_attn", "mlp.c_proj"],
        fan_in_fan_out=True, init_lora_weights=False)).eval()
    save(model, OUT / "gpt2")
    batch = tokens(1, 2, 9, base.config.vocab_size)
    with torch.no_grad():
        save_file({"logits": model(batch).logits.contiguous()}, OUT / "gpt2" / "logits.safetensors")


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    llama()
    gpt2()
