"""The first difference between the answers of Accelerate and accel, as a sentence; None if they agree."""
import math
import re

from plan import NOT_COMPARED

# --- errors ----------------------------------------------------------------------------------------------------------


def text_of_error(message):
    """The first line, with sizes as LibTorch prints them. The messages of LibTorch continue with a backtrace."""
    lines = message.strip().splitlines() or [""]
    return re.sub(r"torch\.Size\((\[[^]]*\])\)", r"\1", lines[0]).strip()


def difference_of_errors(theirs, ours, stops_others=False, place=""):
    """Both: the message of each rank that ended in an error. They agree if the same ranks have errors with the same text. With
    `stops_others`, the first error of ours stops the other ranks, which may then lack theirs."""
    if not theirs and not ours:
        return None
    for name, some, others in (("Accelerate", theirs, ours), ("accel", ours, theirs)):
        if not others:
            rank = min(some)
            return f"only {name} ends in an error{place}: rank {rank}: {text_of_error(some[rank])}"
    if not (ours.keys() <= theirs.keys() if stops_others else ours.keys() == theirs.keys()):
        text = text_of_error(theirs[min(theirs)])
        return f"ranks {sorted(theirs)} of Accelerate and ranks {sorted(ours)} of accel end in errors{place}: {text}"
    for rank in sorted(ours):
        their, our = text_of_error(theirs[rank]), text_of_error(ours[rank])
        if their != our or not their:
            return f"rank {rank}: the error of Accelerate is {their!r}, that of accel {our!r}"
    return None


RELEASED = "released from waiting by this failure"  # of simulated ranks that have no error of their own
OF_RANKS = re.compile(r"(?:sim-run: )?ranks? (\d[\d, -]*): (.*)")  # of simulated ranks
OF_PROCESS = re.compile(r"\[rank (\d+)\] sim-run: (.*)")


def errors_of_output(text, ranks):
    """The errors of the ranks, from what a failed sim-run writes to its standard error. What does not name a rank belongs to all."""
    lines, errors = text.splitlines(), {}
    for line in lines:
        if found := OF_PROCESS.fullmatch(line):
            errors.setdefault(int(found[1]), text_of_error(found[2]))
        elif (found := OF_RANKS.fullmatch(line)) and found[2] != RELEASED:
            errors |= dict.fromkeys(ranks_of(found[1]), text_of_error(found[2]))
    if errors:
        return errors
    named = [line.removeprefix("sim-run: ") for line in lines if line.startswith("sim-run: ")]
    return dict.fromkeys(range(ranks), ([*named, *lines[-1:]] or ["no message"])[0])


def ranks_of(text):
    """"0-2, 5" is 0, 1, 2, 5."""
    ends = [part.split("-") for part in text.split(", ")]
    return [rank for part in ends for rank in range(int(part[0]), int(part[-1]) + 1)]


def unexpected_error(theirs, ours):
    """The errors of answers to requests that both sides must accept, where even two errors that say the same are a difference."""
    their, our = error_of(theirs), error_of(ours)
    if their and our:
        return f"no answer of Accelerate: {their}; no answer of accel: {our}"
    return f"only Accelerate has no answer: {their}" if their else f"only accel has no answer: {our}" if our else None


def error_of(answer):
    """The first error of an answer, or of the answers of all ranks."""
    if not isinstance(answer, dict):
        return next((f"rank {rank}: {error_of(of_rank)}" for rank, of_rank in enumerate(answer) if error_of(of_rank)), None)
    if "failure" in answer:
        return answer["failure"]
    return f"{answer['error']}: {answer.get('message')}" if "error" in answer else None


# --- runs ------------------------------------------------------------------------------------------------------------


