/* Requests and answers between producers and an inference server: every committed slot is acted whole, by one life
 * of the server, with the agents' own recurrent state and weights that are new enough; nobody sleeps for ever.
 *
 * R producers with G groups of agents and one slot each write ITEMS slots of T steps. A group's request is a number
 * and fields that are good only while the number stands; the server takes what is new, answers by writing into the
 * slot and then stores the number. Producers and server are killed anywhere, reaped, swept, started again. A learner
 * publishes VERSIONS versions at any time and checks each slot that is ready. The supervisor lives. Each access to
 * shared memory is a step, memory is sequentially consistent, sleepers have no time-out.
 *
 * Sizes: R, G, T, ITEMS, VERSIONS, KILLS of producers, DEATHS of servers, REFUSALS (the weights asked for are gone),
 * STOPS (0 or 1: a stop at any time; EXACT: the slot under way is finished nevertheless). WHOLE: a question is
 * written in one step, read in one step, and its rows are written in two, for cases that are too large otherwise; what
 * may happen in between, between one producer and the server, is searched with R = 1. With one slot and one version
 * the learner has nothing to do, and is left out.
 * Mutants, each of which must be found: NO_SERVER_BELL (a request rings nobody), NO_ANSWER_BELL, NO_SECOND_LOOK (of
 * the producer before it sleeps), SERVER_NO_SECOND_LOOK, QUIET_SWEEP (of a dead server), HALF_SWEEP (which rings the
 * first producer alone), QUIET_PRODUCER_SWEEP, LIFE_NOT_COMPARED (a server answers what another life of it was
 * asked), LATE_SWEEP (it starts before it is swept for), EPOCH_NOT_COMPARED (the state of a dead producer's agents
 * goes on), ANSWER_FIRST (stored before the rows), OLD_WEIGHTS, FIELDS_NOT_CHECKED (whether they changed while they
 * were read), NOT_AWAITED (a slot is given up while a request is out). */

#ifndef R
#define R 1
#endif
#ifndef G
#define G 2
#endif
#ifndef T
#define T 2
#endif
#ifndef ITEMS
#define ITEMS 1
#endif
#ifndef VERSIONS
#define VERSIONS 1
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef REFUSALS
#define REFUSALS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif

#define N (R * G)
#define ROW(x, t) ((x) * T + (t))

#define FREE 0
#define WRITING 1
#define READY 2

#define LIVE 0
#define KILLED 1
#define REAPED 2
#define SPAWNED 3
#define EXITED 4

#define REFUSED 128

/* Requests: odd while the fields are written */
byte request[N], asked_life[N], asked_epoch[N], asked_t[N], asked_version[N];
byte answer[N]; /* the number, + REFUSED */

/* The slots: what the server writes of each row, and what the producer knows that it should be */
byte slot[R], acted_by[N * T], acted_with[N * T], state[N * T];
byte attempt[N * T]; /* of the producer to write a slot, as the row's request had it: for assertions only */
byte attempts[R], asked_attempt[N];

byte server_life, epoch[R]; /* the supervisor's: raised in the sweep */
byte published;

bit rung[R + 1], waiting[R + 1], asleep[R + 1]; /* R: the server's */
byte life[R + 1];
byte written[R];
bit stop, gone;
byte kills = KILLS, deaths = DEATHS, refusals = REFUSALS;

inline ring(b)
{
    rung[b] = 1;
    asleep[b] = 0
}

inline notify(b)
{
    if
    :: waiting[b] ->
        if
        :: d_step { waiting[b] -> waiting[b] = 0 }; ring(b)
        :: else
        fi
    :: else
    fi
}

inline arm(b)
{
    rung[b] = 0;
    waiting[b] = 1
}

inline sleep(b)
{
    d_step {
        if
        :: rung[b]
        :: else -> asleep[b] = 1
        fi
    };
    !asleep[b]
}

