"""archive: where are the bytes? Object stores, and layouts that name a segment's objects in them."""
