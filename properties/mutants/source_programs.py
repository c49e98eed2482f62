"""Test programs of a few sources, for mutants of a header, which 30 units of the build and more include."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def includes(root, source, header):
    """Whether a source includes a header, itself or through other headers."""
    waiting, seen = [source], set()
    while waiting:
        for name in INCLUDE.findall((root / waiting.pop()).read_text()):
            if name == header:
                return True
            if name not in seen and (root / name).exists():
                seen.add(name)
                waiting.append(name)
    return False


def users_of(root, header):
    """The sources of a header's own module that include it."""
    module = pathlib.Path(*pathlib.Path(header).parts[:2])
    sources = sorted(str(path.relative_to(root)) for path in (root / module).rglob("*.cpp"))
    return [source for source in sources if includes(root, source, header)]


def compile_commands(root, build):
    """The command and the object of each source, relative to the root, also of those that are compiled together with others.
    The command lacks source and output."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        together = "Unity" in path.parts and path.exists()
        sources = INCLUDE.findall(path.read_text()) if together else [entry["file"]]
        for source in sources:
            command = shlex.split(entry["command"])
            output, compiled = command.index("-o"), command.index("-c")
            kept = [word for place, word in enumerate(command) if place not in (output, output + 1, compiled, compiled + 1)]
            commands[os.path.relpath(source, root)] = kept, command[output + 1]
    return commands


def sources_of(test):
    """The sources that a test names; empty if it is a ctest entry or the command of a program."""
    return [word for word in test.split() if word.endswith(".cpp")]


class SourcePrograms:
    """Builds a program from the sources that a test names, and from those of the library that include the mutated header.

    They are compiled with the headers in `overlay`, which are found before those of the checkout. Everything else is taken
    from the libraries that the build has linked to the program of the first source. Neither changes."""

    def __init__(self, root, build):
        self.root, self.build, self.folder = root, build, build / "mutants"
        self.overlay = self.folder / "include"

    def program(self, test):
        return self.folder / pathlib.Path(sources_of(test)[0]).stem

    def target(self, test):
        """The target of the build that contains the first source."""
        return pathlib.Path(self._objects_folder(test)).name.removesuffix(".dir")

    def build_program(self, test, num_jobs):
        """Returns the compiler's first error, or ""."""
        headers = [str(path.relative_to(self.overlay)) for path in self.overlay.rglob("*.hpp")]
        sources = list(dict.fromkeys([*sources_of(test), *(source for header in headers for source in users_of(self.root, header))]))
        commands = compile_commands(self.root, self.build)
        objects = {source: self.folder / "objects" / (source.replace("/", "-") + ".o") for source in sources}
        with concurrent.futures.ThreadPoolExecutor(num_jobs) as threads:
            errors = list(threads.map(lambda source: self._compile(commands[source][0], source, objects[source]), sources))
        return next(filter(None, errors), "") or self._link(test, [str(file) for file in objects.values()])

    def check(self, source):
        """Returns the compiler's first error in a source, or ""."""
        command, _ = compile_commands(self.root, self.build)[source]
        return self._run([*command, "-iquote", str(self.overlay), "-fsyntax-only", str(self.root / source)])

    def _objects_folder(self, test):
        return re.match(r".*CMakeFiles/\w+\.dir", compile_commands(self.root, self.build)[sources_of(test)[0]][1])[0]

    def _compile(self, command, source, output):
        output.parent.mkdir(parents=True, exist_ok=True)
        return self._run([*command, "-iquote", str(self.overlay), "-o", str(output), "-c", str(self.root / source)])

    def _link(self, test, objects):
        command = ["ninja", "-C", str(self.build), "-t", "commands", "-s", f"bin/{self.target(test)}"]
        words = shlex.split(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        words = [word for word in words if word not in (":", "&&") and not word.startswith(self._objects_folder(test))]
        place = words.index("-o")
        return self._run([*words[:place], *objects, "-o", str(self.program(test)), *words[place + 2 :]])

    def _run(self, command):
        done = subprocess.run(command, cwd=self.build, capture_output=True, text=True)
        if done.returncode == 0:
            return ""
        return next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:] or "exit code " + str(done.returncode))
