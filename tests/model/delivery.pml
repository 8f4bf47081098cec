/* Each slot is trained exactly once, or dropped and counted, whatever learners and supervisors die of.
 *
 * A learner that leases batches of K slots, trains, publishes a version with its list, acks; that examines a
 * slot at its third delivery alone; that starts from the hot snapshot; that may fall back to a checkpoint and
 * then publishes a floor. A supervisor that sweeps, frees what was set aside, and may itself be killed at any
 * step, whereupon its children die and the next one begins its sweep again. The producer lives (transport.pml
 * kills it) and sleepers are busy here (so is that). Full-policy: block. Memory is sequentially consistent.
 *
 * Sizes: ITEMS sequences, K slots a batch, DEATHS of the learner, SUPERVISOR_DEATHS, ROLLBACKS; with
 * POISON the slot of sequence 0 kills whoever trains on it.
 * Mutants, each of which must be found: ACK_BEFORE_PUBLISH, LIST_AFTER_WORDS (the sweep knows the published
 * list only when it has given the words back), EXAMINED_NOT_KEPT (a survived examination leaves the word as
 * it was), NOT_ALONE (examined with the whole batch leased), FLOOR_NOT_KEPT (a restarted learner forgets the
 * floor), COUNT_IN_PLACE and LATE_SETTLE (a sweep that is not idempotent: counts without an intent, or
 * settles after the words were swapped). */

#define N 2 /* slots */
#ifndef ITEMS
#define ITEMS 3
#endif
#ifndef K
#define K 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef SUPERVISOR_DEATHS
#define SUPERVISOR_DEATHS 1
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0
#endif

#define NONE 31

#define FREE 1
#define WRITING 2
#define READY 3
#define LEASED 4
#define BAD 5
#define W(sequence, deliveries, state) ((sequence) * 32 + (deliveries) * 8 + (state))
#define SEQUENCE(w) ((w) >> 5)
#define DELIVERIES(w) ((w) >> 3 & 3)
#define STATE(w) ((w) & 7)
#define HAS(set, i) ((set) >> (i) & 1)

#define LIVE 0
#define KILLED 1
#define REAPED 2
#define SPAWNED 3

byte word[N];
byte acted[N]; /* the slot's acting version */

/* The weights channel: two buffers, of which the one being written is nobody's to read */
byte published;
byte list[2];  /* sequences that made the version, bit by bit */
byte hot[2];   /* the snapshot: all sequences in the weights */
byte floor[2];

/* Counts and intents */
#define CONSUMED 0
#define ROLLED_BACK 1
#define SHUT_DOWN 2
#define SET_ASIDE 3
#define REDELIVERED 4
byte count[5];
byte before[2], cause[2], intent[2]; /* 0: the learner's, 1: the supervisor's */

byte life;            /* the learner's */
byte supervisor_life;
bit all_written, ended;
byte deaths = DEATHS, supervisor_deaths = SUPERVISOR_DEATHS, rollbacks = ROLLBACKS;

/* The observer's */
byte on_lists;          /* sequences on any published list */
byte examining = NONE;  /* sequence */

inline begin(writer, why, sequence)
{
    d_step { before[writer] = count[why]; cause[writer] = why };
    intent[writer] = sequence
}

inline done(writer)
{
    count[cause[writer]] = before[writer] + 1;
    intent[writer] = NONE
}

proctype Producer()
{
    byte s;
    do
    :: s == ITEMS -> all_written = 1; break
    :: s < ITEMS && word[s % N] == W(s, 0, FREE) ->
        d_step { acted[s % N] = published; word[s % N] = W(s, 0, WRITING) };
        d_step { word[s % N] = W(s, 0, READY); s++ }
    od;
    s = 0
}

inline give_back(i, why)
{
    begin(0, why, SEQUENCE(word[i]));
    word[i] = W(SEQUENCE(word[i]) + N, 0, FREE); /* C3 */
    done(0)
}

/* C1; a slot at its third delivery is examined alone: forward and backward, no step */
inline lease(i)
{
    d_step {
        assert(STATE(word[i]) == READY);
        word[i] = word[i] + 8 + (LEASED - READY);
        if
        :: DELIVERIES(word[i]) == 3 -> examining = SEQUENCE(word[i])
        :: else
        fi
    }
}

inline examine(i)
{
#ifdef POISON
    if
    :: SEQUENCE(word[i]) == 0 -> life = KILLED
    :: else
    fi;
#endif
    d_step { /* C8 */
        examining = NONE;
#ifndef EXAMINED_NOT_KEPT
        word[i] = W(SEQUENCE(word[i]), 1, LEASED)
#endif
    }
}

