"""Test that a wrong checksum is found at each depth and in windows of each size."""

from __future__ import annotations

from builders.segment_builder import build_batch
from coldlog.errors import Reason
from coldlog.model.states import IndexDepth
from damage.damage_program import BATCHES, LOG, list_refusals


def test_wrong_checksum_is_reported_with_its_batch_and_both_values() -> None:
    border = len(build_batch(BATCHES[0]))
    refusals = list_refusals(LOG)
    ways = 2 * len(IndexDepth)
    assert len(refusals) == ways * (len(LOG) + 1)
    for at in (border + 17, border + 21, border + 60, border + 70):
        refusal_facts = refusals[ways * (at + 1) : ways * (at + 2)]
        assert refusal_facts == refusal_facts[:1] * ways, "the same at every depth and window size"
        assert refusal_facts[0] is not None
        reason, message, position, expected, found = refusal_facts[0]
        assert (reason, message, position) == (Reason.CRC_MISMATCH, "batch does not match its checksum", border)
        assert expected != found
