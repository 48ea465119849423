"""Photographs completed by windows whose holes are prefilled: ET and what may stand for it."""
