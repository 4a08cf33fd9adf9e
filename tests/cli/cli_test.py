#!/usr/bin/env python3
"""The command line as a user meets it, on a toy model: exit codes, sentences, JSON, and bits.  cli_test.py TESSERA"""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
try:
    import toy_gguf
except ImportError as error:
    print(f"SKIPPED: {error}; tools/setup test installs what is missing")
    sys.exit(77)

GOOD, CHECK_FAILED, BAD_INPUT = 0, 1, 3


class CommandLine(unittest.TestCase):
    tessera = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "toy.gguf")
        toy_gguf.write_toy(toy_gguf.parser().parse_args(["--arch", "llama", "--type", "q4_1", "--out", cls.model]))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def call(self, *arguments, stdin="", env=None):
        environment = dict(os.environ, **(env or {}))
        return subprocess.run(
            [self.tessera, *arguments], input=stdin, capture_output=True, text=True, env=environment, timeout=300, check=False
        )

    def good(self, *arguments, **more):
        done = self.call(*arguments, **more)
        self.assertEqual(done.returncode, GOOD, done.stderr)
        return done.stdout

    def run_json(self, *arguments):
        return json.loads(self.good("run", "-m", self.model, "-p", "the inner band", "-n", "12", "--ignore-end", "--json", *arguments))

    def refused(self, mention, *arguments, **more):
        done = self.call(*arguments, **more)
        self.assertEqual(done.returncode, BAD_INPUT, done.stdout + done.stderr)
        self.assertIn(mention, done.stderr + done.stdout)
        self.assertNotIn("terminate called", done.stderr)
        return done

    def test_help_and_version(self):
        self.assertIn("run", self.good("--help"))
        self.assertIn("tessera-1", self.good("--version"))

    def test_run_writes_text_and_a_summary(self):
        done = self.call("run", "-m", self.model, "-p", "the", "-n", "5", "--ignore-end")
        self.assertEqual(done.returncode, GOOD)
        self.assertIn("tok/s", done.stderr)
        self.assertNotIn("tok/s", done.stdout)

    def test_json_has_what_a_script_needs(self):
        out = self.run_json()
        self.assertEqual(len(out["tokens"]), 12)
        self.assertRegex(out["logits_sha256"], "^[0-9a-f]{64}$")
        self.assertIn("tessera-1/cpu-fma32/f32", out["contract_id"])
        for key in ("text", "stop", "prompt_tokens", "prefill_tok_s", "decode_tok_s"):
            self.assertIn(key, out)

    def test_schedules_move_no_bit(self):
        plain = self.run_json()
        for options in (["--chunk", "1"], ["--threads", "1"], ["--threads", "3"], ["--page-size", "1"], ["--page-size", "5"]):
            with self.subTest(options=options):
                other = self.run_json(*options)
                self.assertEqual(other["tokens"], plain["tokens"])
                self.assertEqual(other["logits_sha256"], plain["logits_sha256"])

    def test_another_prompt_and_another_kv_type_have_other_logits(self):
        plain = self.run_json()["logits_sha256"]
        self.assertNotEqual(self.run_json("--kv-type", "f16")["logits_sha256"], plain)
        done = self.good("run", "-m", self.model, "-p", "the inner hand", "-n", "12", "--ignore-end", "--json")
        self.assertNotEqual(json.loads(done)["logits_sha256"], plain)

    def test_a_seed_repeats_a_sample(self):
        sampled = ["--temp", "1.0", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.01"]
        first = self.run_json(*sampled, "--seed", "5")["tokens"]
        self.assertEqual(self.run_json(*sampled, "--seed", "5", "--chunk", "2")["tokens"], first)
        self.assertNotEqual(self.run_json(*sampled, "--seed", "6")["tokens"], first)

    def test_bad_options_are_refused_with_a_sentence(self):
        run = ("run", "-m", self.model)
        self.refused("prompt", *run)
        self.refused("no token", *run, "-p", "")
        self.refused("temperature", *run, "-p", "x", "--temp", "-1")
        self.refused("top_p", *run, "-p", "x", "--top-p", "0")
        self.refused("chunk", *run, "-p", "x", "--chunk", "0")
        self.refused("context", *run, "-p", "x", "--context", "99999999")
        self.refused("page-size", *run, "-p", "x", "--page-size", "0")
        self.refused("cuda", *run, "-p", "x", "--backend", "cuda")
        self.refused("--chat-template", *run, "-p", "x", "--chat")
        self.refused("nonsense", *run, "-p", "x", "--nonsense")

    def test_a_prompt_file_that_cannot_be_one(self):
        for path, mention in ((self.folder.name, "directory"), ("/no/such/text", "/no/such/text")):
            done = self.refused(mention, "run", "-m", self.model, "-f", path)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertNotIn("basic_filebuf", done.stderr)

    def test_numbers_out_of_range_are_named_in_few_words(self):
        options = (("-n", "-1"), ("-n", "99999999999999999999"), ("-n", "5x"), ("--chunk", "0"), ("--seed", "-1"), ("--temp", "nan"),
                   ("--top-k", "-5"), ("--threads", "100000"))
        for option in options:
            done = self.refused(f"got '{option[1]}'", "run", "-m", self.model, "-p", "x", *option)
            self.assertTrue(done.stderr.startswith("tessera: error: "))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertLess(len(done.stderr), 250)
        self.refused("empty path", "run", "-m", "", "-p", "x")

    def test_a_damaged_demo_model_is_named(self):
        with tempfile.TemporaryDirectory() as cache:
            path = os.path.join(cache, "SmolLM2-135M-Instruct.Q4_1.gguf")
            with open(path, "wb") as file:
                file.truncate(98362432)
            done = self.refused(path, "run", "-m", "demo", "-p", "x", env={"TESSERA_CACHE": cache})
            self.assertIn("delete", done.stderr)

    def test_output_that_cannot_be_written_is_an_error(self):
        commands = (["run", "-m", self.model, "-p", "the", "-n", "5"], ["run", "-m", self.model, "-p", "the", "-n", "5", "--json"],
                    ["info"], ["contract", "show"])
        for command in commands:
            with self.subTest(command=command), open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([self.tessera, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
                self.assertEqual(done.returncode, BAD_INPUT)
                self.assertIn("standard output", done.stderr)
                closed = subprocess.run(["sh", "-c", '"$0" "$@" <&- >&- 2>&-', self.tessera, *command], timeout=300, check=False)
                self.assertEqual(closed.returncode, BAD_INPUT)

    def test_files_that_are_no_models(self):
        self.refused("/no/such/model.gguf", "run", "-m", "/no/such/model.gguf", "-p", "x")
        self.refused("regular file", "run", "-m", self.folder.name, "-p", "x")
        with open(self.model, "rb") as file:
            whole = file.read()
        for size in (0, 3, 23, 100, 4000, len(whole) // 2, len(whole) - 1):
            path = os.path.join(self.folder.name, "cut.gguf")
            with open(path, "wb") as file:
                file.write(whole[:size])
            start = time.monotonic()
            self.refused("cut.gguf", "run", "-m", path, "-p", "x")
            self.assertLess(time.monotonic() - start, 5)  # a hang, not a speed, is what this would catch

    def test_the_demo_model_without_python_or_network(self):
        with tempfile.TemporaryDirectory() as cache:
            env = {"TESSERA_CACHE": cache, "TESSERA_PYTHON": "/no/such/python"}
            self.refused("could not be started", "run", "-m", "demo", "-p", "x", env=env)
            env["TESSERA_PYTHON"] = "false"
            self.refused("PyPI", "run", "-m", "demo", "-p", "x", env=env)
            self.assertEqual(os.listdir(cache), [])  # nothing half-fetched is left

    def test_the_gate_passes_and_its_control_fails(self):
        gate = ("gate", "invariance", "-m", self.model, "--tokens", "48", "--json")
        report = json.loads(self.good(*gate))
        self.assertEqual(report["verdict"], "pass")
        self.assertTrue(any(case["must_differ"] for case in report["cases"]))
        control = self.call(*gate, "--negative-control")
        self.assertEqual(control.returncode, CHECK_FAILED, control.stderr)
        self.assertEqual(json.loads(control.stdout)["verdict"], "fail")

    def test_chat_keeps_the_conversation(self):
        out = self.good("chat", "-m", self.model, "--chat-template", "chatml", "-n", "4", "--json", stdin="the\nthen\n/reset\nthe\n")
        turns = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([turn["user"] for turn in turns], ["the", "then", "the"])
        self.assertEqual(turns[0]["tokens"], turns[2]["tokens"])

    def test_info_contract_and_explain_speak_json(self):
        info = json.loads(self.good("info", "-m", self.model, "--keys", "--json"))
        self.assertTrue(any(kernel["available"] for kernel in info["kernels"]))
        self.assertEqual(info["model"]["architecture"], "llama")
        self.assertIn("general.architecture", info["model"]["metadata"])
        contract = json.loads(self.good("contract", "show", "--json"))
        self.assertGreater(len(contract["constants"]), 5)
        plan = json.loads(self.good("explain", "--dtype", "f16", "--head-dim", "64", "--causal", "--sinks", "--window", "128", "--json"))
        self.assertEqual(plan["contract_id"], "tessera-1/cpu-fma32/f16/d64")
        self.assertTrue(plan["rows"])

    def test_probe_checks_the_gpu_or_says_that_there_is_none(self):
        done = self.call("probe", "--json")
        if done.returncode == BAD_INPUT:
            self.assertIn("CUDA", done.stderr)
        else:
            self.assertEqual(done.returncode, GOOD, done.stdout + done.stderr)
            self.assertTrue(json.loads(done.stdout)["obeys"])

    def test_bench_says_what_it_needs(self):
        for name in ("attention", "decode"):
            self.refused("PYTHON", "bench", name, env={"PYTHON": "/no/such/python"})
            self.refused(f"{name}.py", "bench", name, "--head-dims", "64", env={"CUDA_VISIBLE_DEVICES": ""})

    def test_explain_names_what_no_kernel_takes(self):
        done = self.refused("head_dim", "explain", "--head-dim", "900")
        self.assertIn("registry", done.stdout)
        self.refused("num_heads_kv", "explain", "--heads-q", "8", "--heads-kv", "3")
        self.refused("no_such_kernel", "explain", "--kernel", "no_such_kernel")


if __name__ == "__main__":
    CommandLine.tessera = sys.argv.pop(1)
    unittest.main()
