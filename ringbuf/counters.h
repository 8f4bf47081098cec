/* The counters and gauges of the control block, named once: C takes the indices, Python the names.
 *
 * Every process has a block of its own and is its only writer, so a relaxed store is enough and no increment
 * is ever lost to another process. Counters are uint64 and count from the start of the process' first attempt
 * in this run; gauges are float64 and hold the last value (NaN: none yet). Times are nanoseconds. */
#ifndef HEADRACE_COUNTERS_H
#define HEADRACE_COUNTERS_H

#define HR_LAG_BINS 130 /* lag 0, 1, ... 128 versions, and more */
#define HR_AGE_BINS 32  /* age: bin i holds ages below 2^i ms, the last everything longer */

#define HR_NO_SIGNAL 255 /* crash_signal of a producer that found a fault of its simulator and gave up */

#define HR_PRODUCER_COUNTERS(X)                                                                             \
    X(steps)            /* valid agent-steps committed */                                                   \
    X(invalid_steps)    /* agent-steps committed that only reset */                                         \
    X(slots)            /* committed */                                                                     \
    X(episodes)         /* finished in committed slots */                                                   \
    X(bytes_packed)     /* payload as stored */                                                             \
    X(bytes_unpacked)   /* as the first layer sees it */                                                    \
    X(sim_ns)           /* in the simulator */                                                              \
    X(policy_ns)        /* in the policy, sampling included */                                              \
    X(check_ns)         /* looking after guards and rewards of a slot */                                     \
    X(pickup_ns)        /* copying weights */                                                               \
    X(pickups)          /* weights copied */                                                                \
    X(pickup_retries)   /* copies that a newer version overtook */                                          \
    X(wait_credit_ns)                                                                                       \
    X(wait_ring_full_ns)                                                                                    \
    X(wait_version_ns)                                                                                      \
    X(wait_answer_ns)                                                                                       \
    X(wait_owner_ns)                                                                                        \
    X(abandoned_steps_stop)   /* of a slot given up at a stop */                                            \
    X(abandoned_steps_server) /* of a slot given up with its inference server */                            \
    X(abandoned_steps_version) /* of a slot whose weights were gone before it was full */                   \
    X(crash_signal) /* that killed it, or HR_NO_SIGNAL where it ended itself; 0: none */                     \
    X(crash_phase)  /* hr_phase in which that happened */                                                   \
    X(crash_world)  /* number of the world over the whole run, + 1; 0: outside a world */                   \
    X(crash_seed)   /* of that world */                                                                     \
    X(crash_step)   /* steps taken since the worlds' seed was set */

#define HR_LEARNER_COUNTERS(X)                                                                              \
    X(version)          /* published; meaningful once `updates` > 0 or ready is set */                      \
    X(ready)            /* 1 once version 0 is published */                                                 \
    X(updates)          /* batches trained */                                                               \
    X(sgd_steps)        /* optimizer steps */                                                               \
    X(samples)          /* trained, with reuse */                                                           \
    X(steps)            /* valid agent-steps consumed */                                                    \
    X(slots)            /* consumed */                                                                      \
    X(episodes)         /* finished episodes received */                                                    \
    X(wait_no_data_ns)                                                                                      \
    X(copy_ns)                                                                                              \
    X(forward_ns)                                                                                           \
    X(backward_ns)                                                                                          \
    X(optimizer_ns)                                                                                         \
    X(allreduce_ns)                                                                                         \
    X(publish_ns)                                                                                           \
    X(nonfinite_batches)                                                                                    \
    X(rollbacks)                                                                                            \
    X(dropped_lag_steps) /* masked because older than learner.max_lag */                                    \
    X(checkpoints)                                                                                          \
    X(checkpoint_failures)                                                                                  \
    X(last_update_unix_ns)                                                                                  \
    X(last_publish_unix_ns)                                                                                 \
    X(last_checkpoint_unix_ns)                                                                              \
    X(checkpoint_bytes)                                                                                     \
    X(checkpoint_ns)     /* how long the last one took */                                                   \
    X(stop_request)      /* hr_stop_reason: the learner asks the supervisor to stop the run */              \
    X(lag_sum)           /* over consumed valid steps */                                                    \
    X(lag_max)                                                                                              \
    X(age_sum_ns)        /* over consumed slots, commit to lease */                                         \
    X(run_steps)         /* this and the next two: of the surviving lineage, set and not added */           \
    X(run_updates)                                                                                          \
    X(run_episodes)                                                                                         \
    X(nonfinite_steps)   /* of the optimizer that were skipped */                                           \
    X(examined_slots)    /* at their third delivery */                                                      \
    X(resumes)           /* from a hot snapshot or a checkpoint */                                           \
    X(audit_label_alarms) /* this and the next three: times that an audit found more than its limit */       \
    X(audit_ratio_alarms)                                                                                   \
    X(audit_target_alarms)                                                                                  \
    X(audit_precision_alarms)                                                                               \
    X(audited_steps)     /* compared with the weights of their version */                                   \
    X(unaudited_steps)   /* drawn for that, but those weights are not at hand */                            \
    X(burn_in_steps)     /* that only warmed recurrent state up */

