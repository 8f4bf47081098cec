"""The stability lab: `python -m stress FILE.yaml` runs many small trainings and says what they show.

`schema` holds the keys of a study file, `reading` checks it, `cells` makes single runs of it, `store` keeps
what is finished, `runner` is the loop that has cells run in warm workers, `host` plays the supervisor's part
for one cell. docs/stress.md explains the file and the store.

`report` turns a store into a page and its numbers: `records` reads and judges runs, `statistics` and
`inference` hold the mathematics, `contrasts` compares pairs, `verdict`, `realised`, `alarms` and `summary`
say what follows, `page` with `panels`, `charts` and `markup` shows it and computes nothing.
"""
