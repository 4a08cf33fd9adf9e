"""A gate: is a program faster than another, beyond noise?  perf.py BASE CANDIDATE

Runs both in turn (ABBA), so that a slow minute meets both alike. The ratio of speeds is the median over pairs, its
interval comes from 2000 drawings of the pairs, and the noise floor is what the base shows against itself.
"""

import json
import math
import random
import statistics
import subprocess
import sys
import time

PAIRS = 12
draw = random.Random(1)


def seconds(program):
    start = time.perf_counter()
    subprocess.run([sys.executable, program], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def pairs(a, b):
    first, second = [], []
    for i in range(PAIRS):
        for program, samples in ((a, first), (b, second))[:: 1 if i % 2 == 0 else -1]:
            samples.append(seconds(program))
    return first, second


def interval(first, second):
    logs = [math.log(a / b) for a, b in zip(first, second)]
    medians = sorted(statistics.median(draw.choices(logs, k=len(logs))) for _ in range(2000))
    return medians[50], statistics.median(logs), medians[1949]


base, candidate = sys.argv[1:3]
seconds(base), seconds(candidate)  # warm
noise = max(abs(edge) for edge in interval(*pairs(base, base)))
samples_a, samples_b = pairs(base, candidate)
low, middle, high = interval(samples_a, samples_b)
verdict = "pass" if low > noise else "fail" if high <= noise else "inconclusive"
words = {"pass": "faster beyond noise", "fail": "not faster beyond noise", "inconclusive": "too noisy to tell"}[verdict]
print(json.dumps({"gate": "perf", "verdict": verdict, "summary": f"{words}: speed x {math.exp(middle):.3f} of the base",
                  "metrics": {"pairs": PAIRS}, "ratio": math.exp(middle), "interval": [math.exp(low), math.exp(high)],
                  "noise_floor": math.exp(noise) - 1, "samples_a": samples_a, "samples_b": samples_b, "unit": "seconds"}))
sys.exit(["pass", "fail", "inconclusive"].index(verdict))
