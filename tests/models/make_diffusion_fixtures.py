"""Writes the folder fixtures/diffusion next to this script: a small random Stable Diffusion as diffusers saves
it, the output of its parts, its picture of a prompt, and the tokens of CLIP's tokenizer for some prompts.

Run by hand to change a fixture. Made with diffusers 0.42.1, transformers 5.23.0, tokenizers
0.23.3 and PyTorch 2.11.0.
"""
import json
import pathlib
import shutil

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "fixtures" / "diffusion"
CORPUS = (HERE.parent.parent / "LICENSE").read_text().splitlines()
PROMPTS = [
    "", "a", "a photograph of an astronaut riding a horse", "A Lighthouse, at DAWN!",
    "  many   blanks\tand\nlines ", "it's we're I'll don't", "1234 apples in 2026", "naïve café",
    "Ünïcödé ÄÖÜ", "日本語の絵", "emoji 🚀🌕 here", "hyphen-ated words; (brackets) [and] more...",
    "<|endoftext|> inside", "a<|startoftext|>b", "e\u0301 combining", "UPPER lower MiXeD",
    "the license, the License, THE LICENSE", "a_b_c x@y.z #tag", "½ ² Ⅷ", "'s", "ﬁne ligature",
    "reproduce and distribute copies of the work or derivative works",
]
torch.manual_seed(0)
torch.set_grad_enabled(False)


def spread(model):
    """Adds noise to norms and biases, so that their values matter too."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def tokenizer():
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    trained.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"),
                             behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=300, end_of_word_suffix="</w>", show_progress=False))
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    # Laid out as OpenAI's: bytes, bytes at the end of words, merges, and two special tokens.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = alphabet + [letter + "</w>" for letter in alphabet] + [a + b for a, b in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    assert len(vocabulary) == len(words)
    folder = FOLDER / "tokenizer"
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    made = CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)
    table = [{"text": text, "ids": made(text)["input_ids"]} for text in PROMPTS]
    (FOLDER / "prompts.json").write_text(json.dumps(table, indent=0))
    made.backend_tokenizer.save(str(FOLDER / "tokenizer.json"))
    return made


def text_encoder(vocabulary):
    config = CLIPTextConfig(vocab_size=vocabulary, hidden_size=16, intermediate_size=32,
                            projection_dim=16, num_hidden_layers=2, num_attention_heads=2,
                            max_position_embeddings=77, hidden_act="quick_gelu",
                            bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1)
    return spread(CLIPTextModel(config))


def unet(**options):
    made = spread(UNet2DConditionModel(
        sample_size=8, layers_per_block=1, norm_num_groups=4, cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **options))
    # As they will be read from the file.
    for parameter in made.parameters():
        parameter.copy_(parameter.half().float())
    return made


def vae():
    return spread(AutoencoderKL(
        block_out_channels=(8, 16, 16), layers_per_block=1, norm_num_groups=4, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
        scaling_factor=0.18215, sample_size=32))


SCHEDULERS = {
    "stable": dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                   clip_sample=False, set_alpha_to_one=False, steps_offset=1),
    "velocity": dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                     clip_sample=True, set_alpha_to_one=True, prediction_type="v_prediction",
                     timestep_spacing="trailing"),
    "plain": dict(prediction_type="sample", timestep_spacing="linspace"),
}


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    reference = {}
    tokens = tokenizer()
    parts = {"text_encoder": text_encoder(len(tokens)),
             "unet": unet(block_out_channels=(8, 16), attention_head_dim=2), "vae": vae()}
    second = unet(block_out_channels=(8, 8), attention_head_dim=(2, 4), use_linear_projection=True)
    ids = torch.tensor(tokens(PROMPTS[:4], padding="max_length", max_length=77)["input_ids"])
    reference["text.tokens"] = ids
    reference["text.states"] = parts["text_encoder"](ids).last_hidden_state
    states = reference["text.states"][2:4].clone()
    reference["unet.states"] = states
    for name, model in (("unet", parts["unet"]), ("linear", second)):
        for height, width in ((8, 8), (5, 7)):
            key = f"{name}.{height}x{width}"
            reference[key + ".latents"] = torch.randn(2, 4, height, width)
            reference[key + ".output"] = model(reference[key + ".latents"], 741, states).sample
    for height, width in ((8, 8), (6, 5)):
        key = f"vae.{height}x{width}"
        reference[key + ".latents"] = torch.randn(1, 4, height, width)
        reference[key + ".image"] = parts["vae"].decode(reference[key + ".latents"]).sample
    schedulers = {}
    for name, config in SCHEDULERS.items():
        scheduler = DDIMScheduler(**config)
        scheduler.set_timesteps(5)
        schedulers[name] = {"config": dict(scheduler.config) | config,
                            "timesteps": scheduler.timesteps.tolist()}
        latents = torch.randn(1, 4, 4, 4)
        outputs, results = torch.randn(5, 1, 4, 4, 4), []
        reference[f"ddim.{name}.latents"] = latents
        for output, timestep in zip(outputs, scheduler.timesteps):
            latents = scheduler.step(output, timestep, latents, eta=0.0).prev_sample
            results.append(latents)
        reference[f"ddim.{name}.outputs"] = outputs
        reference[f"ddim.{name}.results"] = torch.stack(results)
    (FOLDER / "schedulers.json").write_text(json.dumps(schedulers, indent=1, default=str))
    scheduler = DDIMScheduler(**SCHEDULERS["stable"])
    pipeline = StableDiffusionPipeline(
        vae=parts["vae"], text_encoder=parts["text_encoder"], tokenizer=tokens,
        unet=parts["unet"], scheduler=scheduler, safety_checker=None, feature_extractor=None,
        requires_safety_checker=False)
    for name, options in (("guided", {"guidance_scale": 3.0, "negative_prompt": "license"}),
                          ("plain", {"guidance_scale": 1.0})):
        picture = pipeline(PROMPTS[3], num_inference_steps=4, height=48, width=32,
                           generator=torch.manual_seed(7), output_type="np", **options).images[0]
        reference["picture." + name] = torch.from_numpy((picture * 255).round().astype("uint8"))
    for name, model in parts.items():
        (model.half() if name == "unet" else model).save_pretrained(FOLDER / name)
    second.half().save_pretrained(FOLDER / "linear_unet")
    scheduler.save_pretrained(FOLDER / "scheduler")
    save_file({key: value.contiguous() for key, value in reference.items()},
              FOLDER / "reference.safetensors")


main()