inline ask(x, g)
{
#ifdef WHOLE
    d_step {
        asked_epoch[x] = epoch[r]; asked_version[x] = v; asked_attempt[x] = mine; asked_life[x] = l; asked_t[x] = t[g];
        request[x] = (request[x] | 1) + 1
    };
#else
    request[x] = request[x] | 1; /* V0 */
    d_step { asked_epoch[x] = epoch[r]; asked_version[x] = v; asked_attempt[x] = mine };
    d_step { asked_life[x] = l; asked_t[x] = t[g] };
    request[x] = request[x] + 1; /* V1 */
#endif
#ifndef NO_SERVER_BELL
    notify(R) /* V3 */
#endif
}

#ifdef EXACT
#define STOPPED false
#else
#define STOPPED stop
#endif

proctype Producer(byte r)
{
    byte g, l, v, mine, left, refused, last;
    byte t[G], known[G]; /* steps of this slot; steps since the state was zero, before this slot */
    do
    :: {
        last = 255;
next:
        do
        :: written[r] == ITEMS || stop -> goto end_by_itself
        :: else ->
            if
            :: slot[r] == FREE
            :: else ->
                arm(r);
                if
                :: slot[r] == FREE || stop
                :: else -> sleep(r)
                fi;
                goto next
            fi;
            v = published; /* A2 */
            slot[r] = WRITING; /* P1 */
            l = server_life; /* V6 */
            d_step {
                attempts[r]++;
                mine = attempts[r];
                g = 0;
                do
                :: g < G ->
                    t[g] = 0;
                    if
                    :: l != last -> known[g] = 0
                    :: else
                    fi;
                    g++
                :: else -> break
                od;
                last = l;
                left = G;
                refused = 0;
                g = 0
            };
            skip;
            do
            :: g < G -> ask(r * G + g, g); g++
            :: else -> g = 0; break
            od;
            do
            :: left == 0 -> break
            :: left > 0 && t[g] == T -> g = (g + 1) % G
            :: left > 0 && t[g] < T ->
                do
                :: (answer[r * G + g] & 127) == request[r * G + g] -> break /* V2 */
                :: else ->
                    if
                    :: server_life != l -> goto give_up /* V6 */
                    :: STOPPED -> goto give_up
                    :: else
                    fi;
                    arm(r); /* V4 */
                    if /* V5 */
#ifndef NO_SECOND_LOOK
                    :: (answer[r * G + g] & 127) == request[r * G + g] || server_life != l || STOPPED
#endif
                    :: else -> sleep(r)
                    fi
                od;
                if
                :: refused > 0 || answer[r * G + g] >= REFUSED ->
                    d_step {
                        if
                        :: answer[r * G + g] < REFUSED -> t[g] = t[g] + 1 /* stepped nevertheless */
                        :: else
                        fi;
                        refused++;
                        g = (g + 1) % G
                    };
#ifdef NOT_AWAITED
                    goto give_up
#endif
                    if /* the other group's request must be answered before its fields are written again */
                    :: refused == G || t[g] == T -> goto give_up
                    :: else -> skip
                    fi
                :: else ->
                    t[g] = t[g] + 1; /* the simulator: reads the row's action */
                    assert(acted_by[ROW(r * G + g, t[g] - 1)] == l);
                    if
                    :: t[g] < T -> ask(r * G + g, g)
                    :: else -> left--
                    fi;
                    g = (g + 1) % G
                fi
            od;
            skip;
            d_step {
                g = 0;
                do
                :: g < G ->
                    left = 0;
                    do
                    :: left < T ->
                        assert(attempt[ROW(r * G + g, left)] == mine);
                        assert(acted_by[ROW(r * G + g, left)] == l);
                        assert(acted_with[ROW(r * G + g, left)] >= v);
                        assert(state[ROW(r * G + g, left)] == known[g] + left);
                        attempt[ROW(r * G + g, left)] = 0;
                        acted_by[ROW(r * G + g, left)] = 0;
                        acted_with[ROW(r * G + g, left)] = 0;
                        state[ROW(r * G + g, left)] = 0;
                        left++
                    :: else -> left = 0; break
                    od;
                    known[g] = known[g] + T;
                    t[g] = 0;
                    g++
                :: else -> g = 0; break
                od;
                skip
            };
            written[r] = written[r] + 1; /* as the slot's sequence tells in C */
            slot[r] = READY; /* P2 */
            d_step { mine = 0; v = 0; l = 0 };
            goto next;
give_up:
            slot[r] = FREE; /* P7 */
            d_step {
                g = 0;
                do
                :: g < G -> known[g] = known[g] + t[g]; t[g] = 0; g++
                :: else -> g = 0; break
                od;
                refused = 0;
                left = 0
            };
            skip
        od
    }
#if KILLS
    unless {
        life[r] == KILLED -> d_step {
            life[r] = REAPED; asleep[r] = 0;
            g = 0;
            do
            :: g < G -> t[g] = 0; known[g] = 0; g++
            :: else -> g = 0; break
            od;
            l = 0; v = 0; mine = 0; left = 0; refused = 0; last = 0
        }
    }
#endif
    ;
end_waiting:
    atomic { life[r] == SPAWNED -> life[r] = LIVE }
    od;
end_by_itself:
    atomic {
        life[r] = EXITED; last = 0; v = 0; mine = 0; l = 0; left = 0; refused = 0;
        g = 0;
        do
        :: g < G -> t[g] = 0; known[g] = 0; g++
        :: else -> g = 0; break
        od
    }
}

