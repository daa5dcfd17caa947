"""Its child, which stands for a compiler, takes memory until somebody stops it."""

import subprocess
import sys

from say import phase

phase("first_step")
subprocess.run([sys.executable, "-S", "-c", "import time; x = b'x' * 2**28; time.sleep(600)"], check=False)
