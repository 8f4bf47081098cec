"""What the panels of a dashboard must show, by what a run's status.json said of itself at the time.

AGREES has, by a panel's title and a curve's legend, a function of the run and of the Unix time that was asked
for; it gives (low, high) by the name of the curve, None standing for the only one.
"""

import threading

WINDOW_SECONDS = 15  # of rates
SCRAPE_SECONDS = 1
SLACK_SECONDS = 2.5  # a scrape and a status.json may each be a second old
SHARE = 0.2  # by which shares of time may differ: status.json has them over ten seconds


class Watched:
    """A run under way whose status.json is kept, as it was at each moment."""

    def __init__(self, run):
        self.run, self.kept, self._over = run, [], threading.Event()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _keep(self):
        while not self._over.wait(0.2):
            status = self.run.status()
            if status.get("updated_unix") and (not self.kept or self.kept[-1] != status):
                self.kept.append(status)

    def close(self):
        self._over.set()
        self._thread.join()
        self.run.close()

    def up(self):
        """Its address, once it trains and has saved a checkpoint."""
        status = self.run.until(lambda status: status.get("version") and status["checkpoint"]["count"])
        return status["address"].removeprefix("http://").rstrip("/")

    def at(self, moment, figure):
        """A figure that grows, at a Unix time: between what stood before and after it."""
        kept = list(self.kept)
        before = [status for status in kept if status["updated_unix"] <= moment][-1]
        after = next(status for status in kept if status["updated_unix"] > moment)
        share = (moment - before["updated_unix"]) / (after["updated_unix"] - before["updated_unix"])
        return figure(before) + share * (figure(after) - figure(before))

    def between(self, start, end, figure):
        """The values of a figure that came and went in that time, and those just outside."""
        kept = list(self.kept)
        first = max((i for i, status in enumerate(kept) if status["updated_unix"] <= start), default=0)
        found = [figure(status) for status in kept[first:] if status["updated_unix"] <= end + SLACK_SECONDS]
        return [value for value in found if value is not None]


def speed(figure):
    """A rate: what the figure grew in the window, if begun and ended a scrape earlier or later."""

    def bounds(watched, end):
        def grown(by):
            begun = watched.at(end - WINDOW_SECONDS - by, figure)
            return (watched.at(end + by, figure) - begun) / WINDOW_SECONDS

        return {None: (grown(-SCRAPE_SECONDS), grown(SCRAPE_SECONDS))}

    return bounds


def total(figure):
    """A figure that grows."""
    return lambda watched, end: {
        None: (watched.at(end - SLACK_SECONDS, figure), watched.at(end + SLACK_SECONDS, figure))
    }


def level(figure, by=1e-6):
    """A figure that comes and goes; `by`: how far beside what stood in status.json, of its size."""

    def bounds(watched, end):
        found = watched.between(end - SLACK_SECONDS, end, figure)
        room = by * max(map(abs, found))
        return {None: (min(found) - room, max(found) + room)}

    return bounds


def shares(role, names, prefix=""):
    """Shares of time, on average over the processes of a role."""

    def bounds(watched, end):
        found = {}
        for ours, theirs in names.items():
            values = watched.between(end - WINDOW_SECONDS, end, lambda s, name=theirs: s["time"][role][name])
            found[prefix + ours] = (min(values) - SHARE, max(values) + SHARE)
        return found

    return bounds


def several(**functions):
    """Bounds of several curves: their names, and functions that give the bounds of one."""

    def bounds(watched, end):
        return {name: made(watched, end)[None] for name, made in functions.items()}

    return bounds


def age(figure):
    """Seconds since a moment, which may have been another one a moment ago."""

    def bounds(watched, end):
        found = watched.between(end - SLACK_SECONDS, end, figure)
        return {None: (end - max(found) - 0.1, end - min(found) + 0.1)}

    return bounds


