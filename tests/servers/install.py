"""Installs the servers the tests need, where that is possible without asking anybody."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers import programs

POLICY = Path("/usr/sbin/policy-rc.d")  # Debian: exit code 101 says "install, but start no service"


def install() -> int:
    """Install what is missing, as root by apt; else say what to install. Never fails: tests without their server are skipped."""
    wanted = programs.missing()
    if not wanted:
        return 0
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        sys.stderr.write(
            f"tests that need {', '.join(wanted)} will be skipped (Debian and Ubuntu: sudo apt-get install {' '.join(wanted)})\n"
        )
        return 0
    sys.stdout.write(f"installing {' '.join(wanted)}\n")
    sys.stdout.flush()
    quiet = not POLICY.exists()
    if quiet:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        for command in (["update"], ["install", "-y", "--no-install-recommends", *wanted]):
            env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "-qq", *command], env=env, stdin=subprocess.DEVNULL, check=False)
    finally:
        if quiet:
            POLICY.unlink(missing_ok=True)
    if still := programs.missing():
        sys.stderr.write(f"could not install {', '.join(still)}: tests that need them will be skipped\n")
    return 0
