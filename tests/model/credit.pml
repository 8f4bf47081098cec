/* Credit, acting versions and the gate: no step older than ETA versions, and no stop for want of credit.
 *
 * R producers, each with a ring of N slots, a learner that grants, looks, trains batches of K slots at the
 * versions 0 .. VERSIONS - 1 and acks; producers are killed, swept, wait in back-off with their credit taken
 * back, and start again or fail for good; slots turn out torn, are set aside and freed later, which leaves
 * holes. Full-policy: block. Learner and supervisor live (delivery.pml kills those). Each access to shared
 * memory is a step, memory is sequentially consistent, sleepers have no time-out.
 *
 * Sizes: R, N, K, ETA, VERSIONS, KILLS of producers, FAILURES for good among those, TORN slots.
 * Mutants, each of which must be found: NOT_LOWERED (credit of a dead producer is not taken back),
 * LOWERED_ONCE (only at the sweep, not on every tick), QUIET_LOWERING (the learner is not rung),
 * CLEARED_AFTER_BELL (the learner's bell is looked at before acting is cleared), NO_RELOAD (of published once
 * acting is shown), ACTING_AFTER_WORDS, NO_GATE, WAITS_SHOWN (waits for room with a version shown). */

#ifndef R
#define R 2
#endif
#ifndef N
#define N 2 /* 1 or 2 */
#endif
#ifndef K
#define K 1
#endif
#ifndef ETA
#define ETA 0
#endif
#ifndef VERSIONS
#define VERSIONS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef FAILURES
#define FAILURES 1
#endif
#ifndef TORN
#define TORN 0
#endif

#define NONE 31

#define FREE 1
#define WRITING 2
#define READY 3
#define LEASED 4
#define BAD 5
#define W(sequence, state) ((sequence) * 8 + (state))
#define SEQUENCE(w) ((w) >> 3)
#define STATE(w) ((w) & 7)
#define SLOT(ring, sequence) ((ring) * N + (sequence) % N)

#define LIVE 0
#define KILLED 1
#define REAPED 2
#define SPAWNED 3
#define EXITED 4

byte word[R * N];
byte acted[R * N]; /* the slot's acting version */
byte granted[R];
byte acting[R];
byte published;
bit rung[R + 1], waiting[R + 1], asleep[R + 1]; /* R: the learner's */

byte life[R];
bit running[R]; /* as the process table says */
bit back_off[R], failed[R];
bit stop;
byte kills = KILLS, failures = FAILURES, torn = TORN;

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

/* The head from the words of a ring that is not written to: none of what others do meanwhile changes it */
#define NEXT(w) (STATE(w) == WRITING -> SEQUENCE(w) : \
    (STATE(w) == FREE -> (SEQUENCE(w) >= N -> SEQUENCE(w) - N + 1 : 0) : SEQUENCE(w) + 1))
#define FIRST(r) NEXT(word[(r) * N])
#define LAST(r) NEXT(word[(r) * N + N - 1])
#define HEAD(r) (FIRST(r) > LAST(r) -> FIRST(r) : LAST(r))

inline announce()
{
    v = published; /* A2 */
    acting[r] = v;
#ifndef NO_RELOAD
    do
    :: atomic { published == v -> v = 0 }; break
    :: atomic { published != v -> v = published }; acting[r] = v
    od
#else
    v = 0
#endif
}

proctype Producer(byte r)
{
    byte s, v;
    do
    :: {
        s = HEAD(r);
        do
        :: stop -> goto end_by_itself
        :: !stop ->
#ifdef WAITS_SHOWN
            announce();
#endif
            if
            :: s < granted[r] && word[SLOT(r, s)] == W(s, FREE)
            :: else ->
                arm(r); /* P4 */
                if /* P5 */
                :: stop -> goto end_by_itself
                :: else
                fi;
                if
                :: s < granted[r] ->
                    if
                    :: word[SLOT(r, s)] == W(s, FREE)
                    :: else -> sleep(r)
                    fi
                :: else -> sleep(r)
                fi;
                goto next
            fi;
#ifndef WAITS_SHOWN
            announce();
#endif
            acted[SLOT(r, s)] = acting[r]; /* in the header, which is read with READY only */
            word[SLOT(r, s)] = W(s, WRITING); /* P1 */
            word[SLOT(r, s)] = W(s, READY); /* P2 */
#ifdef CLEARED_AFTER_BELL
            notify(R);
            acting[r] = NONE;
#else
            acting[r] = NONE; /* A3 */
            notify(R); /* P3 */
#endif
            s++;
next:
            skip
        od
    }
#if KILLS /* where nobody is killed the search is much smaller without this */
    unless {
        life[r] == KILLED -> d_step { life[r] = REAPED; asleep[r] = 0; s = 0; v = 0 }
    }
#endif
    ;
end_waiting:
    atomic { life[r] == SPAWNED -> life[r] = LIVE }
    od;
end_by_itself:
    skip;
    d_step { s = 0; v = 0; life[r] = EXITED }
}

