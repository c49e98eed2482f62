"""Writes reports/predicted_runs.md and its figure from what `sim-run predict` prints.

    python3 -B reports/predictions/write_report.py build/release/bin/sim-run

The published runs are in configs/sim/published_runs.yaml. A test runs this with --check, so that the page has today's numbers."""
import argparse
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = ROOT / "configs/sim/published_runs.yaml"
PAGE, FIGURE = ROOT / "reports/predicted_runs.md", ROOT / "reports/figures/predicted_runs.svg"

INTRODUCTION = """# Predicted and published training steps

`sim-run predict configs/sim/published_runs.yaml` beside what the authors of {count} training runs measured. The inputs and the sources are in
[published_runs.yaml](../configs/sim/published_runs.yaml), the constants and their sources in [hardware.yaml](../configs/sim/hardware.yaml);
the model is described in [sim/predict](../sim/predict/README.md), and its use in the [guide](../reference/guide/predictions.md).
`reports/predictions/write_report.py` writes this page.

![Predicted over published seconds per step, of {count} runs](figures/predicted_runs.svg)

{summary}

Rows with * were fitted: {fitted} of {count}. Nothing is fitted per run.

| run | GPUs | published s | predicted s | error | predicted GB per GPU | largest parts |
|---|---|---|---|---|---|---|
{rows}

## By kind of sharding

| kind | runs | mean error | mean absolute error |
|---|---|---|---|
{kinds}

## Fitted constants

| constant | value | fitted to |
|---|---|---|
| share of the peak in large products, A100 | {matmul_ampere} | sc21-t1-18B, seqsel-175B-selective, mpt-13b-2048-8-a10080gb-mbs2 |
| the same, H100 | {matmul_hopper} | titan-8b-8-compile, dgxc-nemotron-15b-bf16-64 |
| the same in fp8, H100 | {matmul_fp8_hopper} | mlperf-v3.1-eos_n64_ngc23.09_nemo |
| the same in fp8, GB200 | {matmul_fp8_blackwell} | Llama 3 8B on 8 GB200, a run of Megatron-Bridge's performance summary that is not in the table |
| visible part of adding gradients in float32 | {weight_gradient_update} | seqsel-175B-selective, mlperf-v3.1-eos_n64_ngc23.09_nemo |

The other constants of hardware.yaml are measurements of others, or assumptions that are marked as such. Rates of small tiles and of batched products, and
the bytes of contexts and fragments, stand in the code. The assumptions, and the traits of frameworks in
[framework.cpp](../sim/predict/framework.cpp) (what they overlap and fuse), were chosen while all rows of this page were known, so new runs will be
predicted less well than these.

## What misses

- **mbridge-26.02.01-gptoss-gb200**, {gptoss}: the only run on Blackwell, and a mixture of 128 experts. Most constants of Blackwell are
  scaled from Hopper's. The source states 428 TFLOP/s per GPU, 17 % of the peak, and leaves open which kernel the attention with sinks used, which
  library exchanged the tokens over NVLink, and how balanced the experts were.
- **Memory** was compared with the five rows that state it: {memory}.
"""

MEMORY = {  # published bytes
    "titan-8b-8-compile": 77.0 * 2**30,
    "titan-h200-4nodes": 47.96 * 2**30,
    "bloom-02-28-70x14336x112-tp4pp12dp8-mbs2-gbs2048": 59e9,
    "zb-14.6B-zb-1p-m64": 33e9,
    "zb-6.2B-1f1b-m32": 39e9,
}


