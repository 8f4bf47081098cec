/* The ring's words, head, bells and counts under SIGKILL at any step.
 *
 * One producer, one or two learners of whom one owns the ring, a killer, and a supervisor that sweeps and
 * starts again whom it has reaped. Every access to shared memory is a step of its own, compare-and-swap
 * included; memory is sequentially consistent. Sleeping is the kernel's: compare, then sleep until woken, and
 * no time-out ever comes to the rescue. A bell's counter is one bit here, "rung since the waiter read it",
 * since each bell has one waiter.
 *
 * Policies: BLOCK (default), DROP_NEWEST, DROP_OLDEST. Sizes: N slots, ITEMS sequences, KILLS,
 * LEARNERS, SUPERVISOR_DEATHS (its children die with it, the next one begins its sweep again).
 * Mutants, each of which must be found: NO_BELLS (a sweep rings nobody), HEAD_WITHOUT_FREE, HEAD_WITHOUT_HINT
 * (rebuilt without what FREE words, or the stored head, tell), COUNT_IN_PLACE, EARLY_COUNT (counts without an
 * intent), SETTLE_ADDS (a sweep that is not idempotent), NO_SECOND_LOOK (sleep without looking again),
 * LATE_LOOK (the last look at the words before the look at the flag that nothing more comes), BELL_COUNT
 * (waiters counted instead of flagged).
 * What this cannot show: what weaker memory does, e.g. a relaxed ack (gcc's race detector does that). */

#ifndef N
#define N 2
#endif
#ifndef ITEMS
#define ITEMS 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef LEARNERS
#define LEARNERS 1
#endif
#ifndef SUPERVISOR_DEATHS
#define SUPERVISOR_DEATHS 1
#endif

#define NONE 31 /* of a sequence */
#define TORN 30 /* payload being written */

#define FREE 1
#define WRITING 2
#define READY 3
#define LEASED 4 /* + the learner's number */
#define W(sequence, state) ((sequence) * 8 + (state))
#define SEQUENCE(w) ((w) >> 3)
#define STATE(w) ((w) & 7)

#define LIVE 0
#define KILLED 1 /* takes no further step */
#define REAPED 2
#define SPAWNED 3 /* not yet under way: a death before the first step changes nothing */

byte word[N];
byte data[N];
byte head;
byte owner = 1;
bit rung[LEARNERS + 1], asleep[LEARNERS + 1]; /* 0: the ring's bell */
#ifdef BELL_COUNT
byte waiting[LEARNERS + 1];
#else
bit waiting[LEARNERS + 1];
#endif

byte life[LEARNERS + 1]; /* 0: the producer */
bit exited;              /* the producer, by itself */
bit gone;                /* the run's flag that says so, after the sweep */
byte ended;              /* learners that ended by themselves, bit by bit */
byte kills = KILLS;
byte supervisor_deaths = SUPERVISOR_DEATHS;
bit supervisor_killed;

byte consumed, overwritten, passed_over;
byte learner_before, learner_intent = NONE;
byte producer_before, producer_intent = NONE;
bit producer_passes; /* the intent's cause: passing over, else overwriting */

byte acked; /* the observer's: sequences given back, bit by bit */

inline ring(b)
{
    rung[b] = 1;
    asleep[b] = 0
}

/* P3, C6: look, take the flag, ring */
inline notify(b)
{
    if
#ifdef BELL_COUNT
    :: waiting[b] -> ring(b)
#else
    :: waiting[b] ->
        if
        :: d_step { waiting[b] -> waiting[b] = 0 }; ring(b)
        :: else
        fi
#endif
    :: else
    fi
}

inline arm(b)
{
    rung[b] = 0;
#ifdef BELL_COUNT
    d_step { waiting[b]++; assert(waiting[b] == 1) } /* nobody is counted who does not wait */
#else
    waiting[b] = 1
#endif
}

