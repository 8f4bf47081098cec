/* The tap: what it accepts as a copy of sequence s is the payload of s, whole; it never writes.
 *
 * One slot, one producer that writes ITEMS sequences and gives up or is killed anywhere (then reaped and swept, and
 * the next one begins), a learner that leases and frees or drops, and a tap that copies whatever sequence it likes at
 * any time. The payload is two cells. Each access to shared memory is a step; memory is sequentially consistent but for
 * the start stamp, which becomes visible at any time between its store and the next atomic operation of its writer:
 * so it is where the payload is written past the caches, which no fence of the producer's holds behind the stamp.
 *
 * Sizes: ITEMS, GIVEN_UP, KILLS, COPIES.
 * Mutants, each of which must be found: NO_STAMP (the word alone decides), NO_WORD (the stamp alone), NO_FIRST_LOOK,
 * LOOKS_TOO_EARLY (before the copy ended: no fence of the tap's), ANY_FREE (a FREE word of any sequence), LATE_STAMP
 * (giving a slot up does not wait for the stamp). */

#ifndef ITEMS
#define ITEMS 3
#endif
#ifndef GIVEN_UP
#define GIVEN_UP 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef COPIES
#define COPIES 2
#endif

#define FREE 0
#define WRITING 1
#define READY 2
#define LEASED 3

#define NOTHING 255

byte state = FREE, sequence = 0; /* the word: of one slot, so that s + N is s + 1 */
byte stamp = NOTHING, stored = NOTHING; /* as others see it; on its way */
byte cell[2] = { NOTHING, NOTHING };

#define DRAIN stamp = (stored != NOTHING -> stored : stamp); stored = NOTHING
#define THERE(state_, sequence_, s) \
	(((state_ == READY || state_ == LEASED) && sequence_ == s) || FREED(state_, sequence_, s))
#ifdef ANY_FREE
#define FREED(state_, sequence_, s) (state_ == FREE)
#else
#define FREED(state_, sequence_, s) (state_ == FREE && sequence_ == s + 1)
#endif

active proctype store_buffer()
{
end:
	do
	:: d_step { stored != NOTHING; DRAIN }
	od
}

active proctype producer()
{
	byte s = 0, i, given_up = 0, kills = 0;

	do
	:: s == ITEMS -> break
	:: else ->
		atomic { state == FREE && sequence == s; DRAIN; state = WRITING } /* P1 */
		i = 0;
		if
		:: stored = s /* T0, T0f */
		:: kills < KILLS -> kills++; goto dead
		fi;
		do
		:: i < 2 -> cell[i] = s; i++
		:: i < 2 && given_up < GIVEN_UP -> given_up++; goto aborted
		:: kills < KILLS -> kills++; goto dead
		:: i == 2 -> break
		od;
		atomic { DRAIN; state = READY }; /* P2 */
		s++;
		goto next;
aborted:
#ifdef LATE_STAMP
		state = FREE;
#else
		atomic { DRAIN; state = FREE }; /* P7 */
#endif
		goto next;
dead:		/* reaped, so that all it stored is there; then S1 */
		atomic { DRAIN; state = FREE };
next:		skip
	od
}

active proctype learner()
{
end:
	do
	:: atomic { state == READY -> state = LEASED }; /* C1 */
		d_step { state = FREE; sequence++ } /* C3 */
	:: atomic { state == READY -> state = FREE; sequence++ } /* a drop */
	od
}

active proctype tap()
{
	byte copies = 0, s, state_, sequence_, stamp_, first, second;

	do
	:: copies == COPIES -> break
	:: else ->
		copies++;
		if
		:: s = 0
		:: s = 1
		:: s = ITEMS - 1
		fi;
#ifndef NO_FIRST_LOOK
		d_step { state_ = state; sequence_ = sequence }; /* T1 */
		if
		:: THERE(state_, sequence_, s) -> skip
		:: else -> goto next
		fi;
#endif
		first = cell[0]; /* T2 */
#ifdef LOOKS_TOO_EARLY
		d_step { state_ = state; sequence_ = sequence };
		stamp_ = stamp;
		second = cell[1];
#else
		second = cell[1];
		d_step { state_ = state; sequence_ = sequence }; /* T3 */
		stamp_ = stamp;
#endif
#ifdef NO_STAMP
		stamp_ = s;
#endif
		if
#ifdef NO_WORD
		:: stamp_ == s -> assert(first == s && second == s)
#else
		:: THERE(state_, sequence_, s) && stamp_ == s -> assert(first == s && second == s)
#endif
		:: else -> skip
		fi;
next:		skip
	od
}
