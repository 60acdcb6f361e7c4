#!/usr/bin/env python3
"""Compares sub8's tokenizer with the `tokenizers` package: same ids, same decoded text.

Usage: compare_tokenizers.py TOKENIZE_TOOL [--model TOKENIZER_JSON_OR_GGUF ...] [--text FILE ...]
                             [--golden OUT.json]

Without --model, small tokenizers are trained (byte-level and byte-fallback BPE, with every
normaliser, pre-tokenizer and behaviour that sub8 has). Texts are the edge strings below, the given
files, and random strings (seed 20261130). A GGUF model is first written as tokenizer.json by sub8;
that file is loaded by the package, so the comparison also checks the writing.
--golden writes a compact file of exact ids for the unit tests (tests/text/golden_test.cc).
Made with tokenizers 0.23.3.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

EDGE = ["", " ", "   a", "a  b", "a \n", "\n\n a", " !\n\nb", "\t\tx", "\r\n", "x\r\n\r\ny", "a\u00a0b",
        "\u3000全角", "'sx 'Sx 'ſx ’s", "I'LL we'Ve", "1234567", "3.14e-10", "٣٤ Ⅷ ½ ² 𝟘",
        "e\u0301 vs é (NFC)", "ﬁ ligature", "İstanbul ı", "हिन्दी", "កាន់តែ", "ก็ตาม", "中文，标点。",
        "日本語テキスト", "한국어 ᄒ", "🏳️‍🌈 👨‍👩‍👧 🚀", "\u200b\ufeff\u00ad", "\u0000\u0001\u007f",
        "x\U0010ffffy", "<|im_start|>user", " <|eot_id|> ", "<|im_start|", "<s></s>", "▁under▁score",
        "<0x0A> literal", "_foo __bar__", "http://a.b/c?d=e&f", "----- ===== ''''\"\"\"", "a" * 5000,
        " " * 5000, "7" * 100000, "def f(x):\n\tif x:\n\t\treturn  x\n", "שלום world", "  x", "x ", "\tx",
        "\n\nx", "<|sp|>x", "<|sp|> x", " <|sp|>  x", "a<|sp|>", "word wordy wo rd", "a word.", "WORD word",
        "lstrip  <|ls|>  x", "rstrip  <|rs|>  x", "<a>b <a> <a>bc", "café CAFÉ", "\u1100\u1161\u11a8",
        "a\u0323\u0307 a\u0307\u0323", "Å \u212b", "don't DON'T", "x\u2028y", "\u180e z", "ab\u200dcd"]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}|"
         rf"\p{{N}}{{1,3}}|{REST}")
TEKKEN = O200K.replace(SUFFIX, "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def corpus():
    """Training text: this file, itself varied enough, and the edge strings."""
    return [open(__file__, encoding="utf-8").read()] * 2 + [e for e in EDGE if len(e) < 1000] * 3


def train(pre_tokenizer=None, normalizer=None, decoder=None, post=None, byte_level=True, vocab=900, **model):
    tok = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tok.normalizer = normalizer
    if pre_tokenizer is not None:
        tok.pre_tokenizer = pre_tokenizer
    special = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|eot_id|>"]
    if model.get("byte_fallback"):
        special += [f"<0x{b:02X}>" for b in range(256)]
    alphabet = pre.ByteLevel.alphabet() if byte_level else []
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, show_progress=False,
        max_token_length=16))
    if model.get("byte_fallback"):  # the byte tokens are of the model, and no added tokens
        data = json.loads(tok.to_str())
        data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
        tok = Tokenizer.from_str(json.dumps(data))
    tok.add_special_tokens([AddedToken("<|sp|>", special=True)])
    tok.add_tokens([AddedToken("word", single_word=True), AddedToken("<|ls|>", lstrip=True),
                    AddedToken("<|rs|>", rstrip=True, normalized=False), AddedToken("<a>b"),
                    AddedToken("<a>"), AddedToken("CAFÉ", normalized=True)])
    if decoder is not None:
        tok.decoder = decoder
    if post is not None:
        tok.post_processor = post
    return tok


def varieties():
    level = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    by = decoders.ByteLevel()
    bos = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 0)])
    both = processors.TemplateProcessing(single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 0), ("</s>", 1)])
    out = {}

    def split(regex, behavior="isolated", invert=False):
        return pre.Sequence([pre.Split(Regex(regex), behavior, invert), level])

    out["gpt2"] = train(pre.ByteLevel(add_prefix_space=False), decoder=by, post=processors.ByteLevel())
    out["gpt2-prefix"] = train(pre.ByteLevel(add_prefix_space=True), decoder=by, post=bos)
    out["smollm"] = train(pre.Sequence([pre.Digits(True), pre.ByteLevel(add_prefix_space=False)]), decoder=by)
    out["llama3"] = train(split(LLAMA3), decoder=by, ignore_merges=True,
                          post=processors.Sequence([processors.ByteLevel(), bos]))
    out["qwen2"] = train(split(QWEN2), normalizers.NFC(), by)
    out["qwen35"] = train(split(QWEN35), normalizers.NFC(), by)
    out["o200k"] = train(split(O200K), decoder=by, post=both)
    out["tekken"] = train(split(TEKKEN), decoder=by)
    out["deepseek3"] = train(pre.Sequence([pre.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                                           pre.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                           pre.Split(Regex(DEEPSEEK), "isolated"), level]), decoder=by)
    out["words-kept"] = train(split(r"\w+|\S", "removed", True), decoder=by)
    for behavior in ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            out[f"split-{behavior}-{invert}"] = train(split(r"[aeiou]|\d+|\s", behavior, invert), decoder=by)
        out[f"punctuation-{behavior}"] = train(pre.Sequence([pre.Punctuation(behavior), level]), decoder=by)
    out["digits"] = train(pre.Sequence([pre.Digits(False), level]), normalizers.NFKC(), by)
    out["whitespace"] = train(pre.Whitespace(), normalizers.NFD(), byte_level=False, unk_token="<unk>")
    out["whitespace-split"] = train(pre.WhitespaceSplit(), normalizers.NFKD(), byte_level=False,
                                    unk_token="<unk>", fuse_unk=True)
    out["bert"] = train(pre.BertPreTokenizer(), normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]), byte_level=False)
    out["delimiter"] = train(pre.CharDelimiterSplit("a"), normalizers.Strip(), byte_level=False)
    out["byte-normalizer"] = train(None, normalizers.ByteLevel(), by, vocab=400)
    out["strip-metaspace"] = train(pre.Metaspace(prepend_scheme="first"), normalizers.Strip(),
                                   decoders.Metaspace(prepend_scheme="first"), byte_level=False)
    fallback = dict(byte_level=False, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    marked = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = decoders.Sequence(marked + [decoders.Strip(" ", 1, 0)])
    out["llama2"] = train(None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                          strip, bos, **fallback)
    out["gemma"] = train(pre.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "▁"),
                         decoders.Sequence(marked), bos, **fallback)
    for scheme in ["always", "first", "never"]:
        for cut in [True, False]:
            out[f"metaspace-{scheme}-{cut}"] = train(pre.Metaspace(prepend_scheme=scheme, split=cut), None,
                                                     decoders.Metaspace(prepend_scheme=scheme, split=cut), **fallback)
    out["replace-regex"] = train(split(GPT2), normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex("(?i)ab"), "<$1>")]), by)
    return out


def is_known(c):
    """Assigned already in Unicode 3.2: the package's parts have tables of different and partly old versions."""
    return unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs") and c != "\u166d"  # reclassified later


