"""Compiles the sources of a build that changed, or that include a changed header, without writing object files.

It follows the lines `#include` of the sources in compile_commands.json. Files are named relative to the working folder,
the root of the project. The build itself would first link programs that other targets only run. The exit code is 1 if a
source does not compile.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import sys

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Compilation:
    source: str  # relative to the root
    words: tuple[str, ...]
    folder: str


def read_compilations(build, root):
    """One per source, because it has the same includes in all targets. Generated sources are left out."""
    compilations = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"])
        source = relative_to(root, path)
        if source is not None and not path.is_relative_to(build.resolve()):
            words = tuple(shlex.split(entry["command"]))
            compilations.setdefault(source, Compilation(source, words, entry["directory"]))
    return list(compilations.values())


def relative_to(root, path):
    """None for a file of another project."""
    path = path.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else None


def include_folders(compilations, root):
    """The folders of `-I` that belong to the project."""
    folders = {}
    for compilation in compilations:
        for word in compilation.words:
            if word.startswith("-I") and pathlib.Path(word[2:]).is_relative_to(root):
                folders[pathlib.Path(word[2:])] = None
    return list(folders)


def included_files(file, folders, root):
    found = set()
    for name in INCLUDE.findall((root / file).read_text(errors="replace")):
        for folder in [(root / file).parent, *folders]:
            if (folder / name).is_file():
                found.add(relative_to(root, folder / name))
                break
    return found - {None}


def files_that_include(sources, folders, root):
    """For each file, those that include it directly, beginning at the sources."""
    includers, waiting, seen = collections.defaultdict(set), list(sources), set(sources)
    while waiting:
        file = waiting.pop()
        for included in included_files(file, folders, root):
            includers[included].add(file)
            if included not in seen:
                seen.add(included)
                waiting.append(included)
    return includers


def affected(changed, includers):
    """The changed files, and all that include one of them, directly or through other files."""
    waiting, seen = list(changed), set(changed)
    while waiting:
        for file in includers.get(waiting.pop(), ()):
            if file not in seen:
                seen.add(file)
                waiting.append(file)
    return seen


def check_command(words):
    """The compiler's command, with `-fsyntax-only` in place of an object file."""
    words = list(words)
    if "-o" in words:
        place = words.index("-o")
        del words[place : place + 2]
    return ["-fsyntax-only" if word == "-c" else word for word in words]


def compiles(compilation):
    done = subprocess.run(check_command(compilation.words), cwd=compilation.folder, capture_output=True, text=True,
                          errors="replace", check=False)  # fmt: skip
    # One write: print writes the text and its line end apart, and other threads write between them.
    sys.stderr.write(f"[dev] {'ok    ' if done.returncode == 0 else 'FAILED'} {compilation.source}\n{done.stdout}{done.stderr}")
    sys.stderr.flush()
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(prog="compile_changed.py", description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("changed", nargs="*", help="sources and headers, relative to the root")
    options = parser.parse_args()
    root = pathlib.Path.cwd().resolve()
    compilations = read_compilations(options.build, root)
    includers = files_that_include([each.source for each in compilations], include_folders(compilations, root), root)
    files = affected(options.changed, includers)
    chosen = sorted((each for each in compilations if each.source in files), key=lambda each: each.source)
    outside = set(options.changed) - set(includers) - {each.source for each in compilations}
    for file in sorted(outside):
        print(f"[dev] not compiled by this preset: {file}", file=sys.stderr)
    print(f"[dev] compiling {len(chosen)} of {len(compilations)} sources", file=sys.stderr)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(compiles, chosen))
    print(f"{results.count(True)} compiled, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
