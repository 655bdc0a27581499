"""The tests of the package safetensors, with hostbuf's safe_open in its place. They are a part of
its repository (bindings/python/tests), whose folder the variable SAFETENSORS_TESTS names.
`scripts/test-long safetensors` installs and runs them."""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

# The others need frameworks that are skipped where they are missing, or the function that opens a
# file object, which hostbuf does not have.
FILES = ["test_simple.py", "test_multithreaded.py", "test_pread_backend.py", "test_pt_comparison.py", "test_pt_model.py", "test_threadable.py"]
FOLDER = os.environ.get("SAFETENSORS_TESTS")
MISSING = [name for name in ("safetensors", "torch", "pytest") if importlib.util.find_spec(name) is None]


class SafetensorsPackage(unittest.TestCase):
    @unittest.skipIf(FOLDER is None, "the tests of safetensors: SAFETENSORS_TESTS does not name their folder")
    @unittest.skipIf(bool(MISSING), f"the tests of safetensors: there is no {', '.join(MISSING)}")
    def test_its_own_tests_pass_with_hostbuf_in_place(self) -> None:
        assert FOLDER
        tests = [str(pathlib.Path(FOLDER).resolve() / name) for name in FILES]
        own = str(pathlib.Path(__file__).parent)
        paths = os.pathsep.join([own, os.environ.get("PYTHONPATH", "")])
        with tempfile.TemporaryDirectory() as folder:
            # They write files there.
            pathlib.Path(folder, "tests/data").mkdir(parents=True)
            command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "safetensors_plugin", "-p", "no:cacheprovider", *tests]
            ran = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        opened = re.search(r"hostbuf has opened (\d+) files", ran.stdout)
        self.assertTrue(opened and int(opened[1]) > 30, ran.stdout)
        passed = re.search(r"^\d+ passed(, \d+ skipped)?", ran.stdout, re.MULTILINE)
        assert opened and passed, ran.stdout
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("safetensors", "torch")]
        print(f"\n{', '.join(versions)}: {passed[0]}, {opened[0]}")


if __name__ == "__main__":
    unittest.main()
