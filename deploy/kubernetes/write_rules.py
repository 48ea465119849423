"""Write the rules of Prometheus as a PrometheusRule of the Prometheus Operator.

python deploy/kubernetes/write_rules.py     writes components/monitoring/prometheusrule.yaml
"""

from __future__ import annotations

import textwrap
from pathlib import Path

RULES = Path(__file__).parents[2] / "docker" / "prometheus" / "rules" / "basin.yml"
TARGET = Path(__file__).parent / "components" / "monitoring" / "prometheusrule.yaml"
_HEAD = """\
# Written by deploy/kubernetes/write_rules.py of docker/prometheus/rules/basin.yml; do not edit.
# Alerts link to the address in `externalLabels: {docs: ...}` of the Prometheus resource.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: basin}
spec:
"""


def render_rules() -> str:
    return _HEAD + textwrap.indent(RULES.read_text(), "  ")


if __name__ == "__main__":
    TARGET.write_text(render_rules())
