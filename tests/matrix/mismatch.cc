// Ranks whose calls differ get an error that names both, never a hang or a wrong result.
#include <functional>
#include <map>

#include "rank.h"
#include "simple_ops.h"

namespace coupler::matrix {
namespace {

// How the last rank's call differs from an all_reduce of 16 f32.
const std::map<std::string, std::function<void(db_op&)>> kVariants = {
    {"count", [](db_op& op) { op.count = 17; }},
    {"dtype",  // the same number of bytes, which a library would not notice
     [](db_op& op) {
       op.dtype = DB_I64;
       op.count = 8;
     }},
    {"reduction", [](db_op& op) { op.reduce = DB_MAX; }},
    {"operation", [](db_op& op) { op.kind = DB_BROADCAST; }},
    {"barrier", [](db_op& op) { op.kind = DB_BARRIER; }},
};

}  // namespace

int mismatch(Rank& rank) {
  const auto communicator = rank.connect();
  Values<float> values(64, 1.0f);
  db_op op = all_reduce(values);
  op.count = 16;
  const std::string& variant = rank.arguments().variant;
  const bool last = rank.rank() == rank.world_size() - 1;
  return rank.report_error([&] {
    // The mismatch may already end this operation on a rank that is slow to complete it.
    communicator->run(all_reduce(values));
    if (variant == "root") {
      op.kind = DB_BROADCAST;
      op.root_or_peer = last ? 1 : 0;
    } else if (variant == "message") {
      op.kind = last ? DB_RECV : DB_SEND;
      op.root_or_peer = last ? 0 : rank.world_size() - 1;
      op.count = last ? 8 : 16;
      if (!last && rank.rank() != 0) op = barrier();
    } else if (last) {
      kVariants.at(variant)(op);
    }
    communicator->run(op);
    communicator->run(
        barrier());  // a rank that did not wait for the others fails here at the latest
  });
}

}  // namespace coupler::matrix
