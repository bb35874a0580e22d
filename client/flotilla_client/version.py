"""The version of Flotilla: of the client library and of the broker, which are released together.

What lives here: the number. What must not: a look-up of what is installed, under whatever name.
"""

from typing import Final

VERSION: Final = "0.4.0"
