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


class CompileCommands:
    """The command and the object of each source, relative to the root, also of those that are compiled together with others.
    Splitting all of them takes a second, so only those that are used are split. They are read again if CMake has written the
    file again."""

    def __init__(self, root, build):
        self.root, self.file = root, build / "compile_commands.json"
        self.time, self.commands = None, {}

    def of(self, source):
        """The command without source and output, and the object."""
        command = self._read()[source]
        words = shlex.split(command)
        output, compiled = words.index("-o"), words.index("-c")
        kept = [word for place, word in enumerate(words) if place not in (output, output + 1, compiled, compiled + 1)]
        return kept, words[output + 1]

    def _read(self):
        time = self.file.stat().st_mtime_ns
        if time != self.time:
            self.commands, self.time = {}, time
            for entry in json.loads(self.file.read_text()):
                path = pathlib.Path(entry["file"])
                together = "Unity" in path.parts and path.exists()
                for source in INCLUDE.findall(path.read_text()) if together else [entry["file"]]:
                    self.commands[os.path.relpath(source, self.root)] = entry["command"]
        return self.commands


def sources_of(test):
    """The sources that a test names; empty if it is a ctest entry or the command of a program."""
    return [word for word in test.split() if word.endswith(".cpp")]


class SourcePrograms:
    """Builds a program from the sources that a test names, and from those of the library that include the mutated header.

    They are compiled with the headers in `overlay`, which are found before those of the checkout. Everything else is taken
    from the libraries that the build has linked to the program of the first source. Neither changes."""

    def __init__(self, root, build):
        self.root, self.build, self.folder = root, build, build / "mutants"
        self.commands = CompileCommands(root, build)
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
        commands = {source: self.commands.of(source)[0] for source in sources}
        objects = {source: self.folder / "objects" / (source.replace("/", "-") + ".o") for source in sources}
        with concurrent.futures.ThreadPoolExecutor(num_jobs) as threads:
            errors = list(threads.map(lambda source: self._compile(commands[source], source, objects[source]), sources))
        return next(filter(None, errors), "") or self._link(test, [str(file) for file in objects.values()])

    def check(self, source):
        """Returns the compiler's first error in a source, or ""."""
        command, _ = self.commands.of(source)
        return self._run([*command, "-iquote", str(self.overlay), "-fsyntax-only", str(self.root / source)])

    def _objects_folder(self, test):
        return re.match(r".*CMakeFiles/\w+\.dir", self.commands.of(sources_of(test)[0])[1])[0]

    def _compile(self, command, source, output):
        output.parent.mkdir(parents=True, exist_ok=True)
        return self._run([*command, "-iquote", str(self.overlay), "-o", str(output), "-c", str(self.root / source)])

    def _link(self, test, objects):
        command = ["ninja", "-C", str(self.build), "-t", "commands", "-s", f"bin/{self.target(test)}"]
        words = shlex.split(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        own_objects = self._objects_folder(test)
        words = [word for word in words if word not in (":", "&&") and not word.startswith(own_objects)]
        place = words.index("-o")
        return self._run([*words[:place], *objects, "-o", str(self.program(test)), *words[place + 2 :]])

    def _run(self, command):
        done = subprocess.run(command, cwd=self.build, capture_output=True, text=True)
        if done.returncode == 0:
            return ""
        return next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:] or "exit code " + str(done.returncode))
