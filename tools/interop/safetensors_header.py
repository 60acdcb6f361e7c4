"""The tensors of a safetensors file: name -> (dtype, shape, bytes). Standard library only."""
import json
import pathlib


def read(path: pathlib.Path) -> dict[str, tuple[str, list[int], bytes]]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            out[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return out
