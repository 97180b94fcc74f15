"""Consumer groups of the classic protocol. `group` has the rules, without clock and network; `coordinator` has both."""
