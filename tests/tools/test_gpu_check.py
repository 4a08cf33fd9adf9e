"""tools/gpu_check must be able to fail: it runs here with test programs, a sanitizer and a GPU that are shell scripts."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("cuda_fmha_test", "cuda_cases_test", "device_oracle_test", "fmha_golden_test", "sm80_fmha_bytes_test",
            "sm90_prefill_bytes_test", "sm90_prefill_512_bytes_test", "sm90_mqa_512_bytes_test", "sm90_mqa_512_split_test",
            "sm90_mqa_fp8_test", "sm90_latent_team_test", "sm90_decode_bytes_test", "sm90_softcap_test", "sm90_fp8_rows_test")

# A GoogleTest program with tests Suite.A to Suite.D. BAD, SLOW and DIES name the test that fails, hangs or crashes.
TEST_PROGRAM = r"""#!/bin/bash
tests=(A B C D)
if [[ "$*" == *--gtest_list_tests* ]]; then printf 'Running main()\nSuite.\n'; printf '  %s\n' "${tests[@]}"; exit 0; fi
code=0
wanted=:${*##*--gtest_filter=}:
for i in "${!tests[@]}"; do
  t=${tests[$i]}
  [[ "$wanted" != *:Suite.* || "$wanted" == *:Suite.$t:* ]] || continue
  (( i % ${GTEST_TOTAL_SHARDS:-1} == ${GTEST_SHARD_INDEX:-0} )) || continue
  echo "[ RUN      ] Suite.$t"
  [[ "$SLOW" == "$t" ]] && sleep 60
  [[ "$DIES" == "$t" ]] && kill -SEGV $$
  if [[ "$BAD" == "$t" ]]; then echo "[  FAILED  ] Suite.$t, where GetParam() = 3 (1 ms)"; code=1
  else echo "[       OK ] Suite.$t (2 ms)"; fi
  echo "[ TALLY    ] kernel bf16 mixes compared ${CASES:-100} refused 1"
done
(( code == 0 )) && echo "[  PASSED  ] some tests."
exit $code
"""
SANITIZER = r"""#!/bin/bash
tool=$2
while [[ $# -gt 0 && "$1" != /* ]]; do shift; done
"$@" || exit $?
[[ "$SANITIZER_BAD" == "$tool" ]] && { echo "========= ERROR SUMMARY: 1 error"; exit 9; }
echo "========= ERROR SUMMARY: 0 errors"
"""
SMI = r"""#!/bin/bash
echo "Some GPU, ${CAPABILITY:-9.0}, 1.0, 1, 2, 3, 4, 5, 6, 7, 8"
"""
PROBE = "#!/bin/bash\necho '{\"obeys\": true}'\n"


class GpuCheck(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        for name in PROGRAMS:
            self.script(f"build/bin/{name}", TEST_PROGRAM)
        self.script("build/bin/tessera", PROBE)
        self.script("path/nvidia-smi", SMI)
        self.script("path/compute-sanitizer", SANITIZER)

    def script(self, name: str, text: str):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def run_check(self, *arguments: str, **environment: str) -> tuple[int, dict, str]:
        out = self.root / "out.json"
        out.unlink(missing_ok=True)
        path = f"{self.root / 'path'}:{os.environ['PATH']}"
        done = subprocess.run([sys.executable, ROOT / "tools/gpu_check", "--build", self.root / "build", "--out", out, "--jobs", "3",
                               "--without", "bench", *arguments], capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "TESSERA_COMMIT": "abc", "PATH": path, **environment})
        return done.returncode, json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}, done.stdout + done.stderr

    def test_everything_passes(self):
        code, record, text = self.run_check()
        self.assertEqual(code, 0, text)
        self.assertEqual((record["commit"], record["verdict"]), ("abc", "all steps passed"))
        self.assertEqual(record["steps"]["tests"]["cases"], {"bf16": 400 * len(PROGRAMS)})
        for program in record["steps"]["tests"]["programs"]:
            self.assertEqual((program["status"], program["listed"], program["passed"]), ("passed", 4, 4))
        tools = {run["tool"] for run in record["steps"]["sanitizer"]["runs"]}
        self.assertEqual(tools, {"memcheck", "racecheck", "synccheck", "initcheck"})

    def test_a_record_is_there_after_every_step(self):
        # Whoever stops the program during the second step still finds what the first one found.
        checker = textwrap.dedent(f"""
            import importlib.machinery, importlib.util, sys
            loader = importlib.machinery.SourceFileLoader("gpu_check", {str(ROOT / "tools/gpu_check")!r})
            module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
            loader.exec_module(module)
            module.step_tests = lambda *_: sys.exit(7)
            sys.argv = ["gpu_check", "--build", {str(self.root / "build")!r}, "--out", {str(self.root / "out.json")!r}]
            module.main()
        """)
        path = f"{self.root / 'path'}:{os.environ['PATH']}"
        done = subprocess.run([sys.executable, "-c", checker], env={**os.environ, "PATH": path}, capture_output=True, check=False)
        self.assertEqual(done.returncode, 7, done.stderr)
        record = json.loads((self.root / "out.json").read_text(encoding="utf-8"))
        self.assertEqual((list(record["steps"]), record["exit_code"]), (["probe"], 1))
        self.assertIn("NOT FINISHED", record["verdict"])

    def test_kernels_that_share_an_oracle_share_a_shard(self):
        loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "tools/gpu_check"))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
        loader.exec_module(module)
        tests = [f"Kernels/Bytes.{case}/sm90_hd{dim}_{dtype}_{kind}" for case in "AB" for dim in (64, 128)
                 for dtype in ("f16", "bf16") for kind in ("r8_pair", "r8_team", "r16_pair")] + ["Alone.X", "Alone.Y"]
        parts = module.shards_of(tests, 4)
        self.assertEqual(sorted(test for part in parts for test in part), sorted(tests))
        self.assertEqual(len(parts), 4)
        self.assertLessEqual(max(map(len, parts)) - min(map(len, parts)), 3)
        for part in parts:
            for test in part:
                kin = [other for other in tests if other.rsplit("_", 2)[0] == test.rsplit("_", 2)[0]]
                self.assertTrue(set(kin) <= set(part))
        self.assertEqual(module.shards_of([], 4), [["*"]])

    def test_a_failing_test_is_named(self):
        code, record, text = self.run_check("--only", "tests", BAD="C")
        self.assertEqual((code, record["steps"]["tests"]["status"]), (1, "failed"))
        self.assertEqual(record["steps"]["tests"]["programs"][0]["failed"], ["Suite.C"])
        self.assertIn("FAILED: tests", text)

    def test_what_a_limit_cuts_is_no_pass_and_is_named(self):
        code, record, text = self.run_check("--only", "tests", "--seconds", "4", SLOW="B")
        tests = record["steps"]["tests"]
        self.assertEqual((code, tests["status"], tests["limit_seconds"]), (1, "cut", 4.0))
        self.assertLess(tests["seconds"], 20)
        self.assertTrue(all("Suite.B" in program["not_finished"] for program in tests["programs"]))
        self.assertIn("CUT: tests", text)

    def test_a_program_that_dies_has_failed(self):
        code, record, _ = self.run_check("--only", "tests", DIES="D")
        self.assertEqual((code, record["steps"]["tests"]["status"]), (1, "failed"))
        self.assertIn("Suite.D", record["steps"]["tests"]["programs"][0]["not_finished"])

    def test_a_missing_program_has_failed(self):
        (self.root / "build/bin" / PROGRAMS[-1]).unlink()
        code, record, _ = self.run_check("--only", "tests")
        self.assertEqual((code, record["steps"]["tests"]["programs"][-1]["status"]), (1, "failed"))

    def test_too_few_cases_are_no_pass(self):
        code, record, _ = self.run_check("--only", "tests", CASES="1")
        self.assertEqual((code, record["steps"]["tests"]["status"]), (1, "failed"))

    def test_a_memory_error_is_no_pass(self):
        code, record, _ = self.run_check("--only", "sanitizer", SANITIZER_BAD="racecheck")
        bad = [run["tool"] for run in record["steps"]["sanitizer"]["runs"] if run["status"] == "failed"]
        self.assertEqual((code, set(bad)), (1, {"racecheck"}))

    def test_another_gpu_is_refused(self):
        code, record, text = self.run_check(CAPABILITY="8.0")
        self.assertEqual((code, record), (2, {}))
        self.assertIn("8.0", text)


if __name__ == "__main__":
    unittest.main()
