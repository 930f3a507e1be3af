#!/usr/bin/env python3
"""Writes trace.csv, a small made-up request trace for `fwdmeta replay`.

The parameters, with the defaults that trace.csv was made with, are the command's options:

  --requests 200       number of requests
  --seed 2024          seed of Python's random.Random
  --rate 4.0           requests per second; the gaps between them are exponential
  --prompt-median 300  median of the log-normal prompt length, in tokens
  --prompt-sigma 1.2   standard deviation of its logarithm
  --output-median 60   median of the log-normal output length, in tokens
  --output-sigma 0.8   standard deviation of its logarithm
  --max-prompt 6000    longer prompts are cut to this
  --max-output 1000    longer outputs are cut to this

One request in 20 has a prompt of one token, the shortest there is. The output goes to standard output:

  python3 make_trace.py > trace.csv
"""

import argparse
import datetime
import math
import random
import sys

START = datetime.datetime(2024, 1, 1)


def log_normal(rng, median, sigma, longest):
    # Box-Muller from uniform numbers, whose sequence Python promises to keep; its own distributions may change.
    normal = math.sqrt(-2 * math.log(1 - rng.random())) * math.cos(2 * math.pi * rng.random())
    return max(1, min(longest, round(median * math.exp(sigma * normal))))


def main():
    parser = argparse.ArgumentParser(description="Makes a request trace; see the head of this file.")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--prompt-median", type=float, default=300)
    parser.add_argument("--prompt-sigma", type=float, default=1.2)
    parser.add_argument("--output-median", type=float, default=60)
    parser.add_argument("--output-sigma", type=float, default=0.8)
    parser.add_argument("--max-prompt", type=int, default=6000)
    parser.add_argument("--max-output", type=int, default=1000)
    args = parser.parse_args()

    rng = random.Random(args.seed)
    microseconds = 0
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for _ in range(args.requests):
        microseconds += round(-math.log(1 - rng.random()) / args.rate * 1e6)
        time = START + datetime.timedelta(microseconds=microseconds)
        prompt = log_normal(rng, args.prompt_median, args.prompt_sigma, args.max_prompt)
        if rng.random() < 0.05:
            prompt = 1
        output = log_normal(rng, args.output_median, args.output_sigma, args.max_output)
        lines.append(f"{time:%Y-%m-%d %H:%M:%S.%f},{prompt},{output}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
