"""Run the endpoint: python -m coldlog.serve."""

from __future__ import annotations

from coldlog.serve.command_line import main

if __name__ == "__main__":
    main()
