"""See accel_sim.__main__. Nothing heavy may be imported before `main` has set the number of threads."""

import ast
import atexit
import ctypes
import gc
import importlib
import importlib.util
import os
import random
import runpy
import signal
import sys
import sysconfig
import threading
import traceback

# Packages that are imported before the fork if the program's file imports them.
SHARED_IMPORTS = ("accelerate", "datasets", "numpy", "peft", "torch", "torchvision", "transformers")

# A rank's own memory until its first step, measured with a small model: 22 MiB, and the proxy's stack and channel.
RANK_BYTES = 32 << 20

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Problem(Exception):
    """Ends the launch with one line."""


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


def import_shared(names):
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Problem(f"--preload {name}: {error}") from error


def warm_up():
    """One small optimizer step, so that what LibTorch creates at first use is shared. The random streams stay as they
    are in a fresh process."""
    import torch

    state = torch.get_rng_state()
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    torch.set_rng_state(state)


_is_warm = False


def warm_up_once():
    global _is_warm
    if not _is_warm:
        warm_up()
        _is_warm = True


def check_threads():
    tasks = os.listdir("/proc/self/task")
    if len(tasks) == 1:
        return
    names = []
    for task in tasks:
        if int(task) == os.getpid():
            continue
        with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
            names.append(file.read().strip())
    python = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    raise Problem(
        f"{len(names)} thread(s) run before the ranks are forked ({', '.join(python or names)}), and would be missing in "
        f"them; import the module that starts them in the program's main part, or leave it out of --preload"
    )


def check_memory(num_ranks):
    with open("/proc/meminfo", encoding="utf-8") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    needed = num_ranks * RANK_BYTES
    if needed > available:
        raise Problem(
            f"{num_ranks} ranks need about {needed >> 20} MiB before their models, and {available >> 20} MiB are "
            f"available; use at most {available // RANK_BYTES} ranks"
        )


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def owners_of(program):
    """Whose code is whose: see module.cpp."""
    from accel_sim import _native

    paths = sysconfig.get_paths()
    packages = {paths["purelib"], paths["platlib"]}
    machineries = [paths["stdlib"], os.path.dirname(__file__)]
    machineries += [os.path.join(package, "torch") + os.sep for package in packages]
    source = program.source() or ""
    return _native.Owners(program=source, libraries=sorted(packages), machineries=machineries)


def run_rank(program, rank, area, port, owners, output, install):
    """The life of a rank, in its process. Does not return."""
    import numpy
    import torch

    from accel_sim import _native

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if output:
        os.dup2(output[0], 1)
        os.dup2(output[1], 2)
    _native.become(area, rank, owners)
    install()
    # In fresh processes these differ, and in forked ones they would be equal: a program that forgets to seed them must
    # not look right. LibTorch's own generator begins with the same seed in every process.
    random.seed(f"rank {rank}")
    numpy.random.seed(rank + 1)
    size = str(area.num_ranks)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0",
        GROUP_WORLD_SIZE="1", ROLE_RANK=str(rank), ROLE_WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        TORCHELASTIC_RESTART_COUNT="0", ACCELERATE_USE_CPU="true",
    )
    code = 0
    try:
        program.run()
    except SystemExit as end:
        if end.code not in (None, 0):
            code = end.code if isinstance(end.code, int) else 1
            _native.fail(f"the program called sys.exit({end.code!r}){at(end)}; expected code 0")
    except BaseException as error:  # KeyboardInterrupt too: it ends the rank
        code = 1
        _native.fail(describe(error))
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 255)  # not through the interpreter's end: the frames and globals of the launcher are not ours


def program_frames(error):
    """The traceback without the frames of this package and of runpy."""
    frames = traceback.extract_tb(error.__traceback__)
    own = (os.path.dirname(__file__), runpy.__file__)
    return [frame for frame in frames if not frame.filename.startswith(own) and not frame.filename.startswith("<frozen")]


def at(error):
    frames = program_frames(error)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def describe(error):
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = program_frames(error)
    return text if not frames else text + "\n" + "".join(traceback.format_list(frames)).rstrip()


def fork_ranks(program, area, port, owners, outputs=None, install=lambda: None):
    """Starts the ranks. Each runs `install` and then the program. Returns their process numbers."""
    gc.collect()
    gc.freeze()
    pids = []
    for rank in range(area.num_ranks):
        output = outputs[2 * rank : 2 * rank + 2] if outputs else None
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            run_rank(program, rank, area, port, owners, output, install)
        area.set_pid(rank, pid)
        pids.append(pid)
    gc.unfreeze()
    return pids


def supervise(pids, area, engine=None):
    """Records how each rank ends. `engine` is the simulator if this process has started it: without it they cannot go
    on."""
    ranks = {pid: rank for rank, pid in enumerate(pids)}
    while ranks:
        pid, status = os.wait()
        if pid in ranks:
            area.record_end(ranks.pop(pid), status)
        elif engine is not None and pid == engine.pid:
            engine.returncode = os.waitstatus_to_exitcode(status)
            for left in ranks:
                os.kill(left, signal.SIGKILL)


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


def launch(words):
    if "ACCEL_AREA" not in os.environ:
        raise Problem("a simulator must start this; use `sim-run --ranks N -- python SCRIPT`")
    program = Program(words[1:] if words[:1] == ["--"] else words)
    os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")})
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    preload = [name for name in os.environ.pop("ACCEL_PRELOAD", "").split(",") if name]
    import accel_sim

    try:
        accel_sim.check_torch()
    except ImportError as error:
        raise Problem(str(error)) from error
    import torch

    from accel_sim import _native, backend, observation

    area = _native.SharedArea.attach(int(os.environ.pop("ACCEL_AREA")))
    outputs = [int(word) for word in os.environ.pop("ACCEL_OUTPUTS").split(",")]
    check_memory(area.num_ranks)
    import_shared(["torch", *imports_of(program.source()), *preload])
    warm_up()
    store = os.memfd_create("accel-store", 0)
    backend.install(f"/proc/{os.getpid()}/fd/{store}")
    observation.install()
    owners = owners_of(program)
    port = free_port()
    check_threads()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    area.set_ready()
    pids = fork_ranks(program, area, port, owners, outputs)
    for descriptor in outputs:
        os.close(descriptor)
    supervise(pids, area)
    kill_descendants()
    os._exit(0)  # the interpreter's end takes longer than many a run, and has nothing to do


def main(words):
    try:
        launch(words)
    except Problem as problem:
        print(f"sim-run: {problem}", file=sys.stderr)
        return 2
    return 0