def by_role(figure, by):
    """A sum over the processes of each role."""

    def bounds(watched, end):
        roles = {process["role"] for process in watched.kept[-1]["processes"]}
        return {
            role: level(
                lambda s, role=role: sum(figure(p) for p in s["processes"] if p["role"] == role), by=by
            )(watched, end)[None]
            for role in roles
        }

    return bounds


def written(watched, end):
    """Checkpoints in the window; few and apart, so one more or less may fall into it."""
    ((low, high),) = speed(lambda s: s["checkpoint"]["count"])(watched, end).values()
    return {None: (WINDOW_SECONDS * low - 1, WINDOW_SECONDS * high + 1)}


def held_up(watched, end):
    part = {"producer": "the learner", "server": "the inference server"}[watched.run.folder.name]
    return {part: (0.1, 1.05)}


def restarts(watched, end):
    """Of a producer, in the window. Growth is measured between scrapes and stretched to the window."""
    return {"producer": (0.9, 2.4) if watched.run.folder.name == "producer" else (0, 0)}


def all_restarts(watched, end):
    (counted,) = total(lambda s: sum(s["restarts"].values()))(watched, end).values()
    return {None: (counted[0], 1.4 * counted[1])}


def lag(share):
    """Quantiles are interpolated in their bucket and read up to one version low."""
    return lambda watched, end: {None: (watched.kept[-1]["lag"][share] - 1, watched.kept[-1]["lag"][share])}


packed = speed(lambda s: int(s["bytes"]["packed"]))
unpacked = speed(lambda s: int(s["bytes"]["unpacked"]))
steps = speed(lambda s: s["steps"])
consumed = speed(lambda s: s["slots"]["consumed"])
PRODUCER_WAITS = {name: f"wait_{name}" for name in ("credit", "ring_full", "version", "answer", "owner")}
PRODUCER_PHASES = {"simulator": "sim", "policy": "policy", "pickup": "pickup"}
LEARNER_PHASES = {name: name for name in ("copy", "forward", "backward", "optimizer", "allreduce", "publish")}
RATIOS = ("mean", "p1", "p50", "p99", "max")
EXACT = 1e-6
NEAR = 0.25  # of memory and the like, between two looks
ROUGH = 2.0  # of figures of the last update, of which there may be many between two looks

