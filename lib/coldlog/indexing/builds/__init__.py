"""Read segments and write their index rows; quarantine the bad ones. Read `build.py` first, then `segment_build.py`."""