#define NEW(x) ((request[x] & 1) == 0 && request[x] != (answer[x] & 127))
#ifdef LIFE_NOT_COMPARED
#define MINE(x) true
#else
#define MINE(x) (asked_life[x] == own)
#endif

proctype Server()
{
    byte own, have, x;
    byte number[N], is_epoch[N], is_t[N], is_version[N], is_attempt[N];
    byte seen[N], steps[N]; /* the producer's life and the recurrent state of the group's agents */
    bit any;
    do
    :: {
        own = server_life; /* V6 */
        have = published;
        do
        :: gone -> goto end_by_itself
        :: else ->
#ifndef SERVER_NO_SECOND_LOOK
            arm(R); /* V4 */
#endif
            do
            :: x < N ->
#ifdef WHOLE
                d_step {
                    number[x] = request[x]; /* V1 */
                    if
                    :: NEW(x) && MINE(x) ->
                        any = 1;
                        is_epoch[x] = asked_epoch[x]; is_version[x] = asked_version[x];
                        is_attempt[x] = asked_attempt[x]; is_t[x] = asked_t[x]
                    :: else -> number[x] = 1
                    fi
                };
#else
                number[x] = request[x]; /* V1 */
                if
                :: (number[x] & 1) == 0 && number[x] != (answer[x] & 127) ->
                    if
                    :: MINE(x) ->
                        d_step {
                            is_epoch[x] = asked_epoch[x];
                            is_version[x] = asked_version[x]; is_attempt[x] = asked_attempt[x]
                        };
                        is_t[x] = asked_t[x];
#ifndef FIELDS_NOT_CHECKED
                        if
                        :: request[x] != number[x] -> number[x] = 1
                        :: else -> any = 1
                        fi
#else
                        any = 1
#endif
                    :: else -> number[x] = 1
                    fi
                :: else -> number[x] = 1
                fi;
#endif
                x++
            :: else -> x = 0; break
            od;
            if
            :: !any && !gone ->
#ifdef SERVER_NO_SECOND_LOOK
                arm(R);
#endif
                sleep(R)
            :: else
            fi;
            any = 0;
            do
            :: x < N && number[x] == 1 -> x++
            :: x < N && number[x] != 1 ->
                d_step {
                    if
#ifndef EPOCH_NOT_COMPARED
                    :: seen[x] != is_epoch[x] + 1 -> steps[x] = 0
#endif
                    :: else
                    fi;
                    seen[x] = is_epoch[x] + 1
                };
#ifndef OLD_WEIGHTS
                if
                :: have < is_version[x] -> have = published
                :: else
                fi;
#endif
                if
                :: refusals > 0 -> refusals--; answer[x] = number[x] | REFUSED
                :: true ->
#ifdef ANSWER_FIRST
                    answer[x] = number[x];
#endif
                    d_step {
                        acted_by[ROW(x, is_t[x])] = own;
                        acted_with[ROW(x, is_t[x])] = have;
                        attempt[ROW(x, is_t[x])] = is_attempt[x];
#ifdef WHOLE
                    };
                    d_step {
                        state[ROW(x, is_t[x])] = steps[x];
                        steps[x] = steps[x] + 1
                    };
#else
                    };
                    state[ROW(x, is_t[x])] = steps[x];
                    steps[x] = steps[x] + 1;
#endif
#ifndef ANSWER_FIRST
                    answer[x] = number[x] /* V2 */
#endif
                fi;
                d_step { number[x] = 1; is_epoch[x] = 0; is_t[x] = 0; is_version[x] = 0; is_attempt[x] = 0 };
#ifndef NO_ANSWER_BELL
                notify(x / G); /* V3 */
#endif
                x++
            :: else -> x = 0; break
            od
        od
    }
