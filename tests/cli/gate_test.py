#!/usr/bin/env python3
"""The gates as a user and `tessera lab` meet them, on a toy model.  gate_test.py TESSERA FAULTY_LIBRARY"""

import hashlib
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

PASS, FAIL, INCONCLUSIVE, ERROR = 0, 1, 2, 3
VERDICTS = {PASS: "pass", FAIL: "fail", INCONCLUSIVE: "inconclusive", ERROR: "error"}


class Gates(unittest.TestCase):
    tessera = ""
    faulty = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = cls.path("toy.gguf")
        toy_gguf.write_toy(toy_gguf.parser().parse_args(["--arch", "llama", "--type", "q8_0", "--out", cls.model]))
        cls.record = cls.path("record.json")
        cls.wrote = cls.call("tolerance", "-m", cls.model, "--record", cls.record, "--write", "-t", "1")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    @classmethod
    def call(cls, gate, *arguments, fault="none"):
        environment = dict(os.environ, TESSERA_TEST_FAULT=fault)
        return subprocess.run(
            [cls.tessera, "gate", gate, *arguments], capture_output=True, text=True, env=environment, timeout=300, check=False
        )

    def gate(self, wanted, gate, *arguments, **more):
        """Runs with --json; checks the exit code and the keys that every report has."""
        done = self.call(gate, *arguments, "--json", **more)
        self.assertEqual(done.returncode, wanted, done.stdout + done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["gate"], gate)
        self.assertEqual(report["verdict"], VERDICTS[wanted])
        self.assertNotIn("\n", report["summary"])
        self.assertTrue(all(isinstance(value, (int, float)) for value in report["metrics"].values()))
        return report

    def model_gate(self, wanted, gate, *arguments, **more):
        return self.gate(wanted, gate, "-m", self.model, "-t", "1", "--record", self.record, *arguments, **more)

    def test_a_record_is_written_and_passes(self):
        self.assertEqual(self.wrote.returncode, PASS, self.wrote.stderr)
        self.assertEqual(sorted(os.listdir(self.folder.name))[:2], ["record.json", "record.json.rows"])
        identity = self.model_gate(PASS, "identity")
        self.assertEqual(identity["metrics"]["prompts_equal"], 8)
        self.assertEqual(identity["metrics"]["tokens_equal"], 256)
        tolerance = self.model_gate(PASS, "tolerance")
        self.assertEqual(tolerance["metrics"]["rows_equal"], tolerance["metrics"]["rows"])
        with open(self.record, encoding="utf-8") as file:
            text = file.read()
        record = json.loads(text)
        digest = record.pop("record_sha256")
        compact = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.assertEqual(hashlib.sha256(compact.encode()).hexdigest(), digest)

    def test_options_without_effect_are_refused(self):
        """Else a gate would pass on something else than was meant."""
        for arguments in (("--record", self.record), ("--write", "--b", "threads=1"), ("--with", "threads=1"), (),
                          ("-m", "", "--record", self.record), ("--a", ""), ("--grid", "", "--b", "threads=1")):
            for gate in ("identity", "tolerance"):
                self.gate(ERROR, gate, *arguments)
        self.gate(ERROR, "identity", "-m", self.model, "--record", self.record, "--a", "threads=1")
        self.gate(ERROR, "perf", "--a", "threads=1", "--prefill", "8")
        self.gate(ERROR, "invariance", "--tokens", "64")
        for gate in ("identity", "invariance", "tolerance", "perf"):
            for option in (("--backend", "cpu"), ("--context", "64"), ("--kv-type", "f16"), ("-t", "2")):
                summary = self.gate(ERROR, gate, "--a", "threads=1", *option)["summary"]
                self.assertIn("without a model; allowed with -m MODEL", summary)
            quiet = ("--allow-busy",) if gate == "perf" else ()
            for side in ("--a",) if gate == "invariance" else ("--a", "--b"):
                summary = self.gate(ERROR, gate, side, "threads=1,gemm=cpu_gemm_portable", *quiet)["summary"]
                self.assertTrue(summary.startswith(f"{side}: got gemm=cpu_gemm_portable without a model;"), summary)
        for gate in ("identity", "tolerance"):
            self.assertIn("--with: got an empty text", self.model_gate(ERROR, gate, "--with", "")["summary"])
            self.assertIn("--prompts: got it without --write", self.model_gate(ERROR, gate, "--prompts", self.record)["summary"])
            empty = self.gate(ERROR, gate, "-m", self.model, "--record", self.path("no.json"), "--write", "--prompts", "")
            self.assertIn("--prompts: got an empty text", empty["summary"])
        self.assertIn("--text-file", self.gate(ERROR, "invariance", "-m", self.model, "--text-file", "")["summary"])

    def test_usage_errors_are_one_object_too(self):
        """A program that reads the verdict must not have to tell an unknown option from a crash."""
        for gate in ("identity", "invariance", "tolerance", "perf"):
            self.assertIn("--foo", self.gate(ERROR, gate, "--foo")["summary"])
            self.gate(ERROR, gate, "-t")
        self.assertIn("--blocks", self.gate(ERROR, "perf", "--blocks", "0")["summary"])
        self.gate(ERROR, "speed")
        self.assertEqual(self.call("perf", "--blocks", "0").stdout, "")
        self.assertNotIn("verdict", self.call("perf", "--json", "--help").stdout)

    def test_text_ends_with_the_verdict(self):
        for gate in ("identity", "tolerance"):
            done = self.call(gate, "-m", self.model, "-t", "1", "--record", self.record)
            self.assertEqual(done.returncode, PASS, done.stderr)
            self.assertRegex(done.stdout.splitlines()[-1], "^PASS: ")
        self.assertIn("PASS: wrote", self.wrote.stdout)

    def test_a_harmless_order_fails_identity_and_passes_tolerance(self):
        library = ("--with", f"library={self.faulty}")
        self.model_gate(FAIL, "identity", *library, fault="reverse")
        self.model_gate(PASS, "tolerance", *library, fault="reverse")

    def test_a_fault_fails_tolerance_and_its_layer_is_named(self):
        report = self.model_gate(FAIL, "tolerance", "--with", f"library={self.faulty}", fault="bf16")
        self.assertEqual(report["first_drifting_layer"]["layer"], 0)
        self.assertIn("fail", [check["verdict"] for check in report["checks"]])
        self.assertIn("flips", report)
        self.assertGreater(report["metrics"]["knife_edge"], 0)

    def test_records_that_cannot_be_used(self):
        self.assertIn("/no/such", self.gate(ERROR, "identity", "-m", self.model, "--record", "/no/such")["summary"])
        self.gate(ERROR, "identity", "-m", self.model)
        self.gate(ERROR, "tolerance", "-m", "/no/such.gguf", "--record", self.record)
        cut = self.path("cut.json")
        with open(self.record, encoding="utf-8") as file:
            text = file.read()
        for change in (text[:-20], text.replace('"pairwise"', '"Pairwise"'), text.replace("dialogue", "Dialogue"), "", "[]"):
            with open(cut, "w", encoding="utf-8") as file:
                file.write(change)
            self.gate(ERROR, "identity", "-m", self.model, "--record", cut)
        self.gate(ERROR, "tolerance", "-m", self.model, "--record", self.record, "--kv-type", "f16")
        only_identity = self.path("identity.json")
        self.gate(PASS, "identity", "-m", self.model, "--record", only_identity, "--write")
        self.assertIn("--write", self.gate(ERROR, "tolerance", "-m", self.model, "--record", only_identity)["summary"])
        os.remove(only_identity)

    def test_prompts_from_a_file(self):
        prompts = self.path("prompts.txt")
        record = self.path("own.json")
        with open(prompts, "w", encoding="utf-8") as file:
            json.dump(["the"] * 7 + [{"name": "last", "text": "the inner band"}], file)
        self.gate(PASS, "identity", "-m", self.model, "--record", record, "--write", "--prompts", prompts)
        self.assertEqual(self.gate(PASS, "identity", "-m", self.model, "--record", record)["prompts"][7]["name"], "last")
        with open(prompts, "w", encoding="utf-8") as file:
            json.dump(["the"] * 7, file)
        self.gate(ERROR, "identity", "-m", self.model, "--record", record, "--write", "--prompts", prompts)
        os.remove(record)

    def grid(self, *problems):
        path = self.path("grid.txt")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(problems, file)
        return path

    def test_kernels_are_compared_without_a_model(self):
        grid = self.grid({"name": "sinks", "seqlen_q": 5, "seqlen_k": 99, "sinks": True}, {"seqlen_k": 70, "window_left": 20})
        library = f"library={self.faulty}"
        self.gate(PASS, "identity", "--a", "threads=2", "--b", "kernel=cpu_fmha_portable", "--grid", grid)
        self.gate(PASS, "invariance", "--grid", grid)
        self.gate(PASS, "tolerance", "--b", library, "--grid", grid)
        self.gate(FAIL, "identity", "--b", library, "--grid", grid)
        report = self.gate(FAIL, "tolerance", "--b", library, "--grid", grid, fault="sink")
        self.assertEqual([case["verdict"] for case in report["cases"]], ["fail", "pass"])
        self.gate(FAIL, "invariance", "--a", library, "--grid", grid, fault="atomic")
        text = self.call("identity", "--b", library, "--grid", grid)
        self.assertRegex(text.stdout.splitlines()[-1], "^FAIL: ")

    def test_configurations_and_grids_that_are_none(self):
        for bad in ("nonsense", "kernel=", "speed=1", "threads=0", "threads=2,threads=3", "device=tpu", "library=/no/such.so"):
            self.gate(ERROR, "identity", "--b", bad)
        self.gate(ERROR, "identity", "--b", f"library={self.model}")
        good = {"name": "good"}
        for problem, got, allowed in (
            ({"seqlen_k": 0}, '"seqlen_k": got 0;', "1..1048576"),
            ({"seqlenk": 1}, '"seqlenk": got 1, a key that no problem has;', "seqlen_k"),
            ({"name": "eighth", "dtype": "f8"}, '("eighth"): "dtype": got "f8";', '"bf16"'),
            ({"heads_q": 3, "heads_kv": 2}, '"heads_kv": got 2;', "divisors of heads_q, which is 3"),
            ({"heads_q": 3}, '"heads_kv": got nothing;', "divisors of heads_q, which is 3"),
            ({"seqlen_k": "x"}, '"seqlen_k": got "x";', "whole numbers"),
            ({"batch": 1.5}, '"batch": got 1.5;', "whole numbers"),
            ({"head_dim": 2**40}, '"head_dim": got 1099511627776;', "1..1024"),
            ({"seed": -1}, '"seed": got -1;', "from 0"),
            ({"seed": 2**64 - 1}, '"seed": got 18446744073709551615;', "from 0"),
            ({"causal": 1}, '"causal": got 1;', "true, false"),
            ({"softcap": 1e300}, '"softcap": got 1e+300;', "fp32"),
            ({"softcap": 1e-300}, '"softcap": got 1e-300;', "fp32 tells from 0"),
            ({"softcap": -8}, '"softcap": got -8;', "positive"),
            ({"heads_kv": 0}, '"heads_kv": got 0;', "1..1024"),
            ({"name": "good"}, '"name": got "good", which an earlier problem has;', "of its own"),
            ({"name": "a\nb"}, '"name": got "a\\nb";', "control characters"),
            ({"name": "a\x1b[2Jb"}, '"name": got ', "control characters"),
            ({"name": "a\x9bb"}, '"name": got ', "control characters"),
            ({"batch": 1024, "seqlen_k": 4096, "heads_q": 1024, "heads_kv": 1024}, '"seqlen_k": got 4096;', "bytes of K"),
            ({"batch": 2**20, "page_size": 65536}, '"seqlen_k": got nothing;', "in whole pages"),
            ({"seqlen_q": 2**15, "seqlen_k": 2**15, "heads_q": 1024, "head_dim": 128}, '"seqlen_q": got 32768;', "bytes of Q"),
            ({"seqlen_q": 9, "seqlen_k": 8}, '"seqlen_k": got 8;', "at least seqlen_q, which is 9"),
            ([1], "got [1];", "an object"),
        ):
            grid = self.grid(good, problem)
            summary = self.gate(ERROR, "identity", "--b", "threads=1", "--grid", grid)["summary"]
            self.assertTrue(summary.startswith(f"{grid}: problem 1"), summary)
            self.assertIn(got, summary)
            self.assertIn(allowed, summary)
        self.assertIn("got []; allowed", self.gate(ERROR, "identity", "--b", "threads=1", "--grid", self.grid())["summary"])
        self.gate(INCONCLUSIVE, "identity", "--b", "threads=1", "--grid", self.grid({"head_dim": 1000}))

    def test_perf_says_what_it_measured(self):
        grid = self.grid({"seqlen_q": 8, "seqlen_k": 64})
        done = self.call("perf", "--grid", grid, "--blocks", "8", "--margin", "50", "--allow-busy", "--json")
        report = json.loads(done.stdout)
        self.assertEqual(report["verdict"], VERDICTS[done.returncode])
        self.assertIn(report["verdict"], ("pass", "inconclusive", "fail"))
        self.assertIn("this is noise", report["summary"])
        self.assertEqual(len(report["works"][0]["log_ratios"]), 8)
        self.assertIn("others", report["device"]["before"])
        self.assertLessEqual(report["interval"][0], report["ratio"])
        self.assertLessEqual(report["ratio"], report["interval"][1])
        self.assertEqual(len(report["samples_b"]), 16)
        few = self.gate(INCONCLUSIVE, "perf", "--grid", grid, "--blocks", "3", "--allow-busy")
        self.assertIn("blocks", few["summary"])
        self.gate(INCONCLUSIVE, "perf", "-m", self.model, "--blocks", "2", "--prefill", "8", "--decode", "2", "--allow-busy")
        self.gate(ERROR, "perf", "--grid", self.grid({"head_dim": 1000}), "--allow-busy")

    def test_contract_diff_names_the_rule(self):
        def diff(*arguments):
            done = subprocess.run(
                [self.tessera, "contract", "diff", *arguments], capture_output=True, text=True, timeout=60, check=False
            )
            return done.returncode, done.stdout + done.stderr

        self.assertEqual(diff("tessera-1/cpu-fma32/f32/d64", "tessera-1/cpu-fma32/f32/d64")[0], 0)
        code, text = diff("tessera-1/hopper-k16-f25/f16/d64", "tessera-1/hopper-k16-f25/bf16/d64", "--json")
        self.assertEqual(code, 1)
        self.assertEqual([d["what"] for d in json.loads(text)["differences"]], ["dtype", "bias_log2"])
        with open(self.record, encoding="utf-8") as file:
            identity = json.load(file)["contract_id"]
        self.assertEqual(diff(self.record, identity)[0], 0)
        shown = subprocess.run([self.tessera, "contract", "show", "--json"], capture_output=True, text=True, timeout=60, check=True)
        a, b = self.path("a.txt"), self.path("b.txt")
        for path, content in ((a, shown.stdout), (b, shown.stdout.replace('"2048"', '"1024"'))):
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        code, text = diff(a, b)
        self.assertEqual(code, 1)
        self.assertIn("R8", text)
        self.assertEqual(diff(a, a)[0], 0)
        # A rule that came after the freeze: an older build's list without it promises the same bits, another rule does not.
        constants = json.loads(shown.stdout)
        for c in constants["constants"]:
            if c["name"] == "fp8_rows":
                c["value"] = "something else"
        other = {**constants, "constants": [c for c in constants["constants"] if c["name"] != "fp8_rows"]}
        for content, wanted in ((constants, 1), (other, 0)):
            with open(b, "w", encoding="utf-8") as file:
                json.dump(content, file)
            code, text = diff(a, b)
            self.assertEqual(code, wanted)
            self.assertEqual("R11" in text, wanted == 1)
        for bad in ("nonsense", "tessera-1", "tessera-x/cpu-fma32/f32/d64", "tessera-1/cpu-fma32/f8/d64", self.model):
            self.assertEqual(diff(bad, identity)[0], 3, bad)
        self.assertEqual(diff(a, identity)[0], 3)


if __name__ == "__main__":
    Gates.faulty = sys.argv.pop(2)
    Gates.tessera = sys.argv.pop(1)
    unittest.main()
