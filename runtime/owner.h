/* SPDX-License-Identifier: MIT
 *
 * Who a resource belongs to: an identity of a process that outlives it (SPEC P6).
 *
 * The text names the machine, the boot, the pid namespace, the pid and the time the process
 * started, so that neither a reboot nor a pid that was given out again makes a dead owner look
 * alive. Where it cannot be told (another machine or pid namespace, a hidden /proc) an owner counts
 * as alive: what may be in use is never taken for an orphan. A zombie is dead.
 */
#ifndef SBX_OWNER_H
#define SBX_OWNER_H

#include <stdbool.h>
#include <stddef.h>

#define SBX_OWNER_MAX 320

/* Writes this process's identity. 0 or -errno. */
int sbx_owner_self(char text[SBX_OWNER_MAX]);
/* Whether the owner may still live. Text that is no identity counts as alive. */
bool sbx_owner_may_live(const char *text);

#endif
