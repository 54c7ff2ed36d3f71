#include <coupler/objects.h>
#include <fmt/format.h>

#include <algorithm>

#include "accelerator/accelerator.h"
#include "accelerator/consistency_check.h"
#include "tensors/tensor_ops.h"

namespace coupler::detail {
namespace {

std::optional<Error> problem_of(const std::string& operation, const EncodedObject& object) {
  if (object.problem.empty()) return std::nullopt;
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}: the object cannot be sent: {}", operation, object.problem),
               {.subject = operation});
}

// The size that a rank announced, checked before memory is allocated for it.
size_t checked_size(const char* operation, int rank, int64_t size) {
  if (size < 0 || size > kMaxObjectBytes) {
    ObjectCollectives::refuse(operation, rank, fmt::format("its size is {} bytes", size));
  }
  return static_cast<size_t>(size);
}

}  // namespace

void ObjectCollectives::refuse(const char* operation, int rank, const std::string& problem) {
  throw Error(
      ErrorCode::kMismatch,
      fmt::format("{}: the data from rank {} is not a valid object: {}", operation, rank, problem),
      {.rank = rank, .subject = operation, .hint = "run the same program on every rank"});
}

std::optional<BatchSamples> ObjectCollectives::batch_samples(const Accelerator& accelerator) {
  return accelerator.impl_->batch_samples();
}

Group ObjectCollectives::world(const Accelerator& accelerator) {
  return Group(accelerator.impl_->comm);
}

Group ObjectCollectives::samples(const Accelerator& accelerator) {
  return Group(accelerator.impl_->sample_comm);
}

std::vector<ObjectBytes> ObjectCollectives::gather(const Group& group, const char* operation,
                                                   const EncodedObject& object) {
  comm::Communicator& comm = group.comm();
  const auto sizes = check_consistency(comm, {.operation = operation,
                                              .number = static_cast<int64_t>(object.bytes.size()),
                                              .problem = problem_of(operation, object)});
  size_t most = 0;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    most = std::max(most, checked_size(operation, group.ranks()[rank], sizes[rank]));
  }
  ObjectBytes sent = object.bytes, received(most * sizes.size());
  sent.resize(most);
  comm.run(tensors::host_op(DB_ALL_GATHER, DB_U8, sent.data(), received.data(), most));
  std::vector<ObjectBytes> result;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto start = received.begin() + static_cast<std::ptrdiff_t>(rank * most);
    result.emplace_back(start, start + sizes[rank]);
  }
  return result;
}

ObjectBytes ObjectCollectives::broadcast(const Group& group, const EncodedObject& object,
                                         int from) {
  comm::Communicator& comm = group.comm();
  const std::string operation = fmt::format("broadcast_object(from {})", from);
  auto problem = problem_of(operation, object);
  if (from < 0 || from >= comm.size()) problem = no_such_rank(operation, comm);
  const auto sizes = check_consistency(comm, {.operation = operation,
                                              .number = static_cast<int64_t>(object.bytes.size()),
                                              .problem = std::move(problem)});
  ObjectBytes bytes = object.bytes;
  const auto place = static_cast<size_t>(from);
  bytes.resize(checked_size("broadcast_object", group.ranks()[place], sizes[place]));
  db_op op = tensors::host_op(DB_BROADCAST, DB_U8, bytes.data(), bytes.data(), bytes.size());
  op.root_or_peer = from;
  comm.run(op);
  return bytes;
}

}  // namespace coupler::detail
