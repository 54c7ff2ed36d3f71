// The options of this backend, with their defaults. The table belongs to the thin library, the
// parsed form to the implementation. Plain values.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

#include "common/options.h"

namespace db::gloo_cpu {

inline constexpr db_option kOptions[] = {
    string_option("algorithm", "auto",
                  "How all_reduce works: exchange (every rank sends everything to every other: one "
                  "round), scatter (each rank combines its part: two rounds, fewest bytes), or "
                  "auto (exchange while the data is small). gloo: libgloo's own algorithms, for "
                  "every collective except reduce_scatter, which libgloo lacks."),
    i64_option("exchange_bytes", 262144,
               "An operation uses one round of messages, instead of sending fewer bytes, while its "
               "bytes times the number of other ranks are at most this."),
    i64_option("pair_exchange_bytes", 4194304,
               "Like exchange_bytes, for all_reduce between two ranks, where one round sends no "
               "more bytes."),
    i64_option("chunk_bytes", 262144,
               "Received data is combined in pieces of this size, which should fit into a core's "
               "cache: 4096 to 67108864, a multiple of 64."),
    string_option("protect", "none",
                  "How bytes between machines are protected, after both ends have proved that they "
                  "belong to the job: none, mac (tampering is detected; HMAC-SHA256), or tls (also "
                  "encrypted; TLS 1.3). Within a machine they never leave the kernel."),
    i64_option("busy_poll_us", 50,
               "Microseconds for which a waiting rank polls its sockets before it sleeps, if the "
               "machine has a core for each of its ranks; 0: sleep at once. At most 1000."),
};
inline constexpr auto kOptionPointers = pointers_to(kOptions);

}  // namespace db::gloo_cpu
