#!/usr/bin/env python3
"""tessera lab as a user meets it, with gates that are small scripts.  lab_test.py TESSERA"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

GOOD, CHECK_FAILED, INCONCLUSIVE, BAD_INPUT = 0, 1, 2, 3

# gate.py GATE: says what the file GATE.json holds, and leaves a mark that it was called.
GATE = """
import json, sys
gate = sys.argv[1]
with open("calls", "a") as file:
    file.write(gate + " ")
report = json.load(open(gate + ".json"))
print(json.dumps(dict({"gate": gate, "summary": "as told", "metrics": {"n": 33}}, **report)))
sys.exit({"pass": 0, "fail": 1, "inconclusive": 2, "error": 3}[report["verdict"]])
"""


class LabCommands(unittest.TestCase):
    tessera = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.write("gate.py", GATE)
        self.say("identity", "pass")
        self.say("tolerance", "pass", flips=[])
        self.perf(1.03)
        options = []
        for gate in ("identity", "tolerance", "perf"):
            options += [f"--{gate}", f"{sys.executable} gate.py {gate}"]
        self.good("init", *options)

    def write(self, name, text):
        with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(os.path.join(self.root, name), encoding="utf-8") as file:
            return file.read()

    def say(self, gate, verdict, **more):
        self.write(f"{gate}.json", json.dumps(dict(verdict=verdict, **more)))

    def perf(self, ratio):
        self.say("perf", "pass" if ratio > 1.01 else "fail", ratio=ratio, interval=[ratio - 0.005, ratio + 0.005], noise_floor=0.004)

    def call(self, *arguments, env=None):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_LAB")}
        environment.update(env or {})
        return subprocess.run([self.tessera, "lab", *arguments], cwd=self.root, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=120, check=False, encoding="utf-8", errors="surrogateescape")

    def expect(self, code, *arguments, **more):
        done = self.call(*arguments, **more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def good(self, *arguments, **more):
        return self.expect(GOOD, *arguments, **more)

    def refused(self, mention, *arguments, **more):
        done = self.call(*arguments, **more)
        self.assertEqual(done.returncode, BAD_INPUT, done.stdout + done.stderr)
        self.assertIn(mention, done.stderr)
        self.assertTrue(done.stderr.startswith("tessera: error: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def new(self, *more, title="Double buffering", change_class="bit-neutral"):
        out = self.good("new", title, "--hypothesis", "Copies hide.", "--expect", "3", "--class", change_class, "--json", *more)
        return json.loads(out)["name"]

    def test_an_experiment_from_question_to_landing(self):
        name = self.new("--background", "Five percent of the time.")
        out = json.loads(self.good("attempt", "1", "--change", "Two buffers.", "--json", "-q"))
        self.assertEqual([gate["verdict"] for gate in out["attempts"][0]["gates"]], ["pass", "pass"])
        self.assertEqual(out["attempts"][0]["outcome"], "passed")
        self.good("close", "1", "--landed", "--because", "Faster.", "--lessons", "Copies hide well.")
        index = json.loads(self.good("index", "--json"))
        self.assertEqual(index["experiments"][0]["state"], "landed")
        self.assertEqual(index["experiments"][0]["ratio"], 1.03)
        for part in ("Two buffers.", "Copies hide well.", "Five percent of the time."):
            self.assertIn(part, self.good("show", "1"))
            self.assertIn(part, self.read(f"lab/{name}.html"))
            self.assertIn(part, self.read(f"lab/{name}.md"))
        self.assertEqual(self.read("calls"), "identity perf ")

    def test_exit_codes_follow_the_gates(self):
        for verdict, code in (("fail", CHECK_FAILED), ("inconclusive", INCONCLUSIVE), ("error", BAD_INPUT)):
            name = self.new()
            self.say("identity", verdict)
            self.expect(code, "attempt", name, "--change", "x")
        self.assertNotIn("perf", self.read("calls"))

    def test_two_attempts_and_no_third(self):
        self.new()
        self.perf(1.0)
        self.expect(CHECK_FAILED, "attempt", "1", "--change", "one")
        self.assertIn("no attempt is left", self.expect(CHECK_FAILED, "attempt", "1", "--change", "two"))
        self.refused("after 2 attempts", "attempt", "1", "--change", "three")
        self.refused("--reverted", "close", "1", "--landed", "--because", "x", "--lessons", "x")
        self.refused("retry", "close", "1", "--reverted", "--because", "x", "--lessons", "x")
        self.good("close", "1", "--reverted", "--because", "x", "--lessons", "x", "--retry", "x")

    def test_a_revert_is_judged_by_behaviour(self):
        self.new()
        self.refused("open", "verify-revert", "1")
        self.good("close", "1", "--reverted", "--because", "x", "--lessons", "x", "--retry", "x")
        self.perf(1.001)
        self.good("verify-revert", "1")
        self.perf(0.95)
        self.expect(CHECK_FAILED, "verify-revert", "1")
        self.perf(0.982)
        self.expect(INCONCLUSIVE, "verify-revert", "1")
        self.say("identity", "fail")
        self.perf(1.0)
        self.expect(CHECK_FAILED, "verify-revert", "1")

    # The digests are checked with Python's json and hashlib, which know nothing of the tool.
    def test_anyone_can_check_the_digests(self):
        name = self.new("--background", "Caf\u00e9 \u65e5\u672c\n\"quoted\"\t\\")
        self.say("perf", "pass", ratio=1.03, interval=[1.02, 1.04], noise_floor=1e-5, samples_a=[1e22, 0.1, 5e-324, 1 / 3], samples_b=[1, 2.0, -0.0, 123456789.125])
        self.good("attempt", "1", "--change", "x")
        record = json.loads(self.read(f"lab/{name}.json"))
        previous = "0" * 64
        for event in record["events"]:
            digest = event.pop("digest")
            text = json.dumps(event, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            self.assertEqual(hashlib.sha256(text.encode()).hexdigest(), digest, event["type"])
            self.assertEqual(event["previous"], previous)
            previous = digest
        self.assertEqual(record["head"], previous)
        self.assertEqual(len(record["events"]), 6)

    def test_a_tampered_record_fails_the_index(self):
        name = self.new()
        text = self.read(f"lab/{name}.json")
        self.write(f"lab/{name}.json", text.replace("Copies hide.", "Copies fly."))
        done = self.call("index")
        self.assertEqual(done.returncode, CHECK_FAILED)
        self.assertIn("altered", done.stderr)
        self.assertEqual(json.loads(self.expect(CHECK_FAILED, "index", "--check", "--json"))["damages"][0]["file"], name)
        self.refused("altered", "attempt", "1", "--change", "x")
        self.assertFalse(os.path.exists(os.path.join(self.root, "calls")))
        self.write(f"lab/{name}.json", text)
        self.good("index")

    def start_attempt(self):
        self.new()
        self.good("gates", "1", "--identity", "touch started; exec sleep 60")
        process = subprocess.Popen([self.tessera, "lab", "attempt", "1", "--change", "x", "-q"], cwd=self.root, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not os.path.exists(os.path.join(self.root, "started")) and time.monotonic() < deadline:
            time.sleep(0.02)
        return process

    def test_a_killed_attempt_is_drawn_as_interrupted_and_counts(self):
        process = self.start_attempt()
        self.refused("another process", "attempt", "1", "--change", "y")
        process.kill()
        process.communicate()
        self.good("index")
        self.assertEqual(json.loads(self.good("show", "1", "--json"))["attempts"][0]["outcome"], "interrupted")
        self.assertEqual(json.loads(self.good("show", "1", "--json"))["attempts_left"], 1)

    def test_ctrl_c_ends_the_gate_and_records_it(self):
        process = self.start_attempt()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, BAD_INPUT)
        self.assertIn("interrupted", out)

    def test_hostile_words_are_refused_or_stay_words(self):
        new = ("--hypothesis", "h", "--expect", "1", "--class", "bit-neutral")
        self.refused("control character", "new", "a\x1b[31mb", *new)
        self.refused("no UTF-8", "new", "a\udcff", *new)
        self.refused("title", "new", "", *new)
        self.refused("title", "new", "x" * 1000, *new)
        self.refused("percentage", "new", "x", "--hypothesis", "h", "--expect", "1e300", "--class", "bit-neutral")
        self.refused("got 'nan'", "new", "x", "--hypothesis", "h", "--expect", "nan", "--class", "bit-neutral")
        self.refused("got 'none'", "new", "x", "--hypothesis", "h", "--expect", "1", "--class", "none")
        name = self.new(title="../../<script>alert(1)</script>/..")
        self.assertEqual(name, "0001-script-alert-1-script")
        self.assertNotIn("<script", self.read(f"lab/{name}.html") + self.read("lab/index.html"))
        for wanted in ("../0001", "/etc/passwd", "2", "-1", "", "1\x1b"):
            done = self.call("show", wanted)
            self.assertEqual(done.returncode, BAD_INPUT)
            self.assertNotIn("\x1b", done.stderr)

    def test_texts_come_from_files_too(self):
        self.write("why.txt", "From a file.\n\n- one\n- two\n")
        self.new("--background", "@why.txt", "--design", "@@home")
        shown = self.good("show", "1")
        self.assertIn("From a file.", shown)
        self.assertIn("@home", shown)
        self.refused("no-file", "note", "1", "lessons", "@no-file")

    def test_a_loss_may_be_expected(self):
        name = json.loads(self.good("new", "Simpler code", "--hypothesis", "h", "--expect", "-0.5", "--class", "bit-neutral", "--json"))["name"]
        self.assertEqual(name, "0001-simpler-code")

    def test_folders_that_cannot_be_labs(self):
        self.refused("lab init", "index", "--lab", "nowhere")
        self.refused("a lab that is there", "init")
        self.write("file", "")
        self.refused("file", "init", "--lab", "file/lab")
        self.refused("proc", "init", "--lab", "/proc/lab")
        self.good("init", "--lab", "other")
        self.assertIn("gate tolerance", self.read("other/lab.json"))  # without gates: those of tessera gate, with their record
        self.refused("build/base/record.json", "new", "x", "--hypothesis", "h", "--expect", "1", "--class", "bit-neutral", "--lab", "other")
        self.good("init", "--lab", "third", "--perf", "true")
        self.refused("gate identity", "new", "x", "--hypothesis", "h", "--expect", "1", "--class", "bit-neutral", "--lab", "third")
        self.good("index", env={"TESSERA_LAB": os.path.join(self.root, "other")})

    def test_a_disk_that_is_full_loses_nothing(self):
        name = self.new()
        before = self.read(f"lab/{name}.json")
        done = subprocess.run(["sh", "-c", 'trap "" XFSZ; ulimit -f 2; exec "$0" "$@"', self.tessera, "lab", "note", "1", "background", "x" * 20000],
                              cwd=self.root, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, BAD_INPUT, done.stdout + done.stderr)
        self.assertIn("nothing was changed", done.stderr)
        self.assertEqual(self.read(f"lab/{name}.json"), before)
        self.assertFalse([file for file in os.listdir(os.path.join(self.root, "lab")) if file.endswith(".tmp")])

    def test_many_at_once(self):
        new = [self.tessera, "lab", "new", "x", "--hypothesis", "h", "--expect", "1", "--class", "bit-neutral"]
        processes = [subprocess.Popen(new, cwd=self.root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(6)]
        for process in processes:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, GOOD, errors)
        index = json.loads(self.good("index", "--json"))
        self.assertEqual([entry["number"] for entry in index["experiments"]], [1, 2, 3, 4, 5, 6])

    def walk_through(self):
        """The shell lines of docs/lab.md up to its reference part, in a folder with a copy of the examples."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        shutil.copytree(os.path.join(source, "examples", "lab"), os.path.join(self.root, "examples", "lab"))
        with open(os.path.join(source, "docs", "lab.md"), encoding="utf-8") as file:
            guide = file.read().split("## The gates of Tessera")[0]
        return "".join(re.findall(r"```\n(.*?)```", guide, re.DOTALL))

    def shell(self, lines):
        path = os.path.dirname(self.tessera) + os.pathsep + os.environ["PATH"]
        return subprocess.run(["bash", "-e", "-c", lines], cwd=self.root, env=dict(os.environ, PATH=path), capture_output=True, text=True,
                              timeout=300, check=False)

    def test_the_walk_through_of_the_documentation(self):
        lines = self.walk_through()
        # The gates' timing is taken out, because a busy machine may call anything noisy: base.py is slower, others are equal.
        self.write("examples/lab/perf.py", "import json, sys\nfast = sys.argv[1] == 'base.py'\nratio = 1.5 if fast else 1.001\nprint(json.dumps("
                   "dict(gate='perf', verdict='pass' if fast else 'fail', summary='x', ratio=ratio, interval=[ratio - 0.01, ratio + 0.01],"
                   " noise_floor=0.01)))\nsys.exit(0 if fast else 1)\n")
        fails = re.sub(r"(tessera lab attempt (?:1 --change .Counter and|2 ).*)", r"! \1", lines)  # the two attempts that are meant to fail
        self.assertEqual(fails.count("! tessera"), 2)
        done = self.shell(fails)
        self.assertEqual(done.returncode, GOOD, done.stdout + done.stderr)
        index = json.loads(self.good("index", "--json", "--lab", "words-lab/lab"))
        self.assertEqual([entry["state"] for entry in index["experiments"]], ["landed", "reverted"])
        self.assertEqual(index["experiments"][1]["revert"], "revert verified")

    def test_the_example_of_a_perf_gate_gives_a_verdict(self):
        lines = self.walk_through().splitlines()[:4]  # up to init
        lines.insert(1, "sed -i 's/^PAIRS = .*/PAIRS = 2/' perf.py")
        lines.append("tessera lab new x --class bit-neutral --expect 1 --hypothesis h && tessera lab attempt 1 --change x --json")
        done = self.shell("\n".join(lines))
        self.assertIn(done.returncode, (GOOD, CHECK_FAILED, INCONCLUSIVE), done.stdout + done.stderr)


if __name__ == "__main__":
    LabCommands.tessera = os.path.abspath(sys.argv.pop(1))
    unittest.main()
