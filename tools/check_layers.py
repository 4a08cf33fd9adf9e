#!/usr/bin/env python3
"""Checks that every #include follows the arrows of docs/architecture.md.

    base <- contract <- { oracle, kernels/* } <- registry <- api <- { engine, gate, lab, cli, bench, python }
    base <- records <- { gate, lab, cli }

A file may include its own layer and the layers that LAYERS allows it; the public headers (include/tessera) are open to
all. Tests may include anything. Prints one line per violation; exit code 1 if there is any.

    tools/check_layers.py [ROOT]    ROOT: the folder of the checkout; default: the one this file is in
"""

import re
import sys
from pathlib import Path

from source_tree import blank, is_cpp, project_files

# Layer -> the other layers it may include. A layer is a folder of src/, or a folder beside src/.
# `kernels` is what the files directly in src/kernels share among the architectures; they never see one another.
LAYERS = {
    "base": set(),
    "records": {"base"},
    "contract": {"base"},
    "oracle": {"base", "contract"},
    "kernels": {"base", "contract"},
    "kernels/cpu": {"base", "contract", "kernels"},
    "kernels/sm80": {"base", "contract", "kernels"},
    "kernels/sm90": {"base", "contract", "kernels"},
    "probe": {"base", "contract"},
    "registry": {"base", "contract", "oracle", "kernels", "kernels/cpu", "kernels/sm80", "kernels/sm90"},
    "api": {"base", "contract", "oracle", "kernels", "kernels/cpu", "kernels/sm80", "kernels/sm90", "registry"},
    "engine": {"base"},
    "gate": {"base", "records", "engine"},
    "lab": {"base", "records"},  # runs gates as commands, so that it judges any program's
    # `contract show` prints the constants, `probe` runs the device checks: read-only views for the command line.
    "cli": {"base", "records", "engine", "gate", "lab", "contract", "probe"},
    "bench": {"base", "engine"},
    "python": {"base"},
    "examples": set(),  # what a user of the library can see
    "public": set(),
}
SEES_EVERYTHING = {"tests"}

# Compile without a CUDA toolkit: the contract and its second writing must build with a C++ compiler alone.
NO_CUDA = {"base", "records", "contract", "oracle", "kernels", "kernels/cpu", "public"}
CUDA_HEADER = re.compile(r"^(cuda|cuda_\w+|cuda\w*|cublas\w*|curand\w*|mma|crt|cub|thrust|cute|cutlass|nv)(\.h|\.hpp|/.*)$|\.cuh$")
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|pybind11)/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)


def layer_of(path: Path) -> str | None:
    """The layer of a file given relative to the root; None where no rule applies (and so a violation inside src/)."""
    parts = path.parts
    if parts[0] == "include":
        return "public"
    if parts[0] == "src":
        if parts[1] == "kernels":
            name = "kernels" if len(parts) == 3 else f"kernels/{parts[2]}"
        else:
            name = parts[1]
        return name if name in LAYERS and name not in {"public", "bench", "python", "examples"} else None
    return parts[0] if parts[0] in LAYERS or parts[0] in SEES_EVERYTHING else None


def resolve(root: Path, includer: Path, name: str) -> Path | None:
    """The project file that an include names, relative to the root; None for a header from outside."""
    for base in (includer.parent, Path("src"), Path("include"), Path("tests")):
        candidate = base / name
        if (root / candidate).is_file():
            return Path(*(p for p in candidate.parts if p != "."))
    return None


def check_include(root: Path, path: Path, name: str) -> str | None:
    """The sentence that says what is wrong with `path` including `name`; None if nothing is."""
    layer = layer_of(path)
    if TORCH_HEADER.search(name) and layer != "python":
        return f"got {name}; torch headers are allowed in python/ only"
    if layer in SEES_EVERYTHING:
        return None
    if ".." in Path(name).parts:
        return f"got {name}; allowed are paths from src/ or include/, without '..'"
    if layer in NO_CUDA and CUDA_HEADER.search(name):
        return f"got {name}; the layer {layer} compiles without a CUDA toolkit: move the code to kernels/sm*"
    target = resolve(root, path, name)
    if target is None:
        return None
    target_layer = layer_of(target)
    if target_layer is None or target_layer in SEES_EVERYTHING:
        return f"got {name} ({target}); a {layer} file may not include it"
    if target_layer not in {layer, "public"} and target_layer not in LAYERS[layer]:
        allowed = ", ".join(sorted(LAYERS[layer] - {layer})) or "no other layer"
        return f"got {name} (layer {target_layer}); {layer} may include: {allowed}, and tessera/*.h"
    if target.suffix == ".cuh" and target.parent not in path.parents:
        return f"got {name}; a .cuh is private to its folder {target.parent}/"
    return None


def check_tree(root: Path, files: list[Path]) -> list[str]:
    problems = []
    for path in files:
        if not is_cpp(path) and path.suffix != ".inc":
            continue
        if layer_of(path) is None:
            if path.parts[0] == "src":
                problems.append(f"{path}:1: got a folder of src/ that no layer names; add it to LAYERS in tools/check_layers.py")
            continue
        text = blank((root / path).read_text(encoding="utf-8", errors="replace"), strings=False)
        for match in INCLUDE.finditer(text):
            problem = check_include(root, path, match.group(2))
            if problem:
                problems.append(f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {problem}")
    return problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    files = project_files(root)
    problems = check_tree(root, files)
    for problem in problems:
        print(problem)
    print(f"check_layers: {sum(map(is_cpp, files))} C++ files, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
