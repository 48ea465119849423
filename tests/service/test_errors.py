"""Every problem type has a title and a detail that read as sentences."""

import re

from docs.site.problem_table import collect_details
from service.errors import PROBLEM_TYPES


def test_titles_are_sentences_without_a_period():
    for kind, (_, title) in PROBLEM_TYPES.items():
        assert re.fullmatch(r"[A-Z].*[^.]", title), kind


def test_every_type_has_a_detail():
    assert PROBLEM_TYPES.keys() <= {kind for kind, _, _ in collect_details()}


def test_details_are_sentences():
    bad = [
        f"{place}: {detail}"
        for _, detail, place in sorted(collect_details())
        if not re.fullmatch(r"[A-Z0-9`<].*[.>]", detail, re.DOTALL)
    ]
    assert not bad, "\n".join(bad)