def random_texts(count=400):
    rng = random.Random(20261130)
    parts = [" ", "  ", "\n", "\t", "'s", "'LL", "12", "a", "Ab", "word", "<|sp|>", "<a>", "<s>", "é", "e\u0301",
             "中", "ᄒ", "🚀", "ﬁ", "▁", "<0x41>", "http://", "...", "\r\n", "\u00a0"]
    out = []
    for _ in range(count):
        text = ""
        for _ in range(rng.randrange(40)):
            if rng.random() < 0.7:
                text += rng.choice(parts)
            else:
                c = chr(rng.randrange(0x110000 if rng.random() < 0.3 else 0x3000))
                text += c if is_known(c) else "?"
        out.append(text)
    return out


def call(tool, mode, model, data):
    run = subprocess.run([tool, mode, model], input=json.dumps(data), capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{mode} {model}: {run.stderr.strip()}")
    return run.stdout.split("\n")


def ids_of(lines, count):
    return [[int(i) for i in line.split()] for line in lines[:count]]


def show(name, what, text, want, got):
    at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
    print(f"  {name}: {what} of {text[:80]!r} differs at {at}:\n    package {want[max(0, at - 3):at + 8]}"
          f"\n    sub8    {got[max(0, at - 3):at + 8]}")


def compare(tool, name, path, reference, texts):
    bad = 0
    for mode, special in [("encode", False), ("encode-special", True)]:
        got = ids_of(call(tool, mode, path, texts), len(texts))
        for text, ids in zip(texts, got):
            want = reference.encode(text, add_special_tokens=special).ids
            if want != ids:
                bad += 1
                if bad <= 3:
                    show(name, mode, text, want, ids)
    reference.encode_special_tokens = True
    got = ids_of(call(tool, "encode-literal", path, texts), len(texts))
    for text, ids in zip(texts, got):
        want = reference.encode(text, add_special_tokens=False).ids
        if want != ids:
            bad += 1
            if bad <= 3:
                show(name, "encode-literal", text, want, ids)
    reference.encode_special_tokens = False
    sequences = [reference.encode(t, add_special_tokens=False).ids for t in texts]
    for mode in ["decode", "stream"]:
        got = [json.loads(line) for line in call(tool, mode, path, sequences)[:len(texts)]]
        for text, ids, out in zip(texts, sequences, got):
            want = reference.decode(ids, skip_special_tokens=False)
            if want != out:
                bad += 1
                if bad <= 3:
                    show(name, mode, text, want, out)
    return bad


def golden(tool, out, models_):
    del tool
    data = {"program": "tokenizers", "version": tokenizers.__version__, "seed": 20261130, "cases": []}
    texts = [t for t in EDGE if len(t) < 100]
    for name in ["gpt2-prefix", "smollm", "llama3", "qwen35", "o200k", "llama2", "gemma", "metaspace-first-True"]:
        tok = models_[name]
        data["cases"].append({
            "name": name, "tokenizer": tok.to_str(),
            "ids": [tok.encode(t, add_special_tokens=True).ids for t in texts],
            "decoded": [tok.decode(tok.encode(t, add_special_tokens=False).ids, skip_special_tokens=False)
                        for t in texts]})
    data["texts"] = texts
    with open(out, "w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--golden")
    args = parser.parse_args()
    files = [open(path, encoding="utf-8").read() for path in args.text]
    texts = EDGE + random_texts() + files
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        models_ = {}
        if args.model:
            for path in args.model:
                source = path
                if path.endswith(".gguf"):
                    source = os.path.join(folder, "written.json")
                    with open(source, "w", encoding="utf-8") as file:
                        subprocess.run([args.tool, "json", path], stdout=file, check=True)
                models_[path] = (path, Tokenizer.from_file(source))
        else:
            trained = varieties()
            if args.golden:
                golden(args.tool, args.golden, trained)
                return
            for name, tok in trained.items():
                path = os.path.join(folder, name + ".json")
                tok.save(path)
                models_[name] = (path, tok)
                # What sub8 writes is the same tokenizer to both.
                again = os.path.join(folder, name + "-again.json")
                with open(again, "w", encoding="utf-8") as file:
                    subprocess.run([args.tool, "json", path], stdout=file, check=True)
                models_[name + " rewritten"] = (again, Tokenizer.from_file(again))
        for name, (path, reference) in models_.items():
            bad = compare(args.tool, name, path, reference, texts)
            print(f"{'FAILED' if bad else 'ok    '} {name}: {len(texts)} texts, {bad} differences")
            failed += bad > 0
    print(f"{failed} tokenizers differ" if failed else f"all {len(models_)} tokenizers agree on {len(texts)} texts")
    sys.exit(1 if failed else 0)


main()
