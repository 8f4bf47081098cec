"""What shows a run: its directory, its status, the terminal display and the exporter."""