def predictions(sim_run):
    done = subprocess.run([sim_run, "predict", "--json", str(RUNS)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def described():
    """What the page needs of the runs, by id. The file has one run per line."""
    runs = {}
    for line in RUNS.read_text().splitlines():
        found = re.match(r'- \{id: "?([^,"]+)"?,', line)
        if not found:
            continue
        value = lambda key, absent: (re.search(rf"\b{key}: ([^,}}]+)", line) or [None, absent])[1]
        runs[found[1]] = {"gpus": int(value("gpus", 0)), "published": float(value("step_seconds", 0)), "fitted": "fitted: true" in line,
                          "zero": int(value("zero", 0)), "pp": int(value("pp", 1)), "tp": int(value("tp", 1)), "ep": int(value("ep", 1))}
    return runs


def kind_of(run):
    if run["ep"] > 1:
        return "experts"
    if run["zero"] == 3:
        return "fully sharded"
    if run["pp"] > 1:
        return "pipelines, with or without tensor parallelism"
    return "tensor parallelism" if run["tp"] > 1 else "sharded optimizer"


def nearest_rank(values, share):
    return sorted(values)[math.ceil(share * len(values)) - 1]


def text_of_errors(name, errors):
    sizes = [abs(error) for error in errors]
    return (f"| {name} | {len(sizes)} | {100 * statistics.median(sizes):.1f} % | {100 * statistics.mean(sizes):.1f} % | "
            f"{100 * nearest_rank(sizes, 0.9):.1f} % | {100 * max(sizes):.1f} % |")


def summary(answers, runs):
    rest = [answer["error"] for answer in answers if not runs[answer["id"]]["fitted"]]
    everything = [answer["error"] for answer in answers]
    return "\n".join(["| runs | number | median error | mean | 90th percentile | worst |", "|---|---|---|---|---|---|",
                      text_of_errors("not fitted", rest), text_of_errors("all", everything)])


def row(answer, run):
    parts = sorted(answer["breakdown"].items(), key=lambda part: -part[1])[:3]
    shares = ", ".join(f"{name.replace('_', ' ')} {100 * seconds / answer['step_seconds']:.0f} %" for name, seconds in parts if seconds > 0)
    mark = " *" if run["fitted"] else ""
    return (f"| {answer['id']}{mark} | {run['gpus']:,} | {run['published']:.4g} | {answer['step_seconds']:.4g} | {100 * answer['error']:+.1f} % | "
            f"{answer['memory_bytes'] / 1e9:.1f} | {shares} |")


def kinds(answers, runs):
    groups = {}
    for answer in answers:
        groups.setdefault(kind_of(runs[answer["id"]]), []).append(answer["error"])
    return "\n".join(f"| {kind} | {len(errors)} | {100 * statistics.mean(errors):+.1f} % | {100 * statistics.mean(map(abs, errors)):.1f} % |"
                     for kind, errors in groups.items())


def fitted_constants():
    text = (ROOT / "configs/sim/hardware.yaml").read_text()
    number = lambda pattern: re.search(pattern + r": *([0-9.]+)", text)[1]
    return {"matmul_ampere": number(r"  matmul: \{ampere"), "matmul_hopper": number(r"  matmul: .*hopper"),
            "matmul_fp8_hopper": number(r"  matmul_fp8: \{hopper"), "matmul_fp8_blackwell": number(r"  matmul_fp8: .*blackwell"),
            "weight_gradient_update": number("  weight_gradient_update")}


def page(answers, runs):
    by_id = {answer["id"]: answer for answer in answers}
    memory = ", ".join(f"{name.split('-mbs')[0]} {100 * (by_id[name]['memory_bytes'] / published - 1):+.0f} %" for name, published in MEMORY.items())
    return INTRODUCTION.format(count=len(answers), summary=summary(answers, runs), fitted=sum(run["fitted"] for run in runs.values()),
                               rows="\n".join(row(answer, runs[answer["id"]]) for answer in answers), kinds=kinds(answers, runs),
                               gptoss=f"{100 * by_id['mbridge-26.02.01-gptoss-gb200']['error']:+.0f} %", memory=memory, **fitted_constants())


def figure(answers, runs):
    """A point per run: published seconds to the right, predicted ones upwards, both by their logarithms; the band is 10 %."""
    width, height, left, bottom, low, high = 640, 480, 70, 60, 1.0, 200.0
    across, up = width - left - 20, height - bottom - 20
    x = lambda seconds: left + across * math.log(seconds / low) / math.log(high / low)
    y = lambda seconds: height - bottom - up * math.log(seconds / low) / math.log(high / low)
    marks = [f'<polygon points="{x(low):.1f},{y(low * 1.1):.1f} {x(high / 1.1):.1f},{y(high):.1f} {x(high):.1f},{y(high):.1f} {x(high):.1f},{y(high / 1.1):.1f} '
             f'{x(low * 1.1):.1f},{y(low):.1f} {x(low):.1f},{y(low):.1f}" fill="#d8e6f3"/>',
             f'<line x1="{x(low):.1f}" y1="{y(low):.1f}" x2="{x(high):.1f}" y2="{y(high):.1f}" stroke="#555"/>']
    for tick in (1, 2, 5, 10, 20, 50, 100, 200):
        marks.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 18}" text-anchor="middle">{tick}</text>')
        marks.append(f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for answer in answers:
        run = runs[answer["id"]]
        colour = "#888" if run["fitted"] else "#b3312c"
        marks.append(f'<circle cx="{x(run["published"]):.1f}" cy="{y(answer["step_seconds"]):.1f}" r="5" fill="{colour}" fill-opacity="0.85">'
                     f'<title>{answer["id"]}: {100 * answer["error"]:+.1f} %</title></circle>')
    marks.append(f'<text x="{left + across / 2:.0f}" y="{height - 12}" text-anchor="middle">published seconds per step</text>')
    marks.append(f'<text transform="translate(18,{20 + up / 2:.0f}) rotate(-90)" text-anchor="middle">predicted seconds per step</text>')
    marks.append(f'<text x="{left + 12}" y="36">red: not fitted; grey: fitted; band: 10 %</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(marks) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sim_run")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page or the figure differ")
    arguments = parser.parse_args()
    answers, runs = predictions(arguments.sim_run), described()
    outdated = []
    for path, text in ((PAGE, page(answers, runs)), (FIGURE, figure(answers, runs))):
        if arguments.check:
            outdated += [] if path.exists() and path.read_text() == text else [str(path.relative_to(ROOT))]
        else:
            path.write_text(text)
    if outdated:
        sys.exit(f"outdated: {', '.join(outdated)}; run reports/predictions/write_report.py")


if __name__ == "__main__":
    main()
