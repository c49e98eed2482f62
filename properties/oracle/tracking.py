"""Compares event files with Accelerate's: python properties/oracle/tracking.py --bin build/release/bin [--runs 20] [--seed 0]

Random runs are logged by Accelerate's TensorBoardTracker and by ours; TensorBoard's own reader reads both. Every event must
be the same byte for byte, except for its time unless log has the option walltime, the order of names (ours is alphabetical, and so are the names given to
Accelerate) and the compression of a PNG, whose pixels must be the same. hparams.yml must load as the configuration.
"""
import argparse
import io
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import torch
import yaml
from accelerate import Accelerator
from accelerate.tracking import TensorBoardTracker
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

WORDS = ["loss", "acc/top 1", "größe", "true", "1e3", "a: b", "", "null", "x" * 200, "lr-0", "'q'", '"d"', "~", "# c"]
EARLY = 1e6  # seconds since 1970; only an event with the option walltime is earlier


def tensor_json(tensor):
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "hex": tensor.numpy().tobytes().hex()}


def random_number(rng):
    bits = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))[0]
    return rng.choice([rng.randrange(-(2**53), 2**53), rng.random(), 0, -0.0, 1e-300, 1e300 if rng.random() < 0.5 else 3.0, bits if abs(bits) < 1e38 else 2.5])


def random_scalar(rng):
    return rng.choice([random_number(rng), rng.choice([True, False]), rng.choice(WORDS)])


def names(rng, least=0):
    return sorted(rng.sample([word for word in WORDS if word], rng.randrange(least, 5)), key=lambda name: name.encode())


def random_values(rng):
    # The folder of a dict is named after both names; the second may not contain a slash.
    part = lambda: {name: random_number(rng) for name in names(rng, 1) if "/" not in name and len(name) < 100}
    return {name: part() if rng.random() < 0.2 and len(name) < 100 else random_scalar(rng) for name in names(rng)}


def random_request(rng):
    calls = []
    for _ in range(rng.randrange(1, 8)):
        step = rng.choice([None, 0, 1, rng.randrange(2**40), -3])
        if rng.random() < 0.25:
            shape = (rng.randrange(1, 11), rng.choice([1, 3]), rng.randrange(1, 9), rng.randrange(1, 9))
            images = torch.randint(0, 256, shape, dtype=torch.uint8) if rng.random() < 0.5 else torch.rand(shape) * 1.2 - 0.1
            calls.append({"step": step, "images": {"image": images}})
        else:
            log_kwargs = {} if rng.random() < 0.7 else {"walltime": rng.random() * EARLY}
            calls.append({"step": step, "values": random_values(rng), "log_kwargs": log_kwargs})
    config = {name: rng.choice([random_scalar(rng), None]) for name in names(rng)}
    kwargs = {} if rng.random() < 0.7 else {"purge_step": rng.randrange(1, 100), "filename_suffix": ".again"}
    return {"project": rng.choice(["run", "a/b"]), "config": config, "kwargs": kwargs, "calls": calls}


def log_by_accelerate(request, folder):
    tracker = TensorBoardTracker(request["project"], folder, **request["kwargs"])
    tracker.start()
    tracker.store_init_configuration(request["config"])
    for call in request["calls"]:
        if "values" in call:
            tracker.log(call["values"], step=call["step"], **call["log_kwargs"])
        else:
            tracker.log_images({name: images.numpy() for name, images in call["images"].items()}, step=call["step"])
    tracker.finish()


def log_by_accel(request, folder, program):
    calls = [call if "values" in call else {**call, "images": {name: tensor_json(images) for name, images in call["images"].items()}} for call in request["calls"]]
    file = pathlib.Path(folder) / "request.json"
    file.write_text(json.dumps({**request, "calls": calls, "logging_dir": folder}) + "\n")
    answers = file.with_name("answers.jsonl")
    subprocess.run([program, "tracked-runs", str(file), str(answers)], check=True)
    assert json.loads(answers.read_text()) == {}, answers.read_text()


def comparable(event):
    """An event without its time (unless the call chose it), with a picture's pixels instead of its compressed form, and with sorted maps."""
    if event.wall_time > EARLY:
        event.wall_time = 0
    for value in event.summary.value:
        data = value.metadata.plugin_data
        if data.plugin_name == "hparams":
            data.content = HParamsPluginData.FromString(data.content).SerializeToString(deterministic=True)
        if value.HasField("image"):
            value.image.encoded_image_string = Image.open(io.BytesIO(value.image.encoded_image_string)).convert("RGB").tobytes()
    return event.SerializeToString(deterministic=True)


def read_run(folder):
    """The events by folder, where a folder named after a time is called "time"; and the content of hparams.yml."""
    events, hparams = {}, []
    for file in sorted(pathlib.Path(folder).rglob("*")):
        if file.name.startswith("events.out.tfevents."):
            where = str(file.parent.relative_to(folder))
            last = file.parent.name
            where = where.removesuffix(last) + "time" if last.replace(".", "").isdigit() else where
            events.setdefault((where, file.name.endswith(".again")), []).append([comparable(event) for event in LegacyEventFileLoader(str(file)).Load()])
        elif file.name == "hparams.yml":
            hparams.append(yaml.safe_load(file.read_text()))
    return events, hparams


def difference(request, program):
    with tempfile.TemporaryDirectory() as theirs, tempfile.TemporaryDirectory() as ours:
        log_by_accelerate(request, theirs)
        log_by_accel(request, ours, program)
        (their_events, _), (our_events, hparams) = read_run(theirs), read_run(ours)
        if their_events.keys() != our_events.keys():
            return f"files in {sorted(our_events)}, in Accelerate {sorted(their_events)}"
        for where, events in their_events.items():
            if events != our_events[where]:
                return f"events in {where}:\n{our_events[where]}\nin Accelerate\n{events}"
        if hparams != [request["config"]]:
            return f"hparams.yml loads as {hparams}, expected {request['config']}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    Accelerator(cpu=True)  # trackers read the rank from it
    for run in range(arguments.runs):
        rng = random.Random(f"{arguments.seed} {run}")
        torch.manual_seed(rng.getrandbits(32))
        found = difference(random_request(rng), arguments.bin + "/oracle-answers")
        if found:
            sys.exit(f"tracking: run {run} of seed {arguments.seed}: {found}")
    print(f"tracking: {arguments.runs} runs, event files are the same")


if __name__ == "__main__":
    main()
