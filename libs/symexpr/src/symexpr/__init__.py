"""Integer expressions that print, simplify and prove right."""
