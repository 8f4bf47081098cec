"""Writes the dashboards: `python -m monitor.grafana` (needs grafana-foundation-sdk, of the extra `dev`)."""

from __future__ import annotations

from monitor.grafana.boards import write

for path in write():
    print(path)
