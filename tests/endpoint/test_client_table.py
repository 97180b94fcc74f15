"""Does docs/reference/clients.md say what the tests of clients show?"""

from __future__ import annotations

import pytest

from endpoint.support.client_table import COLLECTED, are_all, is_apart, read_page, shown_cells, versions


def test_the_page_of_clients_says_what_the_tests_show(pytestconfig: pytest.Config) -> None:
    collected = pytestconfig.stash[COLLECTED]
    shown, page = shown_cells(collected), read_page()
    tested = {each for each, _ in shown_cells(each for each in collected if not is_apart(each))}
    stale = {cell: text for cell, text in (shown | versions(tested)).items() if page.get(cell) != text}
    if are_all(collected):
        stale |= {cell: "not shown" for cell in page if cell[1] != "version" and cell not in shown}
    assert not stale, "run `make clients`, which writes the page"