/* ringbuf/admission.py: which rings get how much */
inline credit()
{
    sum = 0;
    r = 0;
    do
    :: r < R ->
        out[r] = granted[r];
        i = 0;
        do
        :: i < N -> out[r] = out[r] - SEQUENCE(word[r * N + i]) / N; i++
        :: else -> break
        od;
        sum = sum + out[r];
        due[r] = 0;
        r++
    :: else -> break
    od;
    do
    :: sum < (ETA + 1) * K ->
        best = R;
        r = 0;
        do
        :: r < R ->
            if
            :: running[r] && out[r] < N && (best == R || out[r] < out[best] ||
               (out[r] == out[best] && granted[r] + due[r] < granted[best] + due[best])) -> best = r
            :: else
            fi;
            r++
        :: else -> break
        od;
        if
        :: best == R -> break
        :: else -> out[best] = out[best] + 1; due[best] = due[best] + 1; sum = sum + 1
        fi
    :: else -> break
    od;
    i = 0;
    r = 0;
    sum = 0;
    best = 0;
    do
    :: r < R -> out[r] = 0; r++
    :: else -> r = 0; break
    od
}

/* ringbuf/admission.py: the oldest ready slots fill the batch; what is outside must not be too old */
inline gate()
{
    n = 0;
    i = 0;
    do
    :: i < R * N ->
        if
        :: batch[i] -> n++
        :: else
        fi;
        i++
    :: else -> i = 0; break
    od;
    open = 1;
    do
    :: n < K ->
        best = R * N;
        i = 0;
        do
        :: i < R * N ->
            if
            :: STATE(seen[i]) == READY && !batch[i] && (best == R * N || acted[i] < acted[best] ||
               (acted[i] == acted[best] && SEQUENCE(seen[i]) < SEQUENCE(seen[best]))) -> best = i
            :: else
            fi;
            i++
        :: else -> i = 0; break
        od;
        if
        :: best == R * N -> open = 0; break
        :: else -> batch[best] = 1; n++
        fi
    :: else -> break
    od;
#ifndef NO_GATE
    d = 0;
    do
    :: d <= ETA && open ->
        sum = 0;
        r = 0;
        do
        :: r < R ->
            if
            :: shown[r] != NONE && shown[r] + ETA <= version + d -> sum++
            :: else
            fi;
            i = 0;
            do
            :: i < N ->
                if
                :: STATE(seen[r * N + i]) == READY && !batch[r * N + i] &&
                   acted[r * N + i] + ETA <= version + d -> sum++
                :: STATE(seen[r * N + i]) == WRITING && shown[r] == NONE && ETA <= d -> sum++
                :: else
                fi;
                i++
            :: else -> break
            od;
            r++
        :: else -> break
        od;
        if
        :: sum > d * K -> open = 0
        :: else
        fi;
        d++
    :: else -> break
    od;
    d = 0;
#endif
    i = 0;
    do
    :: i < R * N ->
        if
        :: !open && STATE(word[i]) != LEASED -> batch[i] = 0
        :: else
        fi;
        seen[i] = 0;
        i++
    :: else -> i = 0; break
    od;
    r = 0;
    do
    :: r < R -> shown[r] = 0; r++
    :: else -> r = 0; break
    od;
    best = 0;
    sum = 0;
    n = 0
}

