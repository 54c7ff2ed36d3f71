// What the implementation (libcoupler_gloo_cpu_impl.so, linked to libgloo) offers the thin library
// (libcoupler_gloo_cpu.so, loaded by the host). Both are built together, so this interface is not
// stable. Thread rule: any thread.
#pragma once

#include <coupler/distributed_backend.h>

#define COUPLER_GLOO_CPU_IMPLEMENTATION "coupler_gloo_cpu_implementation"

namespace db::gloo_cpu {

struct Implementation {
  db_status (*create)(const db_communicator_params* params, db_communicator** result,
                      db_error* error);
  // Which libgloo is used: "libgloo 0.5.0 (/usr/lib/libgloo.so.0)".
  void (*describe)(char* text, uint64_t capacity);
};

using ImplementationEntry = const Implementation* (*)();

}  // namespace db::gloo_cpu
