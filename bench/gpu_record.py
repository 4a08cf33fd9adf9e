"""What every GPU benchmark's record begins with: the machine, the versions, the commit."""

import datetime
import os
import subprocess

import tessera
import torch
from gpu_timing import smi


def new_record(what, dtype):
    """A record without rows yet. The commit is TESSERA_COMMIT where that is set, else that of this tree."""
    driver, limit, clock, most = smi("driver_version,power.limit,clocks.sm,clocks.max.sm")
    here = os.path.dirname(os.path.abspath(__file__))
    commit = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    record = {
        "what": what,
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("TESSERA_COMMIT") or commit.stdout.strip() or "unknown",
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver,
        "power_limit_watts": limit,
        "sm_mhz_before": clock,
        "sm_mhz_max": most,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "tessera": tessera.version(),
        "contract": tessera.contract_version(),
        "dtype": dtype,
        "rows": [],
    }
    print(f"{record['gpu']}, driver {driver}, {limit} W, cuDNN {record['cudnn']}, {dtype}")
    return record
