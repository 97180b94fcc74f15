"""Copy the empty tables of new warehouses, so that tests do not wait for Delta to create them.

Hundreds of tests begin with a warehouse of their own, whose empty tables take seconds. They are created once, by the
product, in build/worlds, and then copied: the bytes are those of `Warehouse.create_missing`. A warehouse that has
something already, and one in a bucket, is created by the product itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.delta.warehouse import Warehouse
from golden_fixtures import find_world


def copying_empty_tables(create_missing: Callable[[Warehouse], int]) -> Callable[[Warehouse], int]:
    """`create_missing`, by copies of the tables that it once created."""

    def copy_or_create(warehouse: Warehouse) -> int:
        target = Path(warehouse.uri)
        has_tables = any((target / table.name).exists() for table in ALL_TABLES)
        if "://" in warehouse.uri or has_tables or warehouse.as_of is not None:
            return create_missing(warehouse)

        def create(folder: Path) -> None:
            create_missing(Warehouse(spark=warehouse.spark, uri=str(folder / "warehouse")))

        template = find_world("empty", create) / "warehouse"
        # New times: Delta takes those of the files of its log for those of the commits.
        shutil.copytree(template, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
        return len(ALL_TABLES)

    return copy_or_create
