// What the two libraries of this backend share: its options, with their defaults, and what the
// implementation (libcoupler_gloo_cpu_impl.so, linked to libgloo) offers the thin library
// (libcoupler_gloo_cpu.so, loaded by the host). Both are built together, so this interface is not
// stable. Thread rule: any thread.
#pragma once

#include <coupler/distributed_backend.h>

#include <cstdint>

#include "common/options.h"

#define COUPLER_GLOO_CPU_IMPLEMENTATION "coupler_gloo_cpu_implementation"

namespace db::gloo_cpu {

// The thin library has the table, the implementation parses the options.
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
    i64_option("halving_ranks", 32,
               "From this many ranks on, each round of all_reduce, reduce_scatter, all_gather and "
               "barrier becomes a logarithmic number of rounds, in which a rank sends to one other "
               "rank instead of to all. At least 2."),
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

struct Implementation {
  db_status (*create)(const db_communicator_params* params, db_communicator** result,
                      db_error* error);
  // Which libgloo is used: "libgloo 0.5.0 (/usr/lib/libgloo.so.0)".
  void (*describe)(char* text, uint64_t capacity);
};

using ImplementationEntry = const Implementation* (*)();

}  // namespace db::gloo_cpu
