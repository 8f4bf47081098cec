/* Pinning a process to one core. */
#ifndef HEADRACE_PIN_H
#define HEADRACE_PIN_H

/* Binds the calling thread to `core`; warns on standard error and goes on unpinned if the kernel refuses.
 * Returns 1 if bound. */
int pin_to_core(int core);

#endif
