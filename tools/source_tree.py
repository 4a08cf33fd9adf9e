"""What the source checks share: the list of the project's files, and C++ text without its comments or strings."""

import os
import re
import subprocess
from pathlib import Path

CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".c"}

# Order matters: whichever of these starts first at a position wins.
_TOKEN = re.compile(
    r'R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'  # raw string
    r"|//(?:[^\n\\]|\\.|\\\n)*"  # line comment
    r"|/\*.*?\*/"  # block comment
    r'|"(?:[^"\\\n]|\\.)*"'  # string
    r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'",  # character, but not a digit separator
    re.DOTALL,
)


def project_files(root: Path) -> list[Path]:
    """Files that git tracks or would track, relative to root; in an unpacked archive, all but build products."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [os.fsdecode(name) for name in listing.stdout.split(b"\0") if name]
        return sorted(Path(name) for name in set(names) if (root / name).is_file())
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [d for d in subfolders if not d.startswith("build") and d not in {".git", ".venv", "__pycache__"}]
        files += [Path(folder, name).relative_to(root) for name in names]
    return sorted(files)


def is_cpp(path: Path) -> bool:
    return path.suffix in CPP_SUFFIXES


def blank(text: str, strings: bool) -> str:
    """The text with comments (and, if asked, the insides of strings) replaced by spaces; line numbers stay."""

    def spaces(match: re.Match) -> str:
        token = match.group(0)
        if token.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", token)
        if strings:
            return token[0] + re.sub(r"[^\n]", " ", token[1:-1]) + token[-1]
        return token

    return _TOKEN.sub(spaces, text)


def comments(text: str) -> list[tuple[int, str]]:
    """(line number, text) of every line of every comment, without the comment marks."""
    found = []
    for match in _TOKEN.finditer(text):
        token = match.group(0)
        if not token.startswith(("//", "/*")):
            continue
        first = text.count("\n", 0, match.start()) + 1
        for offset, line in enumerate(token.split("\n")):
            found.append((first + offset, re.sub(r"^\s*(?:///?|/\*+|\*(?!/))?|\*/\s*$", "", line)))
    return found
