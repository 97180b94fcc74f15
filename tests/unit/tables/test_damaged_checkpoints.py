"""Test that a checkpoint which makes delta-rs panic is reported as damage; in a bucket nothing else holds its bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from coldlog.errors import ColdlogError
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.delta.files.table_files import open_table


def test_flipped_sign_of_a_size_is_damage_of_the_log(tmp_path: Path) -> None:
    """Parquet's footer has sizes as zigzag numbers: the lowest bit of the first byte is the sign."""
    for count in range(3):
        write_deltalake(str(tmp_path), pa.table({"count": [count]}), mode="append")
    DeltaTable(str(tmp_path)).create_checkpoint()
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    sound = checkpoint.read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    group = pq.read_metadata(checkpoint).row_group(0)
    sizes = {group.column(each).total_compressed_size for each in range(group.num_columns)}
    errors = []
    for place in (at for size in sizes for at in range(footer, len(sound)) if sound.startswith(_zigzag(size), at)):
        checkpoint.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            open_table(str(tmp_path), TIME_INDEX)
        except ColdlogError as damage:
            errors.append(str(damage))
    assert any("panics at a checkpoint" in each for each in errors)
    assert all(each.startswith(f"{tmp_path}/_delta_log is damaged: ") for each in errors)


def _zigzag(size: int) -> bytes:
    size *= 2
    parts = []
    while size > 127:
        parts.append(size % 128 + 128)
        size //= 128
    return bytes([*parts, size])
