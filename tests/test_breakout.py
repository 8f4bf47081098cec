"""The rules of Breakout, seen through what an agent sees."""

from __future__ import annotations

import numpy as np
import pytest

from sims.loader import Worlds, load

WIDTH, HEIGHT = 144.0, 138.0
BRICK_WIDTH, BRICK_HEIGHT, BRICKS_TOP, BRICKS_BOTTOM = 8.0, 6.0, 18.0, 54.0
RADIUS, PADDLE_Y = 2.0, 132.0
SPEEDS = np.array([1.2, 1.5, 1.8, 2.1, 2.4])
POINTS = np.repeat([7, 7, 4, 4, 1, 1], 18)
LEFT_EDGES = np.tile(np.arange(18) * BRICK_WIDTH, 6)
TOP_EDGES = np.repeat(BRICKS_TOP + np.arange(6) * BRICK_HEIGHT, 18)
STAY, LEFT, RIGHT = 0, 1, 2
# The part of Worlds.save that a test sets: see `game` in sims/breakout/game.h.
STATE = np.dtype(
    {
        "names": ["x", "vx", "paddle", "bricks", "standing"],
        "formats": ["f4", "f4", "f4", ("u2", 7), "u1"],
        "offsets": [24, 32, 40, 64, 78],
        "itemsize": 88 + 16 + 118 * 4,
    }
)
SLACK = 0.01  # units; float32 observations are good to 1e-5 of the field


class Seen:
    """The observations [B, 118] of B worlds in units and frames."""

    def __init__(self, obs: np.ndarray) -> None:
        obs = obs.astype(np.float64)
        self.paddle = (obs[:, 0] + 1) * WIDTH / 2
        self.x = (obs[:, 1] + 1) * WIDTH / 2
        self.y = (obs[:, 2] + 1) * HEIGHT / 2
        self.vx, self.vy = obs[:, 3] * 2.4, obs[:, 4] * 2.4
        self.half = obs[:, 5] * 8
        self.level = np.rint(obs[:, 6] * 4).astype(int)
        self.balls = np.rint(obs[:, 7] * 5).astype(int)
        self.score = np.rint(obs[:, 8] * 864).astype(int)
        self.wall = obs[:, 9].astype(int)
        self.bricks = obs[:, 10:] == 1

    def gap_to_bricks(self) -> np.ndarray:
        """[B, 108] how far ball and brick are apart, in the axis in which they are further apart."""
        across = np.abs(self.x[:, None] - LEFT_EDGES - BRICK_WIDTH / 2) - BRICK_WIDTH / 2 - RADIUS
        down = np.abs(self.y[:, None] - TOP_EDGES - BRICK_HEIGHT / 2) - BRICK_HEIGHT / 2 - RADIUS
        return np.maximum(across, down)


def play_well(seen: Seen) -> np.ndarray:
    """Goes to where the ball will land; while that is not certain, towards the ball."""
    falls = (seen.vy > 0) & (seen.y > BRICKS_BOTTOM + RADIUS)
    frames = (PADDLE_Y - RADIUS - seen.y) / np.where(falls, seen.vy, 1)
    span = WIDTH - 2 * RADIUS
    unfolded = np.abs((seen.x + seen.vx * frames - RADIUS) % (2 * span))
    landing = np.where(unfolded > span, 2 * span - unfolded, unfolded) + RADIUS
    way = np.where(falls, landing, 0.6 * seen.x + 0.4 * WIDTH / 2) - seen.paddle
    return np.where(way > 4, RIGHT, np.where(way < -4, LEFT, STAY)).astype(np.int32)


def flee(seen: Seen) -> np.ndarray:
    """Keeps away from the ball."""
    return np.where(seen.x < WIDTH / 2, RIGHT, LEFT).astype(np.int32)


def finished(worlds: Worlds, policy) -> np.ndarray:
    """The first episode of every world, played to its end."""
    worlds.reset()
    first = {}
    while len(first) < worlds.agents:
        for episode in worlds.step(policy(Seen(worlds.obs))):
            first.setdefault(int(episode["agent"]), episode)
    return np.array([first[agent] for agent in range(worlds.agents)])


