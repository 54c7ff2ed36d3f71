// Small operations that several behaviors use. Pure functions.
#pragma once

#include <coupler/distributed_backend.h>

#include "memory.h"

namespace coupler::matrix {

inline db_op all_reduce(Values<float>& values) {
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.send = op.recv = values.data();
  op.count = values.size();
  op.memory = memory_kind();
  return op;
}

inline db_op barrier() {
  db_op op{};
  op.kind = DB_BARRIER;
  return op;
}

inline db_op message(db_kind kind, int peer, int tag, Values<float>& values) {
  db_op op{};
  op.kind = kind;
  op.dtype = DB_F32;
  op.root_or_peer = peer;
  op.tag = tag;
  op.send = op.recv = values.data();
  op.count = values.size();
  op.memory = memory_kind();
  return op;
}

}  // namespace coupler::matrix
