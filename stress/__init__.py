"""The stability lab: `python -m stress FILE.yaml` runs many small trainings and says what they show.

`schema` holds the keys of a study file, `reading` checks it, `cells` makes single runs of it, `store` keeps
what is finished, `runner` is the loop that has cells run in warm workers, `host` plays the supervisor's part
for one cell. docs/stress.md explains the file and the store.
"""