proctype Learner()
{
    byte version, r, i, n, d, best, sum;
    byte out[R], due[R], shown[R], seen[R * N];
    bit batch[R * N], open;
    do
    :: version == VERSIONS -> break
    :: else ->
        arm(R); /* C4 */
        d_step { credit(); skip };
        do /* G1: granted since then, whatever has become of the producers */
        :: r < R && due[r] > 0 -> granted[r] = granted[r] + 1; due[r] = due[r] - 1; notify(r)
        :: r < R && due[r] == 0 -> r++
        :: else -> r = 0; break
        od;
        do
        :: r < R ->
#ifndef ACTING_AFTER_WORDS
            shown[r] = acting[r]; /* L1 */
#endif
            do
            :: i < N -> seen[r * N + i] = word[r * N + i]; i++ /* C5 */
            :: else -> i = 0; break
            od;
#ifdef ACTING_AFTER_WORDS
            shown[r] = acting[r];
#endif
            r++
        :: else -> r = 0; break
        od;
        skip;
        d_step { gate(); skip };
        if
        :: !open -> sleep(R)
        :: open ->
            open = 0;
            d_step { /* C1: nobody else leaves READY */
                i = 0;
                do
                :: i < R * N && batch[i] && STATE(word[i]) == READY ->
                    word[i] = W(SEQUENCE(word[i]), LEASED); i++
                :: i < R * N && !(batch[i] && STATE(word[i]) == READY) -> i++
                :: i == R * N -> i = 0; break
                od;
                skip
            };
            if
            :: torn > 0 -> /* a stamp was wrong: the others stay, the batch is filled up again */
                d_step {
                    torn--;
                    do
                    :: batch[i] -> break
                    :: else -> i++
                    od;
                    batch[i] = 0;
                    word[i] = W(SEQUENCE(word[i]), BAD); /* C7 */
                    i = 0
                }
            :: skip ->
                d_step { /* train */
                    do
                    :: i < R * N && batch[i] -> assert(version <= acted[i] + ETA); i++
                    :: i < R * N && !batch[i] -> i++
                    :: i == R * N -> i = 0; break
                    od;
                    skip
                };
                version++;
                published = version; /* W1 */
                do
                :: i < R * N && batch[i] ->
                    d_step { word[i] = W(SEQUENCE(word[i]) + N, FREE); batch[i] = 0 }; /* C3 */
                    r = i / N;
                    notify(r);
                    r = 0;
                    i++
                :: i < R * N && !batch[i] -> i++
                :: i == R * N -> i = 0; break
                od
            fi
        fi
    od;
    stop = 1; /* F1 */
    do
    :: r < R -> ring(r); r++
    :: else -> r = 0; break
    od;
    version = 0
}

inline lower(r)
{
    granted[r] = HEAD(r); /* G1: a CAS that is tried again */
#ifndef QUIET_LOWERING
    ring(r);
    ring(R)
#endif
}

inline sweep(r)
{
    running[r] = 0;
    back_off[r] = 1;
    do
    :: i < N ->
        d_step { /* S1 */
            if
            :: STATE(word[r * N + i]) == WRITING -> word[r * N + i] = W(SEQUENCE(word[r * N + i]), FREE)
            :: else
            fi;
            i++
        }
    :: else -> i = 0; break
    od;
    acting[r] = NONE; /* A3 */
    ring(r);
    ring(R)
#ifdef LOWERED_ONCE
    ;
    if
    :: granted[r] > HEAD(r) -> lower(r)
    :: else
    fi
#endif
}

/* What the supervisor may have to do for ring r */
#if defined(NOT_LOWERED) || defined(LOWERED_ONCE)
#define TICK(r) false
#else
#define TICK(r) (back_off[r] && granted[r] > HEAD(r))
#endif
#define SET_ASIDE(i) (STATE(word[i]) == BAD)

inline start_again(r)
{
    d_step { back_off[r] = 0; running[r] = 1; life[r] = SPAWNED };
    ring(R)
}

inline free_bad(i)
{
    word[i] = W(SEQUENCE(word[i]) + N, FREE);
    ring((i) / N);
    ring(R)
}

#define WORK(r) \
    :: life[r] == REAPED && running[r] -> sweep(r) \
    :: TICK(r) -> lower(r) \
    :: back_off[r] && !failed[r] -> start_again(r) \
    :: atomic { back_off[r] && !failed[r] && failures > 0 -> failures--; failed[r] = 1 } \
    :: SET_ASIDE((r) * N) -> free_bad((r) * N) \
    :: SET_ASIDE((r) * N + N - 1) -> free_bad((r) * N + N - 1)

proctype Supervisor()
{
    byte i;
end:
    do
    WORK(0)
#if R == 2
    WORK(1)
#endif
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
    od
}

init
{
    byte r, i;
    atomic {
        do
        :: r < R ->
            running[r] = 1;
            acting[r] = NONE;
            do
            :: i < N -> word[r * N + i] = W(i, FREE); i++
            :: else -> i = 0; break
            od;
            run Producer(r);
            r++
        :: else -> r = 0; break
        od;
        run Learner();
        run Supervisor();
        run Killer()
    }
}
