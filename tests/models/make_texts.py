"""Writes fixtures of texts next to this script: Unigram tokenizers and Gemma's kind of BPE with the tokens of Python's
tokenizers, and what transformers renders from chat templates and from single expressions of Jinja.

Run by hand to change a fixture. Made with transformers 5.24.0, tokenizers 0.23.3 and sentencepiece 0.2.1.
The templates in chat_templates have the constructs and control tokens of the published ones, and words of their own.
"""
import base64
import json
import pathlib
import tempfile
import unicodedata

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from make_fixtures import CORPUS, FIXTURES, TEXTS, table_of, trained, write_densely

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = [
    "שלום עולם, מה שלומך?", "สวัสดีชาวโลก", "வணக்கம் உலகம்", "გამარჯობა მსოფლიო", "Բարեւ աշխարհ", "ሰላም ልዑል", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "Ἀθῆναι ᾄδω ᾿ ͅ", "Tiếng Việt rất đẹp, e\u0302\u0301 o\u031b", "\u1100\u1161\u11a8 \u1112\u1161\u11ab", "ＡＢＣ　１２３ ﾃｽﾄ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛", "👩🏽‍🚀 🏳️‍🌈 🇨🇪", "\u200fمرحبا\u200e بالعالم", "क्षत्रिय ज्ञान", "မင်္ဂလာပါ", "ខ្មែរ", "ꦲꦏ꧀ꦱꦫ", "①② ㌔ ﬁﬂ ½", "é e\u0301 ﬃ① ̈",
    "mixed 漢字かな交じり文 and кириллица", "''``quotes\"\"", "a \u00a0 b \u2009 c\u200bd", "\ud7a3\u0300 x\u0336y"]


def sentencepieces(size, byte_fallback, rules=None):
    """Pieces with scores, and the table of replacements, from sentencepiece's own training."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "corpus").write_text("\n".join(CORPUS))
        options = {"normalization_rule_name": "identity"}
        if rules:
            (root / "rules.tsv").write_text("".join(
                " ".join(f"{ord(c):X}" for c in before) + "\t" + " ".join(f"{ord(c):X}" for c in after) + "\n"
                for before, after in rules.items()))
            options = {"normalization_rule_tsv": str(root / "rules.tsv")}
        sentencepiece.SentencePieceTrainer.train(
            input=str(root / "corpus"), model_prefix=str(root / "m"), model_type="unigram", vocab_size=size,
            byte_fallback=byte_fallback, unk_id=2, bos_id=-1, eos_id=1, pad_id=0, num_threads=1,
            remove_extra_whitespaces=False, minloglevel=2, **options)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(root / "m.model"))
        pieces = [[processor.id_to_piece(i), processor.get_score(i)] for i in range(len(processor))]
        return pieces, charsmap((root / "m.model").read_bytes())


def fields(message):
    """The fields of a protobuf message that have a length: (number, bytes)."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(message):
        key = number()
        if key & 7 == 2:
            size = number()
            yield key >> 3, message[at:at + size]
            at += size
        elif key & 7 == 0:
            number()
        else:
            at += {1: 8, 5: 4}[key & 7]


def charsmap(model):
    """ModelProto.normalizer_spec.precompiled_charsmap."""
    spec = next(value for field, value in fields(model) if field == 3)
    return next((value for field, value in fields(spec) if field == 2), b"")


def unigram(pieces, byte_fallback, normalizer, pre_tokenizer, decoder):
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, (text, score) in enumerate(pieces[:3])]
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                           "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": byte_fallback, "vocab": pieces}}))


def unigram_t5():
    characters = sorted(set("".join(TEXTS["table"] + SCRIPTS)))
    rules = {c: unicodedata.normalize("NFKC", c) for c in characters if unicodedata.normalize("NFKC", c) != c}
    for composed in "éèêëçñüößôờếở":
        decomposed = unicodedata.normalize("NFD", composed)
        if decomposed != composed:
            rules[decomposed] = composed
    rules.update({"\u200b": "", "\u200e": "", "\u200f": "", "\t": " ", "\u2003": " "})
    pieces, table = sentencepieces(420, False, rules)
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]}
    return unigram(pieces, False, normalizer, metaspace, metaspace)


def unigram_bytes():
    pieces, _ = sentencepieces(650, True)
    return unigram(
        pieces, True,
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                             {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        None,
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                          {"type": "ByteFallback"}, {"type": "Fuse"},
                                          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})


