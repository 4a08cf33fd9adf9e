"""A gate: does a program print the bytes of a reference?  identity.py PROGRAM REFERENCE"""

import json
import subprocess
import sys

program, reference = sys.argv[1:3]
done = subprocess.run([sys.executable, program], capture_output=True, check=False)
with open(reference, "rb") as file:
    wanted = file.read().splitlines()
got = done.stdout.splitlines()
equal = sum(a == b for a, b in zip(wanted, got))
same = done.returncode == 0 and wanted == got and wanted != []
summary = f"{equal} of {len(wanted)} lines have the reference's bytes"
print(json.dumps({"gate": "identity", "verdict": "pass" if same else "fail", "summary": summary,
                  "metrics": {"lines": len(wanted), "equal": equal, "exit_code": done.returncode}}))
sys.exit(0 if same else 1)
