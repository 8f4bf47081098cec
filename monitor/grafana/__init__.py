"""Grafana: the dashboards of a run, generated (`python -m monitor.grafana`), and what provisions them."""