def gemma():
    """BPE as Gemma has it: spaces become ▁ anywhere, words keep the one before them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    tokenizer = trained(tokenizer, ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{i:02X}>" for i in range(256)], size=650)
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = [t for t in written["added_tokens"] if not t["content"].startswith("<0x")]
    written["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    written["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                "invert": False}
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather of a \"city\" <now>",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}, "return": {"type": "string"}}}]
CALL = {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}
USER = {"role": "user", "content": "  Why is the sky blue? 🚂 "}
ANSWER = {"role": "assistant", "content": "It scatters light.\n"}
AGAIN = {"role": "user", "content": "And \"red\" <at> dusk?"}
SYSTEM = {"role": "system", "content": "Be brief. "}
CHATS = [
    ([USER], {}), ([USER], {"add_generation_prompt": True}), ([SYSTEM, USER], {"add_generation_prompt": True}),
    ([USER, ANSWER, AGAIN], {"add_generation_prompt": True}), ([SYSTEM, USER, ANSWER, AGAIN, ANSWER], {}),
    ([USER, USER], {}), ([ANSWER], {}), ([{"role": "other", "content": "x"}], {"add_generation_prompt": True}),
    ([USER], {"tools": TOOLS, "add_generation_prompt": True}),
    ([SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
      {"role": "tool", "content": "{\"sun\": true}", "tool_call_id": "abcdef123"}],
     {"tools": TOOLS, "add_generation_prompt": True}),
    ([USER, {"role": "assistant", "content": "I ask.", "tool_calls": [CALL, CALL]},
      {"role": "tool", "content": "one", "tool_call_id": "abcdef123"},
      {"role": "tool", "content": "two", "tool_call_id": "abcdef123"}, ANSWER, AGAIN], {"tools": TOOLS * 2}),
    ([USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, AGAIN,
      {"role": "assistant", "content": "No.", "reasoning": "well"}], {"add_generation_prompt": True}),
    ([USER], {"add_generation_prompt": True, "variables": {"enable_thinking": False}}),
    ([SYSTEM, USER], {"variables": {"date_string": "26 Nov 2026", "tools_in_user_message": False}, "tools": TOOLS}),
    ([USER], {"variables": {"builtin_tools": ["code_interpreter", "search"]}}),
    ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is it? "}]}], {}),
]


def chats():
    """The text, or null if the template raises."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>")
    rows = []
    for path in sorted((HERE / "chat_templates").glob("*.jinja")):
        for messages, options in CHATS:
            variables = dict(options.get("variables", {}))
            if path.stem == "llama3":
                variables.setdefault("date_string", "26 Nov 2026")
            try:
                text = tokenizer.apply_chat_template(
                    messages, tools=options.get("tools"), chat_template=path.read_text(), tokenize=False,
                    add_generation_prompt=options.get("add_generation_prompt", False), **variables)
            except Exception as problem:
                print(path.stem, "refuses:", type(problem).__name__, str(problem)[:70])
                text = None
            rows.append({"template": path.stem, "messages": messages, "tools": options.get("tools"),
                         "add_generation_prompt": options.get("add_generation_prompt", False),
                         "variables": variables, "text": text})
    return rows


# Each on its own, with these variables.
VARIABLES = {"name": "Ada", "n": 7, "x": 2.5, "yes": True, "nothing": None, "empty": "", "list": [3, 1, 2],
             "words": ["b", "A", "c"], "dict": {"b": 1, "a": [1, {"k": "v"}], "items": 5},
             "people": [{"name": "Bo", "age": 3, "in": {"k": 1}}, {"name": "al", "age": 9, "in": {"k": 2}}],
             "text": "  Grüße, \"Köln\" & <b>!\n", "uni": "ßÉ漢🚂x"}
SNIPPETS = (HERE / "jinja_snippets.txt").read_text().split("\n---\n")


def snippets():
    from transformers.utils.chat_template_utils import render_jinja_template
    rows = []
    for source in SNIPPETS:
        try:
            text = render_jinja_template([[{"role": "user", "content": "hi"}]], chat_template=source, **VARIABLES)[0][0]
        except Exception as problem:
            print("error:", repr(source)[:60], type(problem).__name__, str(problem)[:70])
            text = None
        rows.append({"source": source, "text": text})
    return rows


made = {"unigram-t5": unigram_t5(), "unigram-bytes": unigram_bytes(), "gemma": gemma()}
for name, tokenizer in made.items():
    folder = FIXTURES / "tokenizers" / name
    table_of(tokenizer, folder, TEXTS["table"] + SCRIPTS)
    tokenizer.save(str(folder / "tokenizer.json"))
    for file in ("table.json", "tokenizer.json"):
        write_densely(folder / file)
folder = FIXTURES / "chat"
folder.mkdir(exist_ok=True)
(folder / "chats.json").write_text(json.dumps(chats()))
(folder / "snippets.json").write_text(json.dumps(snippets()))
for file in ("chats.json", "snippets.json"):
    write_densely(folder / file)
(folder / "variables.json").write_text(json.dumps(VARIABLES) + "\n")
