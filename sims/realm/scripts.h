/* Scripted agents of the realm: pure functions of what one agent sees and of a word of chance. */
#ifndef HEADRACE_REALM_SCRIPTS_H
#define HEADRACE_REALM_SCRIPTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "sight.h"

/* Wander: a tool in hand, on and on. Fight: hunts whom it can match, flees whom it cannot. Trade: gathers,
 * makes, wears, buys and sells, and hunts when there is nothing else to do. */
enum { SCRIPT_WANDER, SCRIPT_FIGHT, SCRIPT_TRADE, SCRIPTS };

/* obs [agents, OBS_BYTES]; state [agents] any words, rewritten; actions [agents]. Negative: no such kind. */
__attribute__((visibility("default"))) int realm_script(int kind, const uint8_t *obs, size_t agents,
                                                        uint32_t *state, int32_t *actions);

#endif
