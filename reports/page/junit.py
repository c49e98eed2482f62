"""Reads the JUnit XML that ctest, pytest and properties/oracle/live.py write."""
import dataclasses
import xml.etree.ElementTree as ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclasses.dataclass(frozen=True)
class TestCase:
    name: str
    outcome: str
    output: str = ""
    seconds: float = 0


class JUnitError(Exception):
    """A file that cannot be read; the message names it."""


def read(path):
    """The test cases of a file, in its order."""
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise JUnitError(f"{path}: {error.strerror}") from error
    except (ElementTree.ParseError, ValueError) as error:  # ValueError: an unknown encoding
        raise JUnitError(f"{path}: {error}") from error
    if root.tag not in ("testsuites", "testsuite"):
        raise JUnitError(f"{path}: its root is <{root.tag}>, expected <testsuites> or <testsuite>")
    cases = list(root.iter("testcase"))
    for case in cases:
        if "name" not in case.attrib:
            raise JUnitError(f"{path}: a <testcase> lacks the attribute 'name'")
    return [TestCase(name_of(case), outcome_of(case), case.findtext("system-out") or "", seconds_of(case)) for case in cases]


def name_of(case):
    """ctest repeats the name as classname, pytest writes the module and the class there, and live.py writes none."""
    name, owner = case.get("name"), case.get("classname")
    return name if owner in (None, "", name) else f"{owner}.{name}"


def seconds_of(case):
    """0 where the attribute is missing or no number: seconds decide nothing."""
    try:
        return float(case.get("time", 0))
    except ValueError:
        return 0.0


def outcome_of(case):
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return FAILED
    skipped = case.find("skipped")
    # ctest also calls a test skipped if its program is missing, with another message than that of a real skip.
    if case.get("status") == "notrun" and (skipped is None or not skipped.get("message", "").startswith("SKIP_")):
        return FAILED
    return SKIPPED if skipped is not None or case.get("status") == "disabled" else PASSED
