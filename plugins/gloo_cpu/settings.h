// The options of this backend, with their defaults. The table is part of the thin library, the
// parsed form of the implementation. Plain values.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

#include "common/options.h"

namespace db::gloo_cpu {

inline constexpr db_option kOptions[] = {
    string_option("algorithm", "auto",
                  "How all_reduce works: exchange (everybody sends all to everybody: one round), "
                  "scatter (each rank combines its part: two rounds, fewest bytes), or auto "
                  "(exchange while the data is small). gloo: libgloo's own algorithms, for every "
                  "collective but reduce_scatter, which libgloo lacks."),
    i64_option("exchange_bytes", 262144,
               "Up to this many bytes times the other ranks an operation prefers one round of "
               "messages to fewer bytes."),
    i64_option("pair_exchange_bytes", 4194304,
               "The same for all_reduce between two ranks, where one round is no more bytes."),
    i64_option("chunk_bytes", 262144,
               "Received data is combined in pieces of this size, which should stay in the cache "
               "of a core: 4096 to 67108864, a multiple of 64."),
    string_option(
        "protect", "none",
        "How the bytes between machines are protected, once both ends have proved that "
        "they belong to the job: none, mac (whoever alters them is noticed; HMAC-SHA256), "
        "or tls (nor can they be read; TLS 1.3). Within a machine they never leave the "
        "kernel."),
    i64_option("busy_poll_us", 50,
               "How long a rank that waits looks at its sockets before it sleeps, where the ranks "
               "of a machine are no more than its cores; 0: sleep at once. At most 1000."),
};
inline constexpr auto kOptionPointers = pointers_to(kOptions);

}  // namespace db::gloo_cpu