#if DEATHS
    unless {
        life[R] == KILLED -> d_step {
            life[R] = REAPED; asleep[R] = 0;
            x = 0;
            do
            :: x < N ->
                number[x] = 0; is_epoch[x] = 0; is_t[x] = 0; is_version[x] = 0; is_attempt[x] = 0;
                seen[x] = 0; steps[x] = 0; x++
            :: else -> x = 0; break
            od;
            own = 0; have = 0; any = 0
        }
    }
#endif
    ;
end_waiting:
    atomic { life[R] == SPAWNED -> life[R] = LIVE }
    od;
end_by_itself:
    life[R] = EXITED
}

#if ITEMS > 1 || VERSIONS > 0
#define LEARNER
#endif
#ifdef LEARNER
proctype Learner()
{
    byte r;
end:
    do
    :: published < VERSIONS -> published = published + 1 /* W1 */
    :: slot[0] == READY -> slot[0] = FREE; notify(0) /* C3 */
#if R == 2
    :: slot[1] == READY -> slot[1] = FREE; notify(1)
#endif
    od
}

#endif

#ifdef HALF_SWEEP
#define RUNG_BY_SWEEP 1
#else
#define RUNG_BY_SWEEP R
#endif

inline sweep_server()
{
    server_life++; /* V6 */
#ifndef QUIET_SWEEP
    r = 0;
    do
    :: r < RUNG_BY_SWEEP -> ring(r); r++
    :: else -> r = 0; break
    od
#endif
}

/* It may have taken the flag of a server that it did not wake any more. */
#ifdef QUIET_PRODUCER_SWEEP
#define RING_SERVER skip
#else
#define RING_SERVER ring(R)
#endif

#define PRODUCER(r) \
    :: life[r] == REAPED -> \
        atomic { \
            if \
            :: slot[r] == WRITING -> slot[r] = FREE \
            :: else \
            fi \
        }; \
        epoch[r] = epoch[r] + 1; \
        ring(r); \
        RING_SERVER; \
        life[r] = SPAWNED

proctype Supervisor()
{
    byte r;
end:
    do
    PRODUCER(0)
#if R == 2
    PRODUCER(1)
#endif
    :: life[R] == REAPED ->
#ifdef LATE_SWEEP
        life[R] = SPAWNED;
        sweep_server()
#else
        sweep_server();
        life[R] = SPAWNED
#endif
    :: STOPS && !stop ->
        stop = 1; /* F1 */
        do
        :: r < R -> ring(r); r++
        :: else -> r = 0; break
        od;
        ring(R)
    :: life[0] == EXITED && life[R - 1] == EXITED && !gone -> gone = 1; ring(R) /* F2 */
    od
}

proctype Killer()
{
end:
    do
    :: atomic { kills > 0 && life[0] == LIVE -> kills--; life[0] = KILLED }
#if R == 2
    :: atomic { kills > 0 && life[1] == LIVE -> kills--; life[1] = KILLED }
#endif
    :: atomic { deaths > 0 && life[R] == LIVE -> deaths--; life[R] = KILLED }
    od
}

init
{
    byte r;
    atomic {
        do
        :: r < R -> run Producer(r); r++
        :: else -> r = 0; break
        od;
        run Server();
#ifdef LEARNER
        run Learner();
#endif
        run Supervisor();
        run Killer()
    }
}
