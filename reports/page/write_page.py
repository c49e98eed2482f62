"""Writes the page of `./dev report` from what tests, mutants and benchmarks left."""
import argparse
import os
import pathlib
import sys

import jinja2

import results
import sections

HERE = pathlib.Path(__file__).resolve().parent
TITLE = "accel: results of tests, mutants and benchmarks"


def page_of(shown, title=TITLE):
    """The page as HTML, without scripts or external resources. Equal results give equal bytes."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)  # fmt: skip
    return environment.get_template("page.html.j2").render(
        title=title, verdict=sections.verdict(shown), facts=shown.facts, figures=sections.figures(shown),
        sections=sections.sections_of(shown))  # fmt: skip


def folder(text):
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} is not a folder; expected one that exists")
    return pathlib.Path(text)


def file_to_write(text):
    parent = os.path.dirname(text) or "."
    if not os.path.isdir(parent):
        raise argparse.ArgumentTypeError(f"{parent} is not a folder; create it first")
    if not os.access(parent, os.W_OK) or os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; expected a file in a folder that can be written to")
    return pathlib.Path(text)


def parse(words):
    parser = argparse.ArgumentParser(prog="./dev report", description=__doc__)
    parser.add_argument("--source", type=folder, default=HERE.parents[1], help="the repository")
    parser.add_argument("--artifacts", type=folder, required=True, help="the folder that ./dev test wrote")
    parser.add_argument("--history", type=folder, help="files of earlier benchmarks, named COMMIT-NAME_bench.json")
    parser.add_argument("--commit", default="unknown", help="the commit to name on the page")
    parser.add_argument("--out", type=file_to_write, required=True, help="the page")
    return parser.parse_args(words)


def main(words):
    options = parse(words)
    try:
        shown = results.read(options.source, options.artifacts, options.history)
    except results.ResultsError as error:
        print(f"./dev report: {error}", file=sys.stderr)
        return 2
    of_tests = [("tests", shown.tests.command or "not run"), ("commit of the tests", shown.tests.commit),
                ("date of the tests", shown.tests.date)]  # fmt: skip
    of_page = [("command of the page", "./dev report"), ("commit of the page", options.commit)]
    shown.facts = [fact for fact in of_page + of_tests + shown.facts if fact[1]]
    options.out.write_text(page_of(shown), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
