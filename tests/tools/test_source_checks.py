"""The source checks must be able to fail: each test plants one violation in a small tree and expects it to be named."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_layers  # noqa: E402
import check_words  # noqa: E402
import source_tree  # noqa: E402


class TreeCase(unittest.TestCase):
    """A test with a folder of its own to put files into."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)

    def write(self, files: dict[str, str]) -> list[Path]:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return [Path(name) for name in files]

    def layers(self, files: dict[str, str]) -> list[str]:
        return check_layers.check_tree(self.root, self.write(files))

    def words(self, files: dict[str, str]) -> list[str]:
        return check_words.check_tree(self.root, self.write(files))


HEADERS = {
    "src/base/status.h": "",
    "src/contract/exp2.h": "",
    "src/oracle/oracle.h": "",
    "src/kernels/entry.h": "",
    "src/kernels/cpu/tile.h": "",
    "src/kernels/sm80/mma.cuh": "",
    "src/kernels/sm90/wgmma.cuh": "",
    "src/kernels/sm90/fwd/config.h": "",
    "src/kernels/sm90/fwd/kernel.cuh": "",
    "src/registry/registry.h": "",
    "src/engine/forward.h": "",
    "src/gate/identity.h": "",
    "include/tessera/tessera.h": "",
    "tests/helper.h": "",
}


