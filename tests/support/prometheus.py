"""What a server tells Prometheus, read as Prometheus reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def families(client):
    return {f.name: f for f in text_string_to_metric_families(client.get("/metrics").text)}


def value(family, suffix="", **labels):
    return sum(
        sample.value
        for sample in family.samples
        if sample.name == family.name + suffix and labels.items() <= sample.labels.items()
    )