AGREES = {
    ("State", "{{state}}"): lambda watched, end: {"running": (1, 1)},
    ("Up", "up"): lambda watched, end: {None: (watched.kept[-1]["seconds"] - SLACK_SECONDS, 600)},
    ("Bandwidth", "packed"): packed,
    ("Bandwidth", "unpacked"): unpacked,
    ("Steps", "steps"): steps,
    ("Lag", "mean"): level(lambda s: s["lag"]["mean"], by=0.1),
    ("Lag", "p99"): lag("p99"),
    ("Lag", "limit"): level(lambda s: s["lag"]["limit"]),
    ("Held up by", "{{part}}"): held_up,
    ("Checkpoint", "age"): age(lambda s: s["checkpoint"]["last_unix"]),
    ("Restarts 1 h", "restarts"): all_restarts,
    ("Alerts", "firing"): lambda watched, end: {None: (0, 0)},
    # Throughput
    ("Committed and consumed", "committed, unpacked"): unpacked,
    ("Committed and consumed", "committed, packed"): packed,
    ("Written so far", "packed"): total(lambda s: int(s["bytes"]["packed"])),
    ("Agent-steps", "produced"): speed(lambda s: sum(one["steps"] for one in s["producers"])),
    ("Agent-steps", "consumed"): steps,
    ("Agent-steps", "trained, with reuse"): speed(lambda s: s["samples"]),
    ("Reuse", "window"): lambda watched, end: {None: (0.99, 1.01)},  # learner.epochs
    ("Steps so far", "steps"): total(lambda s: s["steps"]),
    ("Episodes", "learned of"): speed(lambda s: s["score"]["episodes"]),
    ("Updates", "updates"): speed(lambda s: s["updates"]),
    ("Updates", "optimizer steps"): speed(lambda s: s["sgd_steps"]),
    ("Producers", "{{phase}}"): shares("producer", PRODUCER_PHASES),
    ("Producers", "waits: {{reason}}"): shares("producer", PRODUCER_WAITS, "waits: "),
    ("Learners", "{{phase}}"): shares("learner", LEARNER_PHASES),
    ("Learners", "waits: {{reason}}"): shares("learner", {"no_data": "wait_no_data"}, "waits: "),
    ("Answers", "agent-steps"): speed(lambda s: s["server"]["rows"]),
    # Staleness and stability
    ("Version lag", "p99"): lag("p99"),
    ("Version lag", "p50"): lag("p50"),
    ("Version lag", "mean"): level(lambda s: s["lag"]["mean"], by=0.1),
    ("Version lag", "limit"): level(lambda s: s["lag"]["limit"]),
    ("Ratio of learner to actor", "{{stat}}"): several(
        **{stat: level(lambda s, stat=stat: s["ratio"][stat], by=0.1) for stat in RATIOS}
    ),
    ("Entropy", "entropy / log(actions)"): level(lambda s: s["losses"]["entropy_ratio"], by=0.1),
    # Rings
    ("In flight", "places"): level(lambda s: s["slots"]["capacity"]),
    ("Slots", "committed"): speed(lambda s: s["slots"]["committed"]),
    ("Slots", "consumed"): consumed,
    ("Slots", "redelivered"): speed(lambda s: s["slots"]["redelivered"]),
    ("Slots lost", "dropped"): speed(lambda s: s["slots"]["dropped"]),
    ("Slots lost", "not written"): speed(lambda s: s["slots"]["not_written"]),
    ("Unaccounted for", "slots"): lambda watched, end: {None: (0, 0)},
    ("Slots of the run", "{{outcome}}"): several(
        **{
            name: total(lambda s, name=name: s["slots"][name])
            for name in ("committed", "consumed", "dropped")
        }
    ),
    # Learner
    ("Score", "{{stat}}"): several(
        mean=level(lambda s: s["score"]["mean"], by=NEAR), best=level(lambda s: s["score"]["best"], by=EXACT)
    ),
    ("Version", "version"): total(lambda s: s["version"]),
    ("Phases", "{{phase}}"): shares("learner", LEARNER_PHASES),
    ("Loss", "{{term}}"): several(
        value=level(lambda s: s["losses"]["loss_value"], by=ROUGH),
        total=level(lambda s: s["losses"]["loss_total"], by=ROUGH),
    ),
    ("Gradient", "norm"): level(lambda s: s["losses"]["grad_norm"], by=ROUGH),
    ("Learning rate", "learning rate"): level(lambda s: s["losses"]["learning_rate"]),
    ("Entropy coefficient", "coefficient"): level(lambda s: s["losses"]["entropy_coef"]),
    # Processes and machine
    ("Producers", "{{state}}"): lambda watched, end: {"running": (2, 2)},
    ("Restarts", "{{role}}"): restarts,
    ("Attempt", "attempt"): level(lambda s: s["attempt"]),
    ("Cores in use", "{{role}}"): by_role(lambda process: process["cpu"], by=1.0),
    ("Resident memory", "{{role}}"): by_role(lambda process: process["resident_bytes"], by=NEAR),
    # Storage and checkpoints
    ("Age of the last checkpoint", "age"): age(lambda s: s["checkpoint"]["last_unix"]),
    ("Age of the last checkpoint", "interval"): lambda watched, end: {None: (5, 5)},
    ("Written and failed", "written"): written,
    ("Run directory", "size"): total(lambda s: s["run_dir"]["bytes"]),
    ("Run directory", "bound"): level(lambda s: s["run_dir"]["bound_bytes"], by=0.01),
    ("Free space", "free"): level(lambda s: s["run_dir"]["free_bytes"], by=NEAR),
}
