"""Entries of the fixed spread that fail, each with the reason. One that passes fails the test."""

from __future__ import annotations

KNOWN: dict[tuple[str, str, str, str], str] = {}
