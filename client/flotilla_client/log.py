"""The library's logger, `flotilla`: fail-overs, retries, who leads.

What lives here: the logger, silent until an application gives it a handler. What must not: texts.

WARNING: an endpoint that answered before is silent, or an operation was given up. INFO: an endpoint
answers again, another node leads, an operation is asked again. DEBUG: every attempt after that.
"""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("flotilla")
LOG.addHandler(logging.NullHandler())
