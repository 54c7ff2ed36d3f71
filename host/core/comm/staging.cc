#include "comm/staging.h"

#include <numeric>

#include "comm/flight_recorder.h"

namespace coupler::comm {
namespace {

uint64_t sum_of(const uint64_t* counts, int world_size) {
  return std::accumulate(counts, counts + world_size, uint64_t{0});
}

}  // namespace

OperationExtent extent_of(const db_op& op, int rank, int world_size) {
  const auto all = static_cast<uint64_t>(world_size) * op.count;
  const bool root = op.root_or_peer == rank;
  switch (op.kind) {
    case DB_ALL_REDUCE:
      return {op.count, op.count};
    case DB_BROADCAST:
      return {root ? op.count : 0, op.count};
    case DB_REDUCE:
      return {op.count, root ? op.count : 0};
    case DB_ALL_GATHER:
      return {op.count, all};
    case DB_ALL_GATHER_V:
      return {op.recv_counts[rank], sum_of(op.recv_counts, world_size)};
    case DB_REDUCE_SCATTER:
      return {all, op.count};
    case DB_REDUCE_SCATTER_V:
      return {sum_of(op.recv_counts, world_size), op.recv_counts[rank]};
    case DB_ALL_TO_ALL:
      return {all, all};
    case DB_ALL_TO_ALL_V:
      return {sum_of(op.send_counts, world_size), sum_of(op.recv_counts, world_size)};
    case DB_GATHER:
      return {op.count, root ? all : 0};
    case DB_SCATTER:
      return {root ? all : 0, op.count};
    case DB_SEND:
      return {op.count, 0};
    case DB_RECV:
      return {0, op.count};
    default:  // DB_BARRIER
      return {};
  }
}

Staging::Staging(const DeviceMemory& device, const db_op& op, int rank, int world_size)
    : device_(device), destination_(op.recv), staged_(op) {
  const OperationExtent extent = extent_of(op, rank, world_size);
  const uint64_t size = dtype_size(op.dtype);
  const auto sent = static_cast<size_t>(extent.send * size);
  received_ = static_cast<size_t>(extent.recv * size);
  if (sent > 0) {
    send_ = device.host_buffer(sent);
    device.copy_to_host(send_.get(), op.send, sent);
  }
  // In place if both are the same memory, as the operation allows.
  if (received_ > 0)
    recv_ = op.send == op.recv && sent == received_ ? send_ : device.host_buffer(received_);
  staged_.send = send_.get();
  staged_.recv = recv_.get();
  staged_.memory = DB_MEMORY_HOST;
  staged_.stream = nullptr;
}

void Staging::finish() const {
  if (received_ > 0) device_.copy_from_host(destination_, recv_, received_);
}

bool run_alone(const DeviceMemory& device, const db_op& op) {
  if (op.kind == DB_SEND || op.kind == DB_RECV || op.reduce == DB_PREMUL_SUM) return false;
  const OperationExtent extent = extent_of(op, 0, 1);
  if (extent.recv > 0 && op.send != op.recv) {
    device.copy(op.recv, op.send, static_cast<size_t>(extent.recv * dtype_size(op.dtype)));
  }
  return true;
}

}  // namespace coupler::comm