inline publish(made_of, in_weights, least)
{
    list[(v + 1) % 2] = made_of;
    hot[(v + 1) % 2] = in_weights;
    floor[(v + 1) % 2] = least;
    d_step {
        assert((on_lists & made_of) == 0);
        on_lists = on_lists | made_of;
        published = v + 1; /* W1 */
        v = v + 1
    }
}

inline ack_all()
{
    i = 0;
    do
    :: i < N && STATE(word[i]) == LEASED -> give_back(i, CONSUMED); i++
    :: i < N && STATE(word[i]) != LEASED -> i++
    :: i == N -> i = 0; break
    od
}

proctype Learner()
{
    byte i, v, weights, least, wanted, n, sequences;
    bit last;
    do
    :: {
        v = published; /* the hot snapshot */
        weights = hot[v % 2];
        least = floor[v % 2];
#ifdef FLOOR_NOT_KEPT
        least = 0;
#endif
        do
#if ROLLBACKS
        :: rollbacks > 0 -> rollbacks--;
            publish(0, 0, v + 1);
            d_step { weights = 0; least = v }
#endif
        :: last = all_written; /* before the words */
            d_step { i = 0; n = 0; wanted = 0 };
            do
            :: i < N && STATE(word[i]) == READY && acted[i] < least -> give_back(i, ROLLED_BACK); i++
            :: i < N && STATE(word[i]) == READY && acted[i] >= least ->
                d_step {
                    if
                    :: n < K -> n++; wanted = wanted | 1 << i
                    :: else
                    fi;
                    i++
                }
            :: i < N && STATE(word[i]) != READY -> i++
            :: i == N -> i = 0; break
            od;
            if
            :: n == K ->
#ifndef NOT_ALONE
                do
                :: i < N && HAS(wanted, i) && DELIVERIES(word[i]) == 2 -> lease(i); examine(i); i++
                :: i < N && !(HAS(wanted, i) && DELIVERIES(word[i]) == 2) -> i++
                :: i == N -> i = 0; break
                od;
#endif
                do
                :: i < N && HAS(wanted, i) && STATE(word[i]) == READY -> lease(i); i++
                :: i < N && !(HAS(wanted, i) && STATE(word[i]) == READY) -> i++
                :: i == N -> i = 0; break
                od;
#ifdef NOT_ALONE
                do
                :: i < N && HAS(wanted, i) && DELIVERIES(word[i]) == 3 -> examine(i); i++
                :: i < N && !(HAS(wanted, i) && DELIVERIES(word[i]) == 3) -> i++
                :: i == N -> i = 0; break
                od;
#endif
                skip;
                d_step { /* train */
                    do
                    :: i < N && HAS(wanted, i) ->
                        assert(!HAS(weights, SEQUENCE(word[i])));
                        assert(acted[i] >= floor[published % 2]);
                        weights = weights | 1 << SEQUENCE(word[i]);
                        sequences = sequences | 1 << SEQUENCE(word[i]);
                        i++
                    :: i < N && !HAS(wanted, i) -> i++
                    :: i == N -> i = 0; break
                    od;
                    wanted = 0;
                    n = 0
                };
#ifdef POISON
                if
                :: HAS(sequences, 0) -> life = KILLED
                :: else
                fi;
#endif
#ifdef ACK_BEFORE_PUBLISH
                ack_all();
                publish(sequences, weights, least);
#else
                publish(sequences, weights, least);
                ack_all();
#endif
                sequences = 0
            :: n < K && last -> /* what makes no batch any more */
                do
                :: i < N && STATE(word[i]) == READY -> give_back(i, SHUT_DOWN); i++
                :: i < N && STATE(word[i]) != READY -> i++
                :: i == N -> i = 0; break
                od;
                ended = 1;
                goto end_by_itself
            :: n < K && !last -> d_step { wanted = 0; n = 0 }
            fi
        od
    } unless {
        life == KILLED -> d_step {
            life = REAPED; i = 0; v = 0; weights = 0; least = 0; wanted = 0; n = 0; sequences = 0; last = 0
        }
    };
    d_step { life == SPAWNED -> life = LIVE; examining = NONE }
    od;
end_by_itself:
    skip;
    d_step { i = 0; v = 0; weights = 0; least = 0; wanted = 0; n = 0; last = 0 }
}

