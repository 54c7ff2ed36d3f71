"""Writes the folder `fixtures/architectures` next to this script: a small random model of each architecture that
grew out of another, as transformers saves it, with what transformers computes from it: logits, the loss and its
gradients, and greedy continuations of 20 prompts.

Run by hand to change a fixture. Made with transformers 5.24.0 and PyTorch 2.11.0.
"""
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GemmaConfig, GPTNeoXConfig,
                          MistralConfig, OPTConfig, PhiConfig, Qwen2Config, Qwen3Config)

FOLDER = pathlib.Path(__file__).resolve().parent / "fixtures" / "architectures"
WORDS, TOKENS, NEW = 96, 24, 16
GROUPED = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
           "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 95, "pad_token_id": None}
PLAIN = {key: value for key, value in GROUPED.items() if key != "num_key_value_heads"}
OPT = {"vocab_size": WORDS, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
       "max_position_embeddings": 62, "init_std": 0.3, "bos_token_id": 2, "eos_token_id": 95, "dropout": 0.0}
MODELS = {
    # Texts are longer than windows.
    "mistral": MistralConfig(**GROUPED, sliding_window=7),
    "qwen2": Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=7, max_window_layers=1,
                         tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16),
    "gemma": GemmaConfig(**{**GROUPED, "pad_token_id": 0}, head_dim=16, hidden_act="gelu"),
    "gemma2": Gemma2Config(**GROUPED, head_dim=16, sliding_window=7, query_pre_attn_scalar=24,
                           attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3": Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=7, query_pre_attn_scalar=24,
                               layer_types=["sliding_attention", "full_attention"],
                               rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                                                "full_attention": {"rope_type": "linear", "factor": 4.0,
                                                                   "rope_theta": 1e4}}),
    "gpt_neox": GPTNeoXConfig(**PLAIN, rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                                        "partial_rotary_factor": 0.5}),
    "gpt_neox-sequential": GPTNeoXConfig(**PLAIN, use_parallel_residual=False, attention_bias=False),
    "phi": PhiConfig(**GROUPED, qk_layernorm=True),
    "opt": OPTConfig(**OPT),
    "opt-post": OPTConfig(**OPT, do_layer_norm_before=False, word_embed_proj_dim=16),
}


def fingerprint(tensor):
    """Its size, and its sums with two weightings that depend on the position."""
    flat = tensor.double().flatten()
    places = torch.arange(flat.numel(), dtype=torch.float64)
    return [flat.norm().item(), (flat * torch.cos(places)).sum().item(), (flat * torch.sin(0.7 * places)).sum().item()]


def write(name, config):
    folder = FOLDER / name
    torch.manual_seed(17)
    # Published models have weights of 16 bits, too; here it halves the files.
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.bfloat16).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            # Biases and norms start as constants, which would hide mistakes.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        if name.startswith("gemma"):
            # Scaled and tied embeddings would only repeat the last token.
            model.get_input_embeddings().weight.mul_(0.05)
            model.model.norm.weight.add_(10)
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    torch.manual_seed(5)
    tokens = torch.randint(WORDS, (2, TOKENS))
    labels = torch.randint(WORDS, (2, TOKENS))
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    save_file({"tokens": tokens, "labels": labels, "logits": logits.detach().contiguous(), "loss": loss.detach()},
              folder / "reference.safetensors")
    gradients = {path: fingerprint(parameter.grad) for path, parameter in model.named_parameters()}
    lengths = [1 + (5 * i) % 23 for i in range(20)]
    prompts = [torch.randint(2, WORDS - 1, (1, length)) for length in lengths]
    with torch.no_grad():
        given = [model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW,
                                do_sample=False)[0, prompt.shape[1]:].tolist() for prompt in prompts]
    (folder / "greedy.json").write_text(
        "[" + ",\n".join(json.dumps({"ids": prompt[0].tolist(), "continued": more}, separators=(",", ":"))
                         for prompt, more in zip(prompts, given)) + "]\n")
    (folder / "gradients.json").write_text(
        "{" + ",\n".join(f"{json.dumps(path)}:{json.dumps(sums)}" for path, sums in gradients.items()) + "}\n")
    print(name, f"loss {loss.item():.3f},", sum(len(set(more)) for more in given), "distinct tokens in 20 texts")


shutil.rmtree(FOLDER, ignore_errors=True)
for name, config in MODELS.items():
    write(name, config)
