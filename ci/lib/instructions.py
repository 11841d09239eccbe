"""Compares gungraun's JSON on stdin with committed counts, or writes them: COUNTS [--update]."""

import json
import sys

# A compiler's release moves a few; a step that was added to a fast path costs more.
TOLERANCE = 0.10
MIN_DIFFERENCE = 3


def parse_counts(text):
    """Instructions of each benchmark, by `function.case`."""
    found = {}
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        start = text.find("{", at)
        if start < 0:
            break
        summary, at = decoder.raw_decode(text, start)
        name = summary["function_name"] + "." + summary["id"]
        found[name] = instructions(summary)
    return found


def instructions(summary):
    for profile in summary["profiles"]:
        metrics = profile["data"]["total"]["metrics"]
        if "Ir" in metrics:
            return metrics["Ir"]["values"]["new"]
    raise SystemExit("ci/instructions: no count of instructions in gungraun's JSON")


def main():
    path, update = sys.argv[1], "--update" in sys.argv[2:]
    found = parse_counts(sys.stdin.read())
    if not found:
        raise SystemExit("ci/instructions: nothing was counted")
    if update:
        with open(path, "w") as file:
            json.dump(found, file, indent=2)
            file.write("\n")
    with open(path) as file:
        committed = json.load(file)
    bad = []
    print("| fast path | instructions | committed |")
    print("|---|---|---|")
    for name in sorted(found.keys() | committed.keys()):
        now, then = found.get(name), committed.get(name)
        print(f"| {name} | {now} | {then} |")
        if now is None or then is None:
            bad.append(f"{name} is not on both sides")
        elif now > then + max(MIN_DIFFERENCE, TOLERANCE * then):
            bad.append(f"{name} takes {now} instructions, {then} are committed")
        elif now < then - max(MIN_DIFFERENCE, TOLERANCE * then):
            print(f"{name} is shorter now: record it with ci/instructions --update")
    if bad:
        raise SystemExit("ci/instructions: " + "; ".join(bad))


main()
