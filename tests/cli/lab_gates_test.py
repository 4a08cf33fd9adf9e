#!/usr/bin/env python3
"""tessera lab with the gates of tessera gate, on a toy model.  lab_gates_test.py TESSERA FAULTY_LIBRARY"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
try:
    import toy_gguf
except ImportError as error:
    print(f"SKIPPED: {error}; tools/setup test installs what is missing")
    sys.exit(77)


class LabWithGates(unittest.TestCase):
    tessera = ""
    faulty = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        toy_gguf.write_toy(toy_gguf.parser().parse_args(["--arch", "llama", "--type", "q8_0", "--out", os.path.join(self.root, "toy.gguf")]))
        self.call("gate", "tolerance", "-m", "toy.gguf", "--record", "record.json", "--write", "-t", "1")

    def call(self, *arguments, fault="none", codes=(0,)):
        environment = dict(os.environ, TESSERA_TEST_FAULT=fault)
        done = subprocess.run([self.tessera, *arguments], cwd=self.root, env=environment, capture_output=True, text=True, timeout=300, check=False)
        self.assertIn(done.returncode, codes, done.stdout + done.stderr)
        return done.stdout

    def new_lab(self, with_options):
        gate = '"$TESSERA" gate {} -m toy.gguf -t 1 ' + with_options
        record = gate + "--record record.json --json"
        perf = '"$TESSERA" gate perf -m toy.gguf -t 1 --prefill 24 --decode 2 --blocks 8 --allow-busy --json'
        self.call("lab", "init", "--identity", record.format("identity"), "--tolerance", record.format("tolerance"), "--perf", perf,
                  "--reference", "record.json", "--reference", "record.json.rows")
        self.call("lab", "new", "Toy", "--class", "order-changing", "--expect", "0", "--hypothesis", "Gates and lab speak the same words.")

    def attempt(self, codes, **more):
        out = json.loads(self.call("lab", "attempt", "1", "--change", "x", "--json", "-q", codes=codes, **more))["attempts"][-1]
        return out, {gate["gate"]: gate for gate in out["gates"]}

    def test_all_three_gates_give_verdicts_that_the_lab_reads(self):
        self.new_lab("")
        out, gates = self.attempt((0, 1, 2))  # whatever a busy machine makes of the speed
        self.assertEqual(list(gates), ["identity", "tolerance", "perf"], out)
        self.assertEqual([gates["identity"]["verdict"], gates["tolerance"]["verdict"]], ["pass", "pass"])
        self.assertNotEqual(gates["perf"]["verdict"], "error", gates["perf"])
        timing = json.loads(self.call("lab", "index", "--json"))["experiments"][0]
        self.assertLessEqual(timing["interval"][0], timing["ratio"])
        self.assertLessEqual(timing["ratio"], timing["interval"][1])
        page = next(name for name in os.listdir(os.path.join(self.root, "lab")) if name.endswith(".html") and name != "index.html")
        with open(os.path.join(self.root, "lab", page), encoding="utf-8") as file:
            self.assertIn("Samples of base and candidate", file.read())
        self.call("lab", "close", "1", "--reverted", "--because", "x", "--lessons", "x", "--retry", "x")
        self.call("lab", "verify-revert", "1", "-q", codes=(0, 1, 2))

    def test_a_fault_is_stopped_before_it_is_timed(self):
        self.new_lab(f"--with library={self.faulty} ")
        out, gates = self.attempt((1,), fault="bf16")
        self.assertEqual(out["outcome"], "failed")
        self.assertEqual([gates["identity"]["verdict"], gates["tolerance"]["verdict"]], ["fail", "fail"])
        self.assertNotIn("perf", gates)


if __name__ == "__main__":
    LabWithGates.faulty = os.path.abspath(sys.argv.pop(2))
    LabWithGates.tessera = os.path.abspath(sys.argv.pop(1))
    unittest.main()
