#!/usr/bin/env python3
"""Checks the sources for what a compiler accepts and the project does not.

In the library (src/ without the programs in src/cli and src/probe): calls that end the process, print, or wait for the whole device; the library
reports by Status and leaves those decisions to the program. In all sources: marks of unfinished work, code that was
commented out, paths of one person's machine, and files too long to be read in one sitting. Prints one line per
finding; exit code 1 if there is any.

    tools/check_words.py [ROOT]    ROOT: the folder of the checkout; default: the one this file is in
"""

import re
import sys
from pathlib import Path

from source_tree import blank, comments, is_cpp, project_files

PROGRAMS = {"cli", "probe"}  # folders of src/ that are programs: they print, and end the process
MAX_LINES = 700
LONG_FILE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".c", ".py"}  # not .inc: those are generated tables

# (pattern on code without comments and strings, what to do instead)
LIBRARY_CALLS = [
    (r"\b(?:_?exit|quick_exit|_Exit)\s*\(", "the library never ends the process: return a Status"),
    (r"\b(?:abort|terminate)\s*\(", "the library never ends the process: return a Status"),
    (r"\b__trap\s*\(", "a kernel never kills the context: reject the problem on the host"),
    (r"\b(?:v?f?printf|f?puts|putchar|fmt::print)\s*\(", "the library never prints: return a Status"),
    (r"\bstd::(?:cout|cerr|clog)\b", "the library never prints: return a Status"),
    (r"\bcudaDeviceSynchronize\s*\(", "the library never waits for the device: enqueue on the caller's stream"),
]
# Spelled in two pieces so that this file does not find itself.
UNFINISHED = re.compile(r"\b(?:" + "|".join(["TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK"]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.$})*/-])/(?:work|home|root|mnt|Users|workspace)/(?=[\w.])")

# A comment line that reads as a statement: an assignment or a call up to the semicolon, or a keyword with its bracket.
# Formulas of the contract end without a semicolon, so that they do not look like this. Lines set in by three spaces
# or more are examples of use.
DEAD_CODE = re.compile(
    r"^ {0,2}(?:"
    r"[\w:<>,*&\[\]().>-]+(?:\s+[\w:*&][\w:<>*&]*){0,3}\s*(?:[-+*/|&^]|<<|>>)?=(?!=)[^;]*;"  # x = y;   auto x = y;
    r"|(?:[\w:]+(?:\.|->))*[\w:]+(?:<[\w:, ]+>)?\([^;]*\);"  # f(x);
    r"|(?:if|for|while|switch)\s*\(.*\)\s*\{?"  # if (x) {
    r"|(?:return|throw|delete|using|goto)\b[^;.]*;"
    r"|#\s*(?:if|ifdef|ifndef|include|define|endif|else)\b.*"
    r"|\}(?:\s*else\s*\{)?;?"
    r")\s*$"
)


def check_file(path: Path, text: str) -> list[str]:
    """Findings in one file, given relative to the root, as "path:line: sentence"."""
    found = []

    def report(line: int, sentence: str) -> None:
        found.append(f"{path}:{line}: {sentence}")

    lines = text.split("\n")
    if path.suffix in LONG_FILE_SUFFIXES and len(lines) > MAX_LINES + 1:
        report(MAX_LINES, f"got {len(lines) - 1} lines; allowed {MAX_LINES}; split the file by what its parts are for")
    for number, line in enumerate(lines, start=1):
        if match := UNFINISHED.search(line):
            report(number, f"got {match.group(0)}; finish it, or open an issue and drop the mark")
        if match := MACHINE_PATH.search(line):
            report(number, f"got a path under {match.group(0)}; take it from an argument or an environment variable")
    if is_cpp(path):
        for number, comment in comments(text):
            if DEAD_CODE.match(comment):
                report(number, f"got code in a comment ({comment.strip()}); delete it, git remembers it")
        if path.parts[0] == "src" and path.parts[1] not in PROGRAMS:
            code = blank(text, strings=True)
            for pattern, advice in LIBRARY_CALLS:
                for match in re.finditer(pattern, code):
                    report(code.count("\n", 0, match.start()) + 1, f"got {match.group(0).rstrip(' (')}; {advice}")
    return found


def check_tree(root: Path, files: list[Path]) -> list[str]:
    problems = []
    for path in files:
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file: vectors, images
        problems += check_file(path, text)
    return problems


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    files = project_files(root)
    problems = check_tree(root, files)
    for problem in problems:
        print(problem)
    print(f"check_words: {len(files)} files, {len(problems)} findings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
