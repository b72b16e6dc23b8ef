"""What more than one part of cli-mcp needs: API models, names, values on the wire, the command line.

Imports none of the other packages; importing this module alone loads no library.
"""

__version__ = "0.1.0"