def well_played_worlds() -> list[bytes]:
    """Saved worlds from every phase of good games, both walls included."""
    saved = []
    with load("breakout").create(48) as worlds:
        worlds.reset()
        for t in range(4800):
            worlds.step(play_well(Seen(worlds.obs)))
            if t % 100 == 0:
                saved.append(worlds.save(t // 100))
    return saved


@pytest.fixture(scope="module")
def phases() -> list[bytes]:
    return well_played_worlds()


def test_good_play_clears_two_walls_of_432_points_and_ends_terminated_at_864():
    simulator = load("breakout")
    with simulator.create(40) as worlds:
        worlds.reset()
        scores, second_wall = [], np.zeros(40, bool)
        before = Seen(worlds.obs)
        while len(scores) < 40:
            episodes = worlds.step(play_well(before))
            seen = Seen(worlds.obs)
            begins = (seen.wall == 1) & (before.wall == 0)
            assert (seen.score[begins] == 432).all(), "a wall is worth 432"
            assert seen.bricks[begins].all(), "the second wall is whole"
            second_wall |= begins
            for episode in episodes:
                agent = episode["agent"]
                assert worlds.terminated[agent] == 1
                assert episode["statistics"].tolist()[:3] == [864, 216, 2]
                assert episode["return"] == 864
                scores.append(episode["statistics"][simulator.score_index])
            before = seen
        assert second_wall.all()
        assert not worlds.truncated.any()


def test_a_random_agent_scores_next_to_nothing():
    generator = np.random.default_rng(0)
    with load("breakout").create(400) as worlds:
        episodes = finished(worlds, lambda seen: generator.integers(0, 3, 400))
    assert 0 < episodes["return"].mean() < 5


def test_five_lost_balls_terminate():
    with load("breakout").create(30) as worlds:
        worlds.reset()
        before = Seen(worlds.obs)
        assert (before.balls == 5).all()
        ended = 0
        for _ in range(400):
            episodes = worlds.step(flee(before))
            seen = Seen(worlds.obs)
            rows = episodes["agent"]
            assert (before.balls[rows] == 1).all(), "it ends with the last ball"
            assert (seen.balls[rows] == 5).all(), "a new game has five"
            assert worlds.terminated[rows].all()
            assert (episodes["statistics"][:, 3] == 5).all()
            others = np.setdiff1d(np.arange(30), rows)
            assert set(before.balls[others] - seen.balls[others]) <= {0, 1}
            ended += len(episodes)
            before = seen
        assert ended >= 30


def test_a_lost_ball_is_served_anew_slow_with_the_paddle_whole(phases):
    with load("breakout").create(len(phases)) as worlds:
        worlds.reset()
        for i, saved in enumerate(phases):
            worlds.load(i, saved)
        before, lost = Seen(worlds.obs), 0
        assert (before.level > 0).any()
        assert (before.half == 4).any()
        for _ in range(300):
            worlds.step(flee(before))
            seen = Seen(worlds.obs)
            served = seen.balls < before.balls
            assert (seen.level[served] == 0).all()
            assert (seen.half[served] == 8).all()
            assert (seen.y[served] == pytest.approx(66, abs=SLACK)) if served.any() else True
            assert (seen.vy[served] > 0).all()
            assert ((seen.x[served] >= WIDTH / 4 - SLACK) & (seen.x[served] <= WIDTH * 3 / 4 + SLACK)).all()
            lost += served.sum()
            before = seen
        assert lost > len(phases)


def test_truncation_gives_the_final_observation_then_a_first_one():
    with load("breakout").create(50, {"max_steps": 30}) as worlds:
        worlds.reset()
        for _ in range(29):
            assert len(worlds.step(play_well(Seen(worlds.obs)))) == 0
        before = Seen(worlds.obs)
        episodes = worlds.step(play_well(before))
        assert len(episodes) == 50
        assert worlds.truncated.all()
        assert not worlds.terminated.any()
        assert (episodes["length"] == 30).all()
        seen = Seen(worlds.obs)
        straight = (seen.vx == before.vx) & (seen.vy == before.vy)
        assert straight.sum() > 25
        assert seen.y[straight] == pytest.approx((before.y + 4 * before.vy)[straight], abs=SLACK)
        worlds.step(play_well(seen))
        first = Seen(worlds.obs)
        assert not worlds.valid.any()
        assert not worlds.rewards.any()
        assert (first.balls == 5).all()
        assert (first.score == 0).all()
        assert first.bricks.all()
        assert first.paddle == pytest.approx(72)
        assert first.y == pytest.approx(66)
        worlds.step(play_well(first))
        assert worlds.valid.all()


@pytest.mark.parametrize(("frameskip", "steps"), [(1, 2500), (4, 1500), (16, 400)])
def test_the_ball_obeys_geometry(phases, frameskip, steps):
    """It stays in the field and out of bricks and flies straight between contacts, at its level's speed; a
    brick vanishes only beside the ball and for its points."""
    generator = np.random.default_rng(frameskip)
    worlds = load("breakout").create(len(phases), {"frameskip": frameskip})
    worlds.reset()
    for i, saved in enumerate(phases):
        worlds.load(i, saved)
    before, hits, contacts = Seen(worlds.obs), 0, 0
    for _ in range(steps):
        careless = generator.random(worlds.agents) < 0.1
        actions = np.where(careless, generator.integers(0, 3, worlds.agents), play_well(before))
        worlds.step(actions)
        seen = Seen(worlds.obs)
        assert (seen.x >= RADIUS - SLACK).all()
        assert (seen.x <= WIDTH - RADIUS + SLACK).all()
        assert (seen.y >= RADIUS - SLACK).all()
        assert (seen.y <= PADDLE_Y - RADIUS + SLACK).all()
        assert (seen.paddle >= seen.half - SLACK).all()
        assert (seen.paddle <= WIDTH - seen.half + SLACK).all()
        assert np.abs(np.hypot(seen.vx, seen.vy) - SPEEDS[seen.level]).max() < 1e-3
        assert seen.gap_to_bricks()[seen.bricks].min(initial=1) > -SLACK, "the ball is inside a brick"

        goes_on = (worlds.terminated == 0) & (seen.balls == before.balls)
        # Two reflections within a step leave the velocity as it was; one of them is off a brick.
        straight = goes_on & (seen.vx == before.vx) & (seen.vy == before.vy) & (worlds.rewards == 0)
        assert np.abs(seen.x - before.x - frameskip * before.vx)[straight].max() < SLACK
        assert np.abs(seen.y - before.y - frameskip * before.vy)[straight].max() < SLACK
        contacts += (~straight).sum()

        same_wall = goes_on & (seen.wall == before.wall)
        assert not (seen.bricks & ~before.bricks)[same_wall].any(), "a brick came back"
        vanished = (before.bricks & ~seen.bricks)[same_wall]
        travel = frameskip * SPEEDS.max() + SLACK
        assert before.gap_to_bricks()[same_wall][vanished].max(initial=0) <= travel
        assert seen.gap_to_bricks()[same_wall][vanished].max(initial=0) <= travel
        assert (worlds.rewards[same_wall] == vanished @ POINTS).all()
        assert (seen.score - before.score)[same_wall] == pytest.approx(vanished @ POINTS)
        hits += vanished.sum()
        before = seen
    worlds.close()
    assert hits > 500
    assert contacts > 2 * hits


def test_speed_rises_at_the_4th_and_12th_hit_and_on_reaching_the_upper_rows():
    with load("breakout").create(64, {"frameskip": 1}) as worlds:
        worlds.reset()
        before = Seen(worlds.obs)
        paddle_hits = np.zeros(64, int)
        reached = np.zeros((64, 2), bool)
        for _ in range(3000):
            worlds.step(play_well(before))
            seen = Seen(worlds.obs)
            begins = (worlds.terminated != 0) | (seen.balls != before.balls)
            paddle_hits = np.where(
                begins, 0, paddle_hits + ((before.vy > 0) & (seen.vy < 0) & (seen.y > 100))
            )
            vanished = before.bricks & ~seen.bricks & ~begins[:, None]
            reached[begins] = False
            reached[:, 0] |= vanished[:, 36:72].any(axis=1)
            reached[:, 1] |= vanished[:, :36].any(axis=1)
            assert (
                seen.level == (paddle_hits >= 4).astype(int) + (paddle_hits >= 12) + reached.sum(axis=1)
            ).all()
            before = seen
        assert (seen.level == 4).any()


def test_the_paddle_is_halved_by_the_ceiling_and_nothing_else():
    with load("breakout").create(64, {"frameskip": 1}) as worlds:
        worlds.reset()
        before, halved = Seen(worlds.obs), 0
        for _ in range(6000):
            worlds.step(play_well(before))
            seen = Seen(worlds.obs)
            shrinks = seen.half < before.half
            assert (seen.y[shrinks] < RADIUS + 2.5).all()
            ceiling = (before.vy < 0) & (seen.vy > 0) & (seen.y < RADIUS + 2.5)
            assert (seen.half[ceiling] == 4).all()
            halved += shrinks.sum()
            before = seen
        assert halved > 10


def test_the_angle_off_the_paddle_depends_on_where_it_is_hit():
    with load("breakout").create(64, {"frameskip": 1}) as worlds:
        worlds.reset()
        before, offsets, sines = Seen(worlds.obs), [], []
        generator = np.random.default_rng(1)
        for _ in range(1200):
            careless = generator.random(64) < 0.3
            worlds.step(np.where(careless, generator.integers(0, 3, 64), play_well(before)))
            seen = Seen(worlds.obs)
            hit = (before.vy > 0) & (seen.vy < 0) & (seen.y > 100) & (seen.balls == before.balls)
            away_from_walls = hit & (np.abs(seen.x - 72) < 60)
            at_contact = before.x + before.vx * (PADDLE_Y - RADIUS - before.y) / before.vy
            offsets.append(((at_contact - seen.paddle) / (seen.half + RADIUS))[away_from_walls])
            sines.append((seen.vx / np.hypot(seen.vx, seen.vy))[away_from_walls])
            before = seen
        offset, sine = np.concatenate(offsets), np.concatenate(sines)
        assert len(offset) > 300
        # The paddle moves on for up to a frame (2 of 10 units) after the contact.
        assert np.abs(sine - 0.85 * offset).max() < 0.85 * 2.1 / 10
        assert np.abs(sine).max() <= 0.8501
        assert np.ptp(offset) > 1


def test_a_ball_that_flies_up_and_down_for_ever_is_freed_at_the_ninth_hit():
    """Straight above the middle of a paddle that stays, where all bricks are gone."""
    with load("breakout").create(1, {"frameskip": 1}) as worlds:
        worlds.reset()
        saved = bytearray(worlds.save(0))
        state = np.frombuffer(saved, STATE)
        state["x"] = state["paddle"]
        state["vx"] = 0
        state["bricks"] = [15, 0, 0, 0, 0, 0, 0]
        state["standing"] = 4
        worlds.load(0, bytes(saved))
        hits, before = 0, Seen(worlds.obs)
        while hits < 9:
            worlds.step(np.array([STAY]))
            seen = Seen(worlds.obs)
            hits += int(before.vy[0] > 0 > seen.vy[0] and seen.y[0] > 100)
            assert (seen.vx[0] != 0) == (hits == 9)
            assert seen.score[0] == 0
            before = seen


def test_frameskip_is_the_length_of_a_step():
    simulator = load("breakout")
    with simulator.create(20) as four, simulator.create(20, {"frameskip": 1}) as one:
        four.reset()
        one.reset()
        for _ in range(45):  # a rounding grows some tenfold with every hit
            actions = play_well(Seen(four.obs))
            four.step(actions)
            rewards = np.zeros(20)
            for _ in range(4):
                one.step(actions)
                rewards += one.rewards
            assert (rewards == four.rewards).all()
            a, b = Seen(four.obs), Seen(one.obs)
            assert a.vx == pytest.approx(b.vx, abs=1e-3)
            assert a.x == pytest.approx(b.x, abs=0.05)
            assert a.paddle == pytest.approx(b.paddle, abs=SLACK)


def test_an_action_that_does_not_exist_is_an_error():
    worlds = load("breakout").create(1)
    worlds.reset()
    with pytest.raises(Exception, match="step returned -1"):
        worlds.play(np.array([[[3]]], np.int32))
    worlds.close()


def test_a_text_frame_shows_score_bricks_ball_and_paddle():
    with load("breakout").create(1, seeds=[1]) as worlds:
        worlds.reset()
        lines = worlds.render_text(0).splitlines()
        assert lines[0] == "score 0 of 864   ball 1 of 5   wall 1 of 2"
        assert lines[1][0] == "┌"
        assert {len(line) for line in lines[1:]} == {38}
        text = "\n".join(lines)
        assert text.count("●") == 1
        assert text.count("▀") == 4
        assert sum(text.count(brick) for brick in "█▉▓░") == 216
        column = (Seen(worlds.obs).x[0]) / 4
        assert lines[2 + 66 // 6].index("●") - 1 == int(column)


def test_a_picture_shows_every_brick_in_the_colour_of_its_points():
    with load("breakout").create(1) as worlds:
        worlds.reset()
        picture = worlds.render_rgb(0)
    assert picture.shape == (276, 288, 3)
    rows = [tuple(picture[int(2 * (BRICKS_TOP + BRICK_HEIGHT * row + 3)), 8]) for row in range(6)]
    assert rows[0] == rows[1] != rows[2] == rows[3] != rows[4] == rows[5]
