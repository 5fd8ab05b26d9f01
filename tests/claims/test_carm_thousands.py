"""The property tests of the CARM claims once more, on thousands of examples each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_property_of_the_claims_holds_on_three_thousand_examples():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_carm.py"))]
    run = subprocess.run(command, env={**os.environ, "CARM_CLAIM_EXAMPLES": "3000"}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:]