inline settle(writer)
{
    if
    :: intent[writer] != NONE ->
        d_step {
            w = word[intent[writer] % N];
            if
            :: cause[writer] == REDELIVERED ->
                count[REDELIVERED] = before[writer] +
                    (STATE(w) == LEASED && SEQUENCE(w) == intent[writer] -> 0 : 1)
            :: else ->
                count[cause[writer]] = before[writer] + (SEQUENCE(w) > intent[writer] -> 1 : 0)
            fi;
            w = 0
        };
        intent[writer] = NONE
    :: else
    fi
}

/* The word's move with its count beside it */
inline counted(writer, why, next)
{
#ifdef COUNT_IN_PLACE
    word[i] = next;
    count[why] = count[why] + 1
#else
    begin(writer, why, SEQUENCE(word[i]));
    word[i] = next; /* S1 */
    done(writer)
#endif
}

inline read_list()
{
    w = published;
    d_step { listed = list[w % 2]; w = 0 }
}

inline sweep_learner()
{
#ifndef LIST_AFTER_WORDS
    read_list();
#endif
#ifndef LATE_SETTLE
    settle(0);
    settle(1);
#endif
    i = 0;
    do
    :: i < N && STATE(word[i]) != LEASED -> i++
    :: i < N && STATE(word[i]) == LEASED ->
        if
        :: HAS(listed, SEQUENCE(word[i])) ->
            counted(0, CONSUMED, W(SEQUENCE(word[i]) + N, 0, FREE))
        :: !HAS(listed, SEQUENCE(word[i])) && DELIVERIES(word[i]) == 3 ->
            d_step {
                assert(examining == SEQUENCE(word[i])); /* no innocent slot is set aside */
#if defined(POISON) && DEATHS == 0 && SUPERVISOR_DEATHS == 0
                assert(SEQUENCE(word[i]) == 0);
#endif
                word[i] = word[i] + (BAD - LEASED)
            }
        :: !HAS(listed, SEQUENCE(word[i])) && DELIVERIES(word[i]) < 3 ->
            counted(1, REDELIVERED, word[i] - (LEASED - READY))
        fi;
        i++
    :: i == N -> i = 0; break
    od;
#ifdef LATE_SETTLE
    settle(0);
    settle(1);
#endif
#ifdef LIST_AFTER_WORDS
    read_list();
#endif
    listed = 0
}

inline free_bad()
{
    settle(1);
    do
    :: i < N && STATE(word[i]) == BAD -> counted(1, SET_ASIDE, W(SEQUENCE(word[i]) + N, 0, FREE)); i++
    :: i < N && STATE(word[i]) != BAD -> i++
    :: i == N -> i = 0; break
    od
}

proctype Supervisor()
{
    byte i, w, listed;
    do
    :: {
        do
        :: life == REAPED -> sweep_learner(); life = SPAWNED
        :: STATE(word[0]) == BAD || STATE(word[N - 1]) == BAD -> free_bad()
        :: ended -> free_bad(); goto over
        od
    } unless {
        supervisor_life == KILLED -> d_step { supervisor_life = LIVE; i = 0; w = 0; listed = 0 }
    }
    od;
over:
    skip;
    d_step {
        assert(count[CONSUMED] + count[ROLLED_BACK] + count[SHUT_DOWN] + count[SET_ASIDE] == ITEMS);
        do
        :: i < ITEMS -> w = w + HAS(on_lists, i); i++
        :: else -> i = 0; break
        od;
        assert(w == count[CONSUMED]); /* what was consumed is on exactly one list, and only that */
        do
        :: i < N -> assert(STATE(word[i]) == FREE); i++
        :: else -> i = 0; break
        od
    }
}

proctype Killer()
{
end:
    do
    :: atomic { deaths > 0 && life == LIVE && !ended -> deaths--; life = KILLED }
    :: atomic { supervisor_deaths > 0 && supervisor_life == LIVE ->
        supervisor_deaths--;
        supervisor_life = KILLED;
        if /* its children die with it */
        :: life == LIVE && !ended -> life = KILLED
        :: life == SPAWNED -> life = REAPED
        :: else
        fi
    }
    od
}

init
{
    byte i;
    atomic {
        do
        :: i < N -> word[i] = W(i, 0, FREE); i++
        :: else -> i = 0; break
        od;
        intent[0] = NONE;
        intent[1] = NONE;
        run Producer();
        run Learner();
        run Supervisor();
        run Killer()
    }
}
