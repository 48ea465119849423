"""Write the dashboards that Grafana reads.

python docker/grafana/dashboards.py     writes dashboards/*.json beside this file
"""

from __future__ import annotations

from pathlib import Path

from energy_dashboard import build_energy
from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from models_dashboard import build_models
from resources_dashboard import build_resources
from service_dashboard import build_service

FOLDER = Path(__file__).parent / "dashboards"
_SCHEMA_VERSION = 41  # of Grafana 12.1, which docker-compose.yml has


def _finish(builder: dashboard.Dashboard) -> Dashboard:
    page = builder.build()
    page.schema_version = _SCHEMA_VERSION
    for number, panel in enumerate(page.panels or (), 1):
        panel.id_val = number
    return page


DASHBOARDS = {
    name: _finish(build())
    for name, build in (
        ("service", build_service),
        ("energy", build_energy),
        ("models", build_models),
        ("resources", build_resources),
    )
}


def render_files() -> dict[str, str]:
    """Return the text of each file, by its name."""
    encoder = JSONEncoder(indent=1, sort_keys=True)
    return {f"{name}.json": encoder.encode(page) + "\n" for name, page in DASHBOARDS.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in render_files().items():
        (FOLDER / name).write_text(text)
