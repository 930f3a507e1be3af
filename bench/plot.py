#!/usr/bin/env python3
"""Draws growth curves from a record of fwdmeta_bench: GPU time per step against slots and against tokens, as SVG.

    bench/plot.py RECORD.json [OUTPUT_FOLDER]      writes growth_slots.svg and growth_tokens.svg
"""
import json
import math
import os
import re
import statistics
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 50, 55
SERIES = [  # variant, legend, colour, dashes
    ("op_by_op", "op by op", "#c0392b", ""),
    ("fwdmeta", "libfwdmeta", "#1f5fa8", ""),
    ("memset", "memset of the bytes written", "#777777", "6 3"),
    ("empty", "empty kernel", "#777777", "2 3"),
]
CURVES = [  # file, title, cases, the counter along x
    ("growth_slots.svg", "Decode: one token per slot", r"decode_\d+", "max_batch_size", "slots"),
    ("growth_tokens.svg", "One prompt", r"prefill_1x.*", "max_num_tokens", "tokens of the step"),
]


def read_record(path):
    """{(variant, case): (counters, median microseconds)} of the graph measure."""
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    runs = {}
    for run in record["benchmarks"]:
        if run.get("run_type") != "iteration" or run.get("error_occurred"):
            continue
        parts = run["name"].split("/")
        if len(parts) == 3 and parts[1] == "graph":
            runs.setdefault((parts[0], parts[2]), []).append(run)
    medians = {key: (same[0], statistics.median(r["real_time"] for r in same)) for key, same in runs.items()}
    return record["context"], medians


class Axis:
    """A logarithmic axis over whole powers of `base`."""

    def __init__(self, values, begin, end, base):
        self.low = math.floor(math.log(min(values), base) + 1e-9)
        self.high = max(math.ceil(math.log(max(values), base) - 1e-9), self.low + 1)
        self.begin, self.end, self.base = begin, end, base

    def at(self, value):
        share = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self):
        return [self.base**i for i in range(self.low, self.high + 1)]


def number(value):
    if value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} M"
    if value >= 1024 and value % 1024 == 0:
        return f"{value // 1024} K"
    return f"{value:g}"


def draw(title, x_label, series, context):
    """`series`: (legend, colour, dashes, [(x, microseconds)])."""
    points = [point for *_, line in series for point in line]
    x_axis = Axis([x for x, _ in points], LEFT, WIDTH - RIGHT, 4)
    y_axis = Axis([y for _, y in points], HEIGHT - BOTTOM, TOP, 10)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}: GPU time of a step\'s metadata, replayed graph</text>',
        f'<text x="{LEFT}" y="37" fill="#555555">{escape(context.get("gpu", "GPU not stated"))}, '
        f'commit {escape(context.get("fwdmeta_commit", "")[:12] or "not stated")}</text>',
    ]
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(tick)} µs</text>')
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number(tick)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    for row, (legend, colour, dashes, line) in enumerate(series):
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not dashes:
            out += [
                f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="3" fill="{colour}">'
                f"<title>{x}: {y:.2f} µs</title></circle>"
                for x, y in line
            ]
        y = TOP + 14 + 32 * row
        out.append(
            f'<line x1="{WIDTH - RIGHT + 12}" x2="{WIDTH - RIGHT + 38}" y1="{y}" y2="{y}" stroke="{colour}" '
            f'stroke-width="2"{dash}/>'
        )
        first, _, rest = legend.partition(" of ")
        out.append(f'<text x="{WIDTH - RIGHT + 44}" y="{y + 4}">{escape(first)}</text>')
        if rest:
            out.append(f'<text x="{WIDTH - RIGHT + 44}" y="{y + 18}">of {escape(rest)}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def main(arguments):
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    context, medians = read_record(arguments[0])
    folder = arguments[1] if len(arguments) == 2 else "."
    os.makedirs(folder, exist_ok=True)
    for name, title, cases, counter, x_label in CURVES:
        series = []
        for variant, legend, colour, dashes in SERIES:
            line = sorted(
                (int(run[counter]), time)
                for (of, case), (run, time) in medians.items()
                if of == variant and re.fullmatch(cases, case)
            )
            if line:
                series.append((legend, colour, dashes, line))
        if not series:
            print(f"plot.py: the record has no graph figures for {name}", file=sys.stderr)
            continue
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(draw(title, x_label, series, context))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