#define HR_SERVER_COUNTERS(X)                                                                               \
    X(rows)             /* agent-steps answered */                                                          \
    X(requests)         /* of groups, answered */                                                           \
    X(refused)          /* of those: the weights they need are gone */                                      \
    X(batches)          /* forward passes */                                                                \
    X(batch_rows)       /* of those passes, places that were left empty included */                         \
    X(late_batches)     /* begun because a request had waited for server.max_wait_us */                     \
    X(latency_sum_ns)   /* over requests, from when the server saw them to the answer */                    \
    X(latency_max_ns)                                                                                       \
    X(wait_request_ns)  /* nobody asked */                                                                  \
    X(gather_ns)        /* copying observations together */                                                 \
    X(forward_ns)                                                                                           \
    X(sample_ns)        /* and writing the answers */                                                       \
    X(pickup_ns)                                                                                            \
    X(pickups)          /* weights copied */                                                                \
    X(pickup_retries)   /* copies that a newer version overtook */                                          \
    X(version)          /* newest in hand */

#define HR_RECORDER_COUNTERS(X)                                                                             \
    X(slots_copied)                                                                                         \
    X(slots_missed)   /* of the rings it taps: gone before they were copied */                              \
    X(slots_passed)   /* never written by their producer */                                                 \
    X(steps)          /* valid agent-steps copied */                                                        \
    X(raw_bytes)      /* of blocks written, before compression */                                           \
    X(written_bytes)  /* of blocks written */                                                               \
    X(blocks)         /* written */                                                                         \
    X(dropped_blocks) /* copied and thrown away: the disk was too slow, too full or broken */               \
    X(queue_blocks)   /* that wait to be written; set and not added, as the next two and the last */        \
    X(shards)         /* on disk */                                                                         \
    X(bytes)          /* of those */                                                                        \
    X(deleted_shards) /* for their age, or for room */                                                      \
    X(errors)         /* of the disk */                                                                     \
    X(halted)         /* 1 while nothing is written, for want of space */

#define HR_LEARNER_GAUGES(X) /* named as the figures of metrics.jsonl */                                     \
    X(score_mean) X(score_best) X(solved_at_seconds) X(learning_rate) X(entropy_coef)                       \
    X(loss_policy) X(loss_value) X(loss_entropy) X(loss_total) X(grad_norm) X(approx_kl) X(update_kl)       \
    X(entropy_ratio) X(clipped_ratio) X(bounded_weight) X(rho_clipped) X(c_clipped)                         \
    X(explained_variance) X(explained_variance_plain) X(value_change)                                       \
    X(update_ratio) X(second_moment_max) X(policy_churn)                                                    \
    X(ratio_mean) X(ratio_min) X(ratio_p1) X(ratio_p50) X(ratio_p99) X(ratio_max) X(ratio_log_max)          \
    X(ratio_ess) X(ratio_chi2) X(ratio_k1) X(ratio_k2) X(ratio_k3)                                          \
    X(lag_mean) X(lag_max) X(lag_spread) X(lag_sgd_steps) X(age_steps) X(age_seconds) X(sample_reuse)       \
    X(audit_label_error) X(audit_label_tolerance) X(audit_ratio_mean) X(audit_ratio_limit)                  \
    X(audit_target_error) X(precision_gap)

#endif