def difference_of_runs(theirs, run, stops_others=False, **bounds):
    """`theirs`: of each rank the trace, or {"message", "trace"} if it ends in an error. `run(max_steps)`: {"trace", "errors"} of accel,
    which has no trace if there are errors. If Accelerate ends in an error, accel must end in the same error in the same step, and the
    traces up to it must be equal. Errors in an evaluation or at the end are never equal, because a run of fewer steps has these too."""
    if isinstance(theirs, dict):
        return f"no trace of Accelerate: {theirs['failure']}"
    errors = {rank: of_rank["message"] for rank, of_rank in enumerate(theirs) if isinstance(of_rank, dict)}
    trace = [line for of_rank in theirs for line in (of_rank["trace"] if isinstance(of_rank, dict) else of_rank)]
    if not errors:
        ours = run(None)
        return difference_of_errors(errors, ours["errors"]) or difference_of_sharded_traces(trace, ours["trace"], **bounds)
    steps = {sum("step" in line for line in theirs[rank]["trace"]) for rank in errors}
    if len(steps) > 1:
        return f"ranks of Accelerate end in errors after {sorted(steps)} steps: {errors}"
    (steps,) = steps
    found = difference_of_errors(errors, run(steps + 1)["errors"], stops_others, place=f" by step {steps}")
    if found or steps == 0:
        return found
    before = run(steps)
    if before["errors"]:
        return f"Accelerate completes {steps} steps before its error, accel ends in an error even if these are all: {before['errors']}"
    return difference_of_sharded_traces(trace, before_error(before["trace"], trace), **bounds)


def before_error(ours, theirs):
    """The steps of a run that ends early, and the evaluations that the other run reached too."""
    evaluated = {line["epoch"] for line in theirs if "eval_samples" in line}
    return [line for line in ours if "step" in line or line.get("epoch") in evaluated]


# --- traces ----------------------------------------------------------------------------------------------------------


def difference_of_traces(theirs, ours):
    left, right = keyed(theirs), keyed(ours)
    if any(line.get("loss") == "nan" for line in left.values()):  # the parameters are NaN too, and a NaN's sign is not compared
        left, right = without_hashes(left), without_hashes(right)
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            return f"{name_of(key)}: {difference_of_lines(left.get(key), right.get(key))}"
    return None


# FSDP2: the order in which Gloo sums gradients and norms depends on its layout. Losses of random experiments differed by up to this part
# from those with gradients summed in the order of the ranks: 2.3e-7 (no, 1,214 losses), 9.9e-3 (bf16, 721), 9.0e-4 (fp16, 789).
# Longer trainings amplify it: 1.7e-2 after 22 steps of a centered rmsprop in fp16. float8 amplifies it most: a nadam with betas 0 and 0.5 was
# equal for two steps and one bfloat16 unit apart in the third; in the fifth, a loss over three samples was 0.78 on one side and 0.94 on the other.
# Before the first update no gradient has been used, so losses are equal.
BOUNDS = {"no": 1e-4, "bf16": 0.05, "fp16": 0.05, "fp8": 0.25}


def difference_of_sharded_traces(theirs, ours, bound, bound_of_first=0):
    """With a bound above 0, losses after the first update may differ by less than that part, those before it by `bound_of_first`; values
    that need exact parameters are not compared."""
    if bound == 0:
        return difference_of_traces(theirs, ours)
    left, right = keyed(theirs), keyed(ours)
    first_update = min((key[:2] for key, line in left.items() if line.get("sync_gradients")), default=(math.inf, math.inf))
    for key in sorted(left.keys() | right.keys()):
        their, our = (dict(side[key]) if key in side else None for side in (left, right))
        if their is not None and our is not None:
            bound_here = bound if key[:2] > first_update else bound_of_first
            if "loss" in their and bound_here > 0 and is_near(float.fromhex(their["loss"]), float.fromhex(our["loss"]), bound_here):
                our["loss"] = their["loss"]
            for field in ("eval_correct", "parameters_sha256", "sample_sha256"):
                their.pop(field, None), our.pop(field, None)
        if their != our:
            return f"{name_of(key)}: {difference_of_lines(their, our)}"
    return None


def is_near(their, our, bound):
    return abs(their - our) <= bound * abs(their) or (not math.isfinite(their) and not math.isfinite(our))


def keyed(lines):
    found = {}
    for line in lines:
        # An epoch's evaluation comes after its steps, and the parameters come last.
        last = float("inf")
        key = (line.get("epoch", last), line.get("step", last), line["rank"])
        if key in found:
            raise ValueError(f"twice in a trace: {name_of(key)}")
        found[key] = line | ({"loss": number(line["loss"])} if "loss" in line else {})
    return found


def without_hashes(lines):
    return {key: {field: value for field, value in line.items() if field != "parameters_sha256"} for key, line in lines.items()}


def name_of(key):
    epoch, step, rank = key
    if epoch == float("inf"):
        return f"rank {rank}, at the end"
    return f"rank {rank}, epoch {epoch}, " + ("evaluation" if step == float("inf") else f"step {step}")


