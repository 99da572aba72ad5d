"""The name of `confrere.data.bundled.baselines` before 0.2."""

import sys

from confrere.core.errors import warn_renamed
from confrere.data.bundled.baselines import main

if __name__ == "__main__":
    warn_renamed("python -m confrere.data.bundled.reach", "python -m confrere.data.bundled.baselines")
    main(sys.argv[1:])
