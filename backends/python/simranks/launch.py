"""See simranks.__main__. Nothing heavy may be imported before `main` has set the number of threads."""

import ast
import ctypes
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys

from simranks.ranks import Problem, Ranks, check_memory, check_threads, die_with_parent, end_process, seed_generators, warm_up

# Packages that are imported before the fork if the program's file imports them.
SHARED_IMPORTS = ("accelerate", "datasets", "numpy", "peft", "torch", "torchvision", "transformers")

PR_SET_CHILD_SUBREAPER = 36


class Program:
    """What to run: a script, a module (-m) or a text (-c), and its arguments."""

    def __init__(self, words):
        self.kind = words[0] if words[:1] in (["-m"], ["-c"]) else "script"
        words = words if self.kind == "script" else words[1:]
        if not words:
            raise Problem("no program follows `python`; expected a script, -m MODULE or -c TEXT")
        self.name, self.arguments = words[0], words[1:]
        if self.kind == "script" and not os.path.isfile(self.name):
            raise Problem(f"{self.name}: no such file")

    def source(self):
        """The file whose imports come first; None if there is none."""
        if self.kind == "-c":
            return None
        if self.kind == "script":
            return self.name
        try:
            spec = importlib.util.find_spec(self.name)
        except ImportError as error:
            raise Problem(f"-m {self.name}: {error}") from error
        if spec is None:
            raise Problem(f"-m {self.name}: no such module")
        return spec.origin

    def run(self):
        if self.kind == "-m":
            sys.argv = [self.name] + self.arguments
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        elif self.kind == "-c":
            sys.argv = ["-c"] + self.arguments
            sys.path[0] = ""
            exec(compile(self.name, "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [self.name] + self.arguments
            sys.path[0] = os.path.dirname(os.path.abspath(self.name))
            runpy.run_path(self.name, run_name="__main__")


def imports_of(source):
    """The packages of SHARED_IMPORTS that a file imports, at its top level or in a function."""
    if source is None or not source.endswith(".py"):
        return []
    with open(source, encoding="utf-8", errors="replace") as file:
        try:
            tree = ast.parse(file.read())
        except SyntaxError:
            return []  # the ranks will report it
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
    given = {name.split(".")[0] for name in names}
    return [name for name in SHARED_IMPORTS if name in given and importlib.util.find_spec(name) is not None]


def import_shared(program, preload):
    """`preload`: further modules; `none` among them: those alone."""
    names = [name for name in preload if name != "none"]
    for name in names if "none" in preload else [*imports_of(program.source()), *names]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Problem(f"--preload {name}: {error}") from error


def kill_descendants():
    """Ends what the ranks have left behind, such as workers of their loaders: they are our children now."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="utf-8") as file:
            left = [int(pid) for pid in file.read().split()]
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for pid in left:
            os.waitpid(pid, 0)


def check_torch():
    import simranks

    try:
        simranks.check_torch()
    except ImportError as error:
        raise Problem(str(error)) from error


def use_one_thread_of_the_cpu(maps_cuda=False):
    os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")})
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if not maps_cuda:
        os.environ["ACCELERATE_USE_CPU"] = "true"


def run_here(program, request):
    """A rank of a real backend, which this process is."""
    if request["backend"] == "gloo":
        use_one_thread_of_the_cpu()
    check_torch()
    from simranks import recording

    rank = int(os.environ["RANK"])
    seed_generators(rank)  # like a simulated rank: a program that does not seed them can be compared, too
    recording.install(request, rank)
    try:
        program.run()
    except SystemExit as end:
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)
            end.code = 1
        end_process(end.code or 0)
    end_process(0)  # Gloo's threads may abort a process whose objects are destroyed


def run_ranks(program, area, outputs, request=None):
    """One run: its ranks begin, end and leave nothing behind."""
    ranks = Ranks(program, area, outputs, request)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    area.set_ready()
    with ranks:
        for descriptor in set(outputs):
            os.close(descriptor)
        ranks.supervise()
    kill_descendants()


def serve_runs(program, simulator, request):
    """One run per line of the socket, "AREA RESTARTS FOLDER", each in a process of its own, which forks its ranks: this one stays
    as it is. AREA is a descriptor of the simulator, which has started this process."""
    from simranks import channel

    warm_up()
    check_threads()
    parent = os.getppid()
    while True:
        simulator.sendall(b"\n")
        words = simulator.recv(4096).decode().rstrip("\n").split(" ", 2)
        if words == [""]:
            return
        descriptor = os.open(f"/proc/{parent}/fd/{words[0]}", os.O_RDWR)
        area = channel.SharedArea.attach(descriptor)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_with_parent()
                os.environ["ACCEL_RESTART_COUNT"] = words[1]
                simulator.close()
                nowhere = os.open(os.devnull, os.O_WRONLY)
                outputs = []
                for rank in range(area.num_ranks):
                    file = os.path.join(words[2], f"output{rank}")
                    outputs += [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), nowhere]
                run_ranks(program, area, outputs, request)
                code = 0
            except Problem as problem:
                print(f"sim-run: {problem}", file=sys.stderr)
                code = 2
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        area.record_lost_ends(status)


def launch(words):
    request = json.loads(os.environ.pop("ACCEL_SIM", "{}"))
    is_real = request.get("backend", "sim") != "sim"
    if not is_real and not {"ACCEL_AREA", "ACCEL_RUNS"} & set(os.environ):
        raise Problem("a simulator must start this; use `sim-run --ranks N -- python SCRIPT`")
    program = Program(words[1:] if words[:1] == ["--"] else words)
    if is_real:
        return run_here(program, request)
    use_one_thread_of_the_cpu(request.get("map_cuda", False))
    preload = [name for name in os.environ.pop("ACCEL_PRELOAD", "").split(",") if name]
    check_torch()
    import torch

    from simranks import channel, map_devices

    map_devices(request)  # before the imports of the program, which may ask for GPUs
    if "ACCEL_RUNS" in os.environ:
        simulator = socket.socket(fileno=int(os.environ.pop("ACCEL_RUNS")))
        import_shared(program, preload)
        return serve_runs(program, simulator, request)
    area = channel.SharedArea.attach(int(os.environ.pop("ACCEL_AREA")))
    outputs = [int(word) for word in os.environ.pop("ACCEL_OUTPUTS").split(",")]
    check_memory(area.num_ranks)  # before the imports, which take longer
    import_shared(program, preload)
    run_ranks(program, area, outputs, request)
    os._exit(0)  # the interpreter's end takes longer than many a run, and has nothing to do


def main(words):
    try:
        launch(words)
    except Problem as problem:
        print(f"sim-run: {problem}", file=sys.stderr)
        return 2
    return 0