class LayerArrows(TreeCase):
    def verdict(self, includer: str, include: str) -> list[str]:
        return self.layers(HEADERS | {includer: f"#include {include}\n"})

    def assert_allowed(self, includer: str, include: str):
        self.assertEqual(self.verdict(includer, include), [])

    def assert_refused(self, includer: str, include: str, *words: str):
        problems = self.verdict(includer, include)
        self.assertEqual(len(problems), 1, problems)
        self.assertTrue(problems[0].startswith(f"{includer}:1: "), problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_every_arrow_to_the_left_is_allowed(self):
        for includer, include in [
            ("src/contract/a.cpp", '"base/status.h"'),
            ("src/oracle/a.cpp", '"contract/exp2.h"'),
            ("src/kernels/cpu/a.cpp", '"contract/exp2.h"'),
            ("src/kernels/cpu/a.cpp", '"kernels/entry.h"'),
            ("src/registry/a.cpp", '"kernels/sm90/fwd/config.h"'),
            ("src/api/a.cpp", '"registry/registry.h"'),
            ("src/engine/a.cpp", '"base/status.h"'),
            ("src/gate/a.cpp", '"engine/forward.h"'),
            ("src/cli/a.cpp", '"gate/identity.h"'),
            ("src/cli/a.cpp", '"contract/exp2.h"'),
        ]:
            with self.subTest(includer=includer, include=include):
                self.assert_allowed(includer, include)

    def test_public_headers_are_open_to_every_layer(self):
        for includer in ["src/base/a.cpp", "src/oracle/a.cpp", "src/engine/a.cpp", "bench/a.cpp", "python/a.cpp"]:
            with self.subTest(includer=includer):
                self.assert_allowed(includer, '"tessera/tessera.h"')
                self.assert_allowed(includer, "<tessera/tessera.h>")

    def test_arrows_to_the_right_are_refused(self):
        for includer, include in [
            ("src/base/a.cpp", '"contract/exp2.h"'),
            ("src/contract/a.cpp", '"oracle/oracle.h"'),
            ("src/kernels/cpu/a.cpp", '"registry/registry.h"'),
            ("src/kernels/a.cpp", '"kernels/cpu/tile.h"'),
            ("src/registry/a.cpp", '"engine/forward.h"'),
            ("src/engine/a.cpp", '"gate/identity.h"'),
            ("include/tessera/a.h", '"base/status.h"'),
        ]:
            with self.subTest(includer=includer, include=include):
                self.assert_refused(includer, include, "may include")

    def test_oracle_and_kernels_never_see_each_other(self):
        self.assert_refused("src/oracle/a.cpp", '"kernels/cpu/tile.h"', "oracle may include")
        self.assert_refused("src/kernels/cpu/a.cpp", '"oracle/oracle.h"', "kernels/cpu may include")

    def test_architectures_never_see_each_other(self):
        self.assert_refused("src/kernels/sm90/a.cu", '"kernels/sm80/mma.cuh"', "kernels/sm90 may include")
        self.assert_refused("src/kernels/sm80/a.cu", '"kernels/cpu/tile.h"', "kernels/sm80 may include")
        self.assert_refused("src/kernels/cpu/a.cpp", '"kernels/sm90/fwd/config.h"', "kernels/cpu may include")

    def test_engine_gate_and_bench_see_no_kernel_registry_or_contract(self):
        for includer in ["src/engine/a.cpp", "src/gate/a.cpp", "bench/a.cpp"]:
            for include in ['"contract/exp2.h"', '"kernels/cpu/tile.h"', '"registry/registry.h"', '"oracle/oracle.h"']:
                with self.subTest(includer=includer, include=include):
                    self.assert_refused(includer, include, "tessera/*.h")

    def test_a_header_named_relative_to_its_own_folder_is_resolved(self):
        self.assert_allowed("src/kernels/sm90/fwd/a.cu", '"kernel.cuh"')
        self.assert_refused("src/oracle/a.cpp", '"../kernels/cpu/tile.h"', "..")

    def test_a_cuh_is_private_to_its_folder(self):
        self.assert_allowed("src/kernels/sm90/fwd/a.cu", '"kernels/sm90/wgmma.cuh"')
        self.assert_refused("src/kernels/sm90/decode/a.cu", '"kernels/sm90/fwd/kernel.cuh"', "private to its folder")
        self.assert_refused("src/registry/a.cpp", '"kernels/sm90/wgmma.cuh"', "private to its folder")

    def test_layers_that_build_without_a_toolkit_include_no_cuda(self):
        for include in ["<cuda_runtime.h>", "<cuda.h>", "<cuda_bf16.h>", "<cuda/ptx>", "<cuda/std/array>", "<mma.h>"]:
            for includer in ["src/base/a.h", "src/contract/a.h", "src/oracle/a.cpp", "include/tessera/a.h"]:
                with self.subTest(includer=includer, include=include):
                    self.assert_refused(includer, include, "without a CUDA toolkit")
            self.assert_allowed("src/kernels/sm90/a.cu", include)
        self.assert_allowed("src/contract/a.h", "<map>")

    def test_examples_see_the_public_headers_only(self):
        self.assert_allowed("examples/a.c", '"tessera/tessera.h"')
        self.assert_refused("examples/a.c", '"base/status.h"', "examples may include")

    def test_torch_stays_in_python(self):
        for includer in ["src/api/a.cpp", "bench/a.cpp", "tests/a.cpp"]:
            with self.subTest(includer=includer):
                self.assert_refused(includer, "<torch/extension.h>", "python/ only")
        self.assert_allowed("python/csrc/a.cpp", "<torch/library.h>")

    def test_tests_see_everything_and_nothing_sees_tests(self):
        self.assert_allowed("tests/a.cpp", '"kernels/sm90/fwd/kernel.cuh"')
        self.assert_allowed("tests/a.cpp", '"oracle/oracle.h"')
        self.assert_refused("src/engine/a.cpp", '"tests/helper.h"') if (self.root / "src/tests").exists() else None
        self.assert_refused("src/engine/a.cpp", '"helper.h"', "may not include")

    def test_a_new_folder_in_src_must_be_named_as_a_layer(self):
        self.assertIn("no layer names", self.layers({"src/misc/a.cpp": ""})[0])
        self.assertIn("no layer names", self.layers({"src/kernels/sm120/a.cu": ""})[0])

    def test_includes_in_comments_do_not_count_and_spacing_does_not_hide_one(self):
        self.assert_allowed("src/base/a.cpp", '<vector>\n// #include "contract/exp2.h"\n/*\n#include "oracle/oracle.h"\n*/')
        problems = self.layers(HEADERS | {"src/base/a.cpp": '\n  #  include   "contract/exp2.h"\n'})
        self.assertEqual(len(problems), 1)
        self.assertTrue(problems[0].startswith("src/base/a.cpp:2: "), problems)

    def test_the_command_names_violations_and_exits_with_1(self):
        self.write(HEADERS | {"src/base/a.cpp": '#include "contract/exp2.h"\n'})
        argv, sys.argv = sys.argv, ["check_layers.py", str(self.root)]
        self.addCleanup(setattr, sys, "argv", argv)
        self.assertEqual(check_layers.main(), 1)
        (self.root / "src/base/a.cpp").write_text("")
        self.assertEqual(check_layers.main(), 0)


class Words(TreeCase):
    def assert_clean(self, name: str, text: str):
        self.assertEqual(self.words({name: text}), [])

    def assert_found(self, name: str, text: str, word: str):
        problems = self.words({name: text})
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(word, problems[0])

    def test_the_library_neither_ends_the_process_nor_prints_nor_waits(self):
        for call in [
            "std::exit(1);",
            "_exit(1);",
            "abort ();",
            "std::terminate();",
            'printf("x");',
            'std::fprintf(stderr, "x");',
            "std::cout << 1;",
            "std::cerr << 1;",
            'fmt::print("x");',
            "cudaDeviceSynchronize();",
        ]:
            with self.subTest(call=call):
                self.assert_found("src/engine/a.cpp", f"void f() {{ {call} }}\n", "the library never")
                self.assert_clean("src/cli/a.cpp", f"void f() {{ {call} }}\n")
                self.assert_clean("tests/a.cpp", f"void f() {{ {call} }}\n")

    def test_look_alikes_comments_and_strings_are_no_calls(self):
        self.assert_clean(
            "src/engine/a.cpp",
            'int n = std::snprintf(b, 3, "printf(");  // never exit(1)\nvoid on_exit(); int x = will_abort(2);\n'
            "constexpr int big = 1'000'000; /* std::cout */ auto s = R\"(abort())\";\n",
        )

    def test_marks_of_unfinished_work_are_found_in_any_text_file(self):
        for mark in ["TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK"]:
            with self.subTest(mark=mark):
                self.assert_found("docs/a.md", f"{mark}: later\n", mark)
                self.assert_found("src/base/a.h", f"// {mark} later\n", mark)

    def test_code_in_comments_is_found(self):
        for line in [
            "int x = f(y);",
            "x += 2;",
            "f(x, y);",
            "a.b->c(1);",
            "if (x > 0) {",
            "for (int i = 0; i < n; ++i) {",
            "return x;",
            "#include <vector>",
            "}",
        ]:
            with self.subTest(line=line):
                self.assert_found("src/base/a.h", f"  // {line}\n", "code in a comment")

    def test_prose_formulas_and_examples_are_no_code(self):
        for line in [
            "producer: TMA bytes of K[stage]",
            "acc_t = fma(q, k, acc_t) for ascending d",
            "if the chunk is empty, the other state is the result, unchanged;",
            "return value: the number of bytes; 0 at the end.",
            "sK (block_n, head_dim) : SW128, K-major",
            "a <= 0.625: z = RN(a a), t = fma(z, a, 1), Q of order 4;",
            "  Result<int> r = parse(text);",
        ]:
            with self.subTest(line=line):
                self.assert_clean("src/base/a.h", f"// {line}\n")

    def test_paths_of_one_machine_are_found(self):
        for folder in ["/wo" "rk/main", "/ho" "me/anna/x", "/ro" "ot/.cache"]:
            with self.subTest(folder=folder):
                self.assert_found("tests/a.py", f'P = "{folder}"\n', "got a path")
        self.assert_clean("README.md", "build/cpu/bin, $HOME/.cache/tessera, docs/home/page, /usr/local/cuda/bin\n")

    def test_files_longer_than_the_limit_are_found_generated_tables_are_not(self):
        limit = check_words.MAX_LINES
        self.assert_clean("src/base/a.cpp", "int x;\n" * limit)
        self.assert_found("src/base/a.cpp", "int x;\n" * (limit + 1), "split the file")
        self.assert_clean("src/base/a.inc", "1,\n" * (limit + 1))

    def test_a_finding_names_file_and_line(self):
        problems = self.words({"src/base/a.cpp": '\n\n/* a\n b */ void f() { printf("x"); }\n'})
        self.assertEqual(len(problems), 1)
        self.assertTrue(problems[0].startswith("src/base/a.cpp:4: "), problems)


class FileList(TreeCase):
    def test_without_git_build_products_are_left_out(self):
        self.write({"src/a.cpp": "", "build/cpu/x.cpp": "", ".venv/y.py": ""})
        self.assertEqual(source_tree.project_files(self.root), [Path("src/a.cpp")])


if __name__ == "__main__":
    unittest.main()