/* A count has to be taken back by whoever waited; a flag has not. */
inline disarm(b)
{
#ifdef BELL_COUNT
    waiting[b]--
#else
    skip
#endif
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

/* docs/architecture.md: the head from the words */
inline next_of(w, next)
{
    d_step {
        if
        :: STATE(w) == WRITING -> next = (SEQUENCE(w) > next -> SEQUENCE(w) : next)
        :: STATE(w) == FREE ->
#ifndef HEAD_WITHOUT_FREE
            next = (SEQUENCE(w) + 1 > next + N -> SEQUENCE(w) + 1 - N : next)
#endif
        :: else -> next = (SEQUENCE(w) + 1 > next -> SEQUENCE(w) + 1 : next)
        fi;
        w = 0
    }
}

inline rebuild(next, i, w)
{
#if (defined(DROP_NEWEST) || defined(DROP_OLDEST)) && !defined(HEAD_WITHOUT_HINT)
    next = head;
#else
    next = 0;
#endif
    i = 0;
    do
    :: i < N -> w = word[i]; next_of(w, next); i++
    :: else -> i = 0; break
    od
}

#if defined(DROP_NEWEST) || defined(DROP_OLDEST)
#define CLAIMABLE(w, s) (STATE(w) == FREE && SEQUENCE(w) <= s)
#else
#define CLAIMABLE(w, s) (w == W(s, FREE))
#endif

proctype Producer()
{
    byte s, w, i;
    do
    :: {
        rebuild(s, i, w);
        do
        :: s == ITEMS -> exited = 1; goto end_by_itself
        :: else ->
            w = word[s % N]; /* P5 */
            if
            :: CLAIMABLE(w, s) ->
                w = 0;
                word[s % N] = W(s, WRITING); /* P1: nobody else leaves FREE */
#ifdef DROP_OLDEST
            :: STATE(w) == READY && SEQUENCE(w) < s ->
                d_step { producer_before = overwritten; producer_passes = 0 };
                producer_intent = SEQUENCE(w);
                if
                :: d_step { word[s % N] == w -> word[s % N] = W(s, WRITING); w = 0 }; /* P1 */
#ifdef COUNT_IN_PLACE
                    producer_intent = NONE;
#endif
                    overwritten = producer_before + 1;
                    producer_intent = NONE
                :: else -> w = 0; producer_intent = NONE; goto next /* a lease won */
                fi
#endif
#if defined(DROP_NEWEST) || defined(DROP_OLDEST)
            :: else ->
                w = 0;
                d_step { producer_before = passed_over; producer_passes = 1 };
                producer_intent = s;
                head = s + 1; /* P6 */
                s++;
                passed_over = producer_before + 1;
                producer_intent = NONE;
                goto next
#else
            :: else ->
                w = 0;
                arm(0); /* P4 */
#ifndef NO_SECOND_LOOK
                if
                :: word[s % N] == W(s, FREE) /* P5 */
                :: else -> sleep(0)
                fi;
#else
                sleep(0);
#endif
                disarm(0);
                goto next
#endif
            fi;
            data[s % N] = TORN;
            data[s % N] = s;
            word[s % N] = W(s, READY); /* P2 */
            w = owner; /* O1 */
            notify(w); /* P3 */
            w = 0;
            head = s + 1; /* P6 */
            s++;
next:
            skip
        od
    } unless {
        life[0] == KILLED -> d_step { life[0] = REAPED; asleep[0] = 0; s = 0; w = 0; i = 0 }
    };
    atomic { life[0] == SPAWNED -> life[0] = LIVE }
    od;
end_by_itself:
    skip;
    d_step { s = 0; w = 0; i = 0 }
}

proctype Learner(byte me)
{
    byte s = NONE, i;
    bit last;
    do
    :: {
        do
        :: arm(me); /* C4 */
            last = gone; /* F2, before the words */
#ifdef LATE_LOOK
            last = 0;
#endif
            i = 0;
            do
            :: i < N && s == NONE ->
                d_step {
                    if
                    :: owner == me && STATE(word[i]) == READY -> /* C1 */
                        s = SEQUENCE(word[i]);
                        word[i] = W(s, LEASED + me);
                        i = 0
                    :: else -> i++
                    fi
                }
            :: else -> i = 0; break
            od;
            if
            :: s != NONE ->
                disarm(me);
                assert(data[s % N] == s);
#ifdef EARLY_COUNT
                consumed++;
#else
                learner_before = consumed;
                learner_intent = s;
#endif
                assert(data[s % N] == s); /* still, at the end of our reading */
                d_step { /* C3 */
                    assert(word[s % N] == W(s, LEASED + me));
                    assert(!(acked >> s & 1));
                    acked = acked | 1 << s;
                    word[s % N] = W(s + N, FREE)
                };
#ifndef EARLY_COUNT
                consumed = learner_before + 1;
                learner_intent = NONE;
#endif
                s = NONE;
                notify(0) /* C6 */
            :: s == NONE && last -> d_step { ended = ended | 1 << me; last = 0 }; goto end_by_itself
            :: s == NONE && !last ->
#ifdef LATE_LOOK
                if
                :: gone -> last = 0; ended = ended | 1 << me; goto end_by_itself
                :: else
                fi;
#endif
                sleep(me);
                disarm(me)
            fi
        od
    } unless {
        life[me] == KILLED -> d_step { life[me] = REAPED; asleep[me] = 0; s = NONE; i = 0; last = 0 }
    };
    atomic { life[me] == SPAWNED -> life[me] = LIVE }
    od;
end_by_itself:
    skip
}

inline ring_all(i)
{
#ifdef NO_BELLS
    skip
#else
    i = owner;
    ring(0);
    ring(i);
    i = 0
#endif
}

#ifdef SETTLE_ADDS
#define SETTLED(count, before) (count)
#else
#define SETTLED(count, before) (before)
#endif

inline sweep_producer()
{
    d_step { /* settle, from the words as the dead one left them */
        if
        :: producer_intent != NONE && producer_passes ->
            passed_over = SETTLED(passed_over, producer_before) + (head > producer_intent -> 1 : 0)
        :: producer_intent != NONE && !producer_passes ->
            w = word[producer_intent % N];
            overwritten = SETTLED(overwritten, producer_before) +
                (STATE(w) == WRITING && SEQUENCE(w) > producer_intent -> 1 : 0);
            w = 0
        :: else
        fi
    };
    producer_intent = NONE;
    i = 0;
    do
    :: i < N ->
        d_step { /* S1 */
            if
            :: STATE(word[i]) == WRITING -> word[i] = W(SEQUENCE(word[i]), FREE)
            :: else
            fi;
            i++
        }
    :: else -> i = 0; break
    od;
    rebuild(h, i, w);
    head = h;
    h = 0;
    ring_all(i)
}

inline sweep_learner(l)
{
    d_step {
        if
        :: learner_intent != NONE ->
            consumed = SETTLED(consumed, learner_before) +
                (SEQUENCE(word[learner_intent % N]) > learner_intent -> 1 : 0)
        :: else
        fi
    };
    learner_intent = NONE;
    i = 0;
    do
    :: i < N ->
        d_step { /* S1 */
            if
            :: STATE(word[i]) == LEASED + l -> word[i] = W(SEQUENCE(word[i]), READY)
            :: else
            fi;
            i++
        }
    :: else -> i = 0; break
    od;
#if LEARNERS == 2
    if /* O1: the ring goes to the one that starts anew, or to the other, unless that may be ending */
    :: owner == l && !gone -> owner = 3 - l
    :: skip
    fi;
#endif
    ring_all(i)
}

proctype Supervisor()
{
    byte i, w, h;
    do
    :: {
        do
        :: life[0] == REAPED -> sweep_producer(); life[0] = SPAWNED
        :: life[1] == REAPED -> sweep_learner(1); life[1] = SPAWNED
#if LEARNERS == 2
        :: life[2] == REAPED -> sweep_learner(2); life[2] = SPAWNED
#endif
        :: exited && !gone -> /* swept as well, whatever its end */
            sweep_producer();
            gone = 1;
            ring(1);
#if LEARNERS == 2
            ring(2)
#endif
        :: ended == (LEARNERS == 2 -> 6 : 2) -> goto over
        od
    } unless {
        supervisor_killed -> d_step { supervisor_killed = 0; i = 0; w = 0; h = 0 }
    }
    od;
over:
    skip;
    d_step {
        assert(head == ITEMS);
        assert(consumed + overwritten + passed_over == ITEMS);
        i = 0;
        do
        :: i < ITEMS -> h = h + (acked >> i & 1); i++
        :: else -> break
        od;
        assert(h == consumed);
        i = 0;
        do
        :: i < N -> assert(STATE(word[i]) == FREE); i++
        :: else -> break
        od
    }
}

/* With the supervisor */
inline dies_too(p)
{
    if
    :: life[p] == LIVE && !(p == 0 -> exited : ended >> p & 1) -> life[p] = KILLED
    :: life[p] == SPAWNED -> life[p] = REAPED
    :: else
    fi
}

proctype Killer()
{
end:
    do
    :: atomic { kills > 0 && life[0] == LIVE && !exited -> kills--; life[0] = KILLED }
    :: atomic { kills > 0 && life[1] == LIVE && !(ended >> 1 & 1) -> kills--; life[1] = KILLED }
#if LEARNERS == 2
    :: atomic { kills > 0 && life[2] == LIVE && !(ended >> 2 & 1) -> kills--; life[2] = KILLED }
#endif
    :: atomic { supervisor_deaths > 0 -> supervisor_deaths--; supervisor_killed = 1; dies_too(0); dies_too(1);
#if LEARNERS == 2
        dies_too(2)
#endif
    }
    od
}

init
{
    byte i;
    atomic {
        do
        :: i < N -> word[i] = W(i, FREE); i++
        :: else -> i = 0; break
        od;
        run Producer();
        run Learner(1);
#if LEARNERS == 2
        run Learner(2);
#endif
        run Supervisor();
        run Killer()
    }
}
