#!/usr/bin/env python3
"""Compares sub8's ids with those that llama.cpp's vocabulary files expect.

Usage: compare_llama_cpp.py TOKENIZE_TOOL DIR

DIR holds ggml-vocab-*.gguf with .inp and .out files (the `models` folder of llama.cpp's source). For
every vocabulary the texts of .inp are encoded without special tokens, and compared with the ids in
.out. Vocabularies that sub8 refuses must be refused by name (exit status 5). Nothing of llama.cpp is
part of this repository.
"""
import glob
import json
import os
import subprocess
import sys
import unicodedata

SEPARATOR = "\n__ggml_vocab_test__\n"
REFUSED = {"bert-bge", "nomic-bert-moe", "aquila", "gpt-neox"}  # WordPiece, Unigram, no `pre`
NFC = {"qwen2", "qwen35"}


def main():
    tool, folder = sys.argv[1:3]
    failed = 0
    for path in sorted(glob.glob(os.path.join(folder, "ggml-vocab-*.gguf"))):
        name = os.path.basename(path)[len("ggml-vocab-"):-len(".gguf")]
        texts, expected = [], []
        if os.path.exists(path + ".inp"):
            texts = open(path + ".inp", encoding="utf-8", newline="").read().split(SEPARATOR)
            # A line break ends the file, and is not part of the last text.
            expected = [[int(i) for i in line.split()]
                        for line in open(path + ".out", encoding="utf-8").read().split("\n")][:len(texts)]
        # As in llama.cpp's own test, special tokens are not parsed.
        run = subprocess.run([tool, "encode-literal", path], input=json.dumps(texts),
                             capture_output=True, text=True)
        if name in REFUSED:
            ok = run.returncode == 5
            print(f"{'ok    ' if ok else 'FAILED'} {name}: refused: {run.stderr.strip()[:150]}")
            failed += not ok
            continue
        if run.returncode != 0:
            print(f"FAILED {name}: {run.stderr.strip()[:300]}")
            failed += 1
            continue
        lines = run.stdout.split("\n")
        bad = skipped = 0
        for text, want, line in zip(texts, expected, lines):
            # The models' own tokenizers bring text to NFC first; llama.cpp does not.
            if name in NFC and unicodedata.normalize("NFC", text) != text:
                skipped += 1
                continue
            got = [int(i) for i in line.split()]
            if got != want:
                bad += 1
                if bad <= 3:
                    print(f"  {name}: {text!r}\n    expected {want}\n    got      {got}")
        print(f"{'FAILED' if bad else 'ok    '} {name}: {len(texts) - bad - skipped} of {len(texts)} texts, {skipped} not in NFC")
        failed += bad > 0
    sys.exit(1 if failed else 0)


main()