def difference_of_lines(left, right):
    if left is None or right is None:
        return "only Accelerate has this line" if right is None else "only accel has this line"
    for field in sorted(left.keys() | right.keys()):
        if left.get(field) != right.get(field):
            return f"{field} is {left.get(field)} and {right.get(field)}"
    raise AssertionError("called on equal lines")


def number(value):
    """Floats are sent as hexadecimal numbers, which may be spelled in several ways."""
    return float.fromhex(value).hex() if isinstance(value, str) else value


# --- plans -----------------------------------------------------------------------------------------------------------


def difference_of_plans(request, theirs, ours):
    for answer, name in ((theirs, "Accelerate"), (ours, "accel")):
        if "failure" in answer:
            return f"no answer of {name}: {answer['failure']}"
    if theirs.get("error") != ours.get("error"):
        return f"error is {theirs.get('error')} and {ours.get('error')} ({ours.get('message')})"
    if "error" in theirs:
        return None
    if len(theirs["epochs"]) != len(ours.get("epochs", [])):
        return f"{len(theirs['epochs'])} and {len(ours.get('epochs', []))} epochs"
    for epoch, (left, right) in enumerate(zip(theirs["epochs"], ours["epochs"])):
        for field, value in (left | known_fields(request, epoch, left)).items():
            if value != NOT_COMPARED and value != right.get(field):
                return f"epoch {epoch}: {field} is {value} and {right.get(field)}"
    return None


def known_fields(request, epoch, answer):
    """Accelerate does not report what is `duplicated` and `dropped`. If nothing was skipped, it follows from what each rank read."""
    if answer["ranks"] == NOT_COMPARED or (epoch == 0 and request["skip_batches"] > 0):
        return {}
    seen, duplicated = set(), []
    for step in range(max(map(len, answer["ranks"]))):
        for batches in answer["ranks"]:
            for sample in batches[step] if step < len(batches) else []:
                if sample in seen:
                    duplicated.append(sample)
                seen.add(sample)
    return {"duplicated": duplicated, "dropped": [sample for sample in range(request["length"]) if sample not in seen]}


# --- random numbers --------------------------------------------------------------------------------------------------


def difference_of_numbers(theirs, ours):
    """Both: per rank, a mapping from names to numbers."""
    for rank, (left, right) in enumerate(zip(theirs, ours, strict=True)):
        if left.keys() != right.keys():
            return f"rank {rank}: only one side has {sorted(left.keys() ^ right.keys())}"
        for name in left:
            if len(left[name]) != len(right[name]):
                return f"rank {rank}, {name}: {len(left[name])} and {len(right[name])} numbers"
            for index, (a, b) in enumerate(zip(left[name], right[name])):
                if number(a) != number(b):
                    return f"rank {rank}, {name}: number {index} is {a} and {b}"
    return None


# --- schedules -------------------------------------------------------------------------------------------------------

REFUSALS = ("TypeError", "ValueError")  # any other error of Python is a fault of the script


def difference_of_schedules(their, ours):
    """`ours`: "straight", and "resumed" from Python's state if it has one. Errors agree if they come in the same step: what they say
    differs on purpose."""
    if "failure" in ours:
        return ours["failure"]
    if their.get("error") not in (None, *REFUSALS):
        return f"{their}, expected one of {REFUSALS} or no error"
    their = their | ({"error": "ArgumentError"} if "error" in their else {})
    wanted = {"straight": their} | ({"resumed": their} if "state" in their else {})
    return None if ours == wanted else f"{wanted} and {ours}"


# --- trainings under options of DDP ----------------------------------------------------------------------------------


def difference_of_trainings(theirs, ours):
    """Both: per rank, {"steps": [[loss, hash of the state], ...]}."""
    for rank, (left, right) in enumerate(zip(theirs, ours, strict=True)):
        if len(left["steps"]) != len(right["steps"]):
            return f"rank {rank}: {len(left['steps'])} and {len(right['steps'])} steps"
        for step, (a, b) in enumerate(zip(left["steps"], right["steps"], strict=True)):
            for what, of_left, of_right in (("loss", number(a[0]), number(b[0])), ("state", a[1], b[1])):
                if of_left != of_right:
                    return f"rank {rank}, step {step}: {what} is {of_left} and {of_right}"
    return None
