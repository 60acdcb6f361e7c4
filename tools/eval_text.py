#!/usr/bin/env python3
"""Writes the evaluation texts: English prose and source code, each in a calibration and a held-out part.

Usage: eval_text.py --out DIR

Prose is Debian's package debian-handbook (The Debian Administrator's Handbook, English pages in reading order; listings,
tables, contents lists and navigation left out). Code is a fixed list of modules of Python 3.11's standard library (Debian
12's python3). Both are installed by `apt-get install debian-handbook python3`. Needs nothing but Python itself.

Writes prose-calibration.txt, prose-heldout.txt, code-calibration.txt, code-heldout.txt and prints their SHA-256 sums. A sum
that differs from Debian 12's is said on stderr (exit status 3): figures from such a text compare with no stored figure.
"""

import argparse
import hashlib
import html.parser
import pathlib
import sys

HANDBOOK = pathlib.Path("/usr/share/doc/debian-handbook/html/en-US")
FIRST_PAGE = "preface.html"
STDLIB = pathlib.Path("/usr/lib/python3.11")
HELD_OUT_EVERY = 3  # of the handbook's pages in reading order, every third is held out

# Modules that security updates of a stable Debian rarely touch.
CODE_CALIBRATION = """_pydecimal argparse ast bdb cProfile codeop collections/__init__ configparser contextlib copy copyreg
    dataclasses datetime dis enum fnmatch functools getopt inspect json/decoder json/encoder json/scanner keyword
    linecache logging/__init__ numbers operator optparse pickle pickletools queue random reprlib shlex string
    symtable threading timeit tokenize trace traceback types typing unittest/case unittest/mock uuid weakref""".split()
CODE_HELD_OUT = """difflib statistics fractions textwrap heapq calendar pprint cmd csv sched bisect graphlib
    filecmp locale pdb pstats doctest sre_parse""".split()

SUMS_ON_DEBIAN_12 = {  # debian-handbook 11.20220922, libpython3.11-stdlib 3.11.2-6+deb12u6
    "prose-calibration.txt": "4c57d240ce011f9c17d7c2a13ff5f50e485feed615477139a482a2686a9fcc02",
    "prose-heldout.txt": "2b47137ef6fc29e87b3d87f6b2ecfad6a2c4d9f3decbfc8b8c77be01d36747e1",
    "code-calibration.txt": "38a1b7cbb6138faf3790f60ce40feff1447e767310d9abef8f5221328854a492",
    "code-heldout.txt": "6ff6d59213d7284120d0ee3f5debd87a446bec4f6a50961b8759f84262fa9f27",
}

BLOCKS = {"div", "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "dl", "dt", "dd", "pre", "table", "tr", "td"}
SKIPPED_TAGS = {"head", "pre", "table", "script", "style"}
SKIPPED_CLASSES = {"docnav", "toc", "mediaobject", "copyright", "calloutlist"}
SKIPPED_IDS = {"banner", "title"}


class PageText(html.parser.HTMLParser):
    """Collects the paragraphs and headings of one page, and the address of the page that follows."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.paragraphs = []
        self.next_page = None
        self.open_tags = []  # (tag, whether its content is skipped)
        self.pieces = []

    def flush(self):
        paragraph = " ".join("".join(self.pieces).split())
        self.pieces = []
        if paragraph:
            self.paragraphs.append(paragraph)

    def skipping(self):
        return bool(self.open_tags) and self.open_tags[-1][1]

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "link" and attributes.get("rel") == "next":
            self.next_page = attributes["href"].split("#")[0]
        if tag in BLOCKS:
            self.flush()
        skipped = (
            tag in SKIPPED_TAGS
            or not SKIPPED_CLASSES.isdisjoint(attributes.get("class", "").split())
            or attributes.get("id") in SKIPPED_IDS
        )
        self.open_tags.append((tag, self.skipping() or skipped))

    def handle_endtag(self, tag):
        if tag in BLOCKS:
            self.flush()
        if not self.open_tags or self.open_tags[-1][0] != tag:
            raise SystemExit(f"unexpected </{tag}> at line {self.getpos()[0]}: not the page that this tool knows")
        self.open_tags.pop()

    def handle_data(self, data):
        if self.open_tags and not self.skipping():
            self.pieces.append(data)


def handbook_pages(folder):
    """Texts of the pages in reading order (the chain of their `next` links)."""
    pages, name, seen = [], FIRST_PAGE, {"index.html"}
    while name and name not in seen:
        seen.add(name)
        parser = PageText()
        parser.feed((folder / name).read_text(encoding="utf-8"))
        parser.close()
        pages.append("\n\n".join(parser.paragraphs) + "\n")
        name = parser.next_page
    return pages


def source_code(folder, modules):
    return "\n\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in modules)


def make_texts(handbook, stdlib):
    pages = handbook_pages(handbook)
    held_out = pages[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    calibration = [p for i, p in enumerate(pages) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return {
        "prose-calibration.txt": "\n\n".join(calibration),
        "prose-heldout.txt": "\n\n".join(held_out),
        "code-calibration.txt": source_code(stdlib, CODE_CALIBRATION),
        "code-heldout.txt": source_code(stdlib, CODE_HELD_OUT),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the four files")
    parser.add_argument("--handbook", type=pathlib.Path, default=HANDBOOK)
    parser.add_argument("--stdlib", type=pathlib.Path, default=STDLIB)
    args = parser.parse_args()
    for path, package in ((args.handbook / FIRST_PAGE, "debian-handbook"), (args.stdlib / "difflib.py", "python3")):
        if not path.exists():
            sys.exit(f"{path} is missing: install Debian's package {package}")
    args.out.mkdir(parents=True, exist_ok=True)
    differing = []
    for name, text in make_texts(args.handbook, args.stdlib).items():
        data = text.encode("utf-8")
        (args.out / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        print(f"{digest}  {name}  {len(data)} bytes")
        if digest != SUMS_ON_DEBIAN_12.get(name):
            differing.append(name)
    if differing:
        print(f"not the text of Debian 12 (compare no figures): {', '.join(differing)}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
