#include "gloo_cpu/gloo_collectives.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>

#include <cstring>
#include <string>
#include <utility>

#include "common/reduce.h"
#include "gloo_cpu/gloo_transport.h"

namespace db::gloo_cpu {
namespace {

class ConnectedContext final : public gloo::Context {
 public:
  explicit ConnectedContext(std::shared_ptr<GlooTransport> transport)
      : Context(transport->rank, transport->size) {
    transportContext_ = std::move(transport);
  }
};

using Context = std::shared_ptr<gloo::Context>;

// libgloo requires non-const inputs but only reads them.
template <class T>
T* input(const Op& op) {
  return const_cast<T*>(static_cast<const T*>(op.send));
}

template <class T>
T* output(const Op& op) {
  return static_cast<T*>(op.recv);
}

// Calls body with a value of an unsigned type of the element's size: libgloo uses only the size of
// a buffer's type.
template <class Body>
void with_element(const Op& op, const Body& body) {
  switch (op.element) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

template <class T>
std::vector<T> bytes_of(const Op& op, const uint64_t* counts, int32_t size) {
  std::vector<T> bytes;
  bytes.reserve(static_cast<size_t>(size));
  for (int32_t rank = 0; rank < size; ++rank)
    bytes.push_back(static_cast<T>(counts[rank] * op.element));
  return bytes;
}

// The data to send when the operation receives into the same buffer.
class SentCopy {
 public:
  SentCopy(const Op& op, uint64_t bytes) {
    if (!op.in_place) return;
    copy_.reset(new uint8_t[bytes]);
    std::memcpy(copy_.get(), op.send, bytes);
  }
  uint8_t* data(const Op& op) const { return copy_ != nullptr ? copy_.get() : input<uint8_t>(op); }

 private:
  std::unique_ptr<uint8_t[]> copy_;
};

void all_reduce(const Op& op, const Context& context) {
  const bool scales = op.reduce == DB_PREMUL_SUM;
  if (scales) scale(op.dtype, op.recv, op.send, op.count, op.scale);
  with_element(op, [&](auto element) {
    using T = decltype(element);
    gloo::AllreduceOptions options(context);
    if (!scales && !op.in_place) options.setInput(input<T>(op), op.count);
    options.setOutput(output<T>(op), op.count);
    options.setReduceFunction(reduce_function(op.dtype, op.reduce));
    gloo::allreduce(options);
  });
  if (op.reduce == DB_AVG) divide(op.dtype, op.recv, op.count, context->size);
}

void reduce(const Op& op, const Context& context) {
  // libgloo's ring needs an output on every rank.
  const bool is_root = context->rank == op.root_or_peer;
  std::unique_ptr<uint8_t[]> room;
  if (!is_root) room.reset(new uint8_t[op.count * op.element]);
  void* const combined = is_root ? op.recv : room.get();
  const bool scales = op.reduce == DB_PREMUL_SUM;
  if (scales) scale(op.dtype, combined, op.send, op.count, op.scale);
  with_element(op, [&](auto element) {
    using T = decltype(element);
    gloo::ReduceOptions options(context);
    if (!scales && !op.in_place) options.setInput(input<T>(op), op.count);
    options.setOutput(static_cast<T*>(combined), op.count);
    options.setRoot(op.root_or_peer);
    options.setReduceFunction(reduce_function(op.dtype, op.reduce));
    gloo::reduce(options);
  });
  if (is_root && op.reduce == DB_AVG) divide(op.dtype, op.recv, op.count, context->size);
}

void broadcast(const Op& op, const Context& context) {
  const uint64_t bytes = op.count * op.element;
  gloo::BroadcastOptions options(context);
  if (context->rank == op.root_or_peer && !op.in_place) options.setInput(input<uint8_t>(op), bytes);
  options.setOutput(output<uint8_t>(op), bytes);
  options.setRoot(op.root_or_peer);
  gloo::broadcast(options);
}

void all_gather(const Op& op, const Context& context) {
  const uint64_t bytes = op.count * op.element;
  gloo::AllgatherOptions options(context);
  if (!op.in_place) options.setInput(input<uint8_t>(op), bytes);
  options.setOutput(output<uint8_t>(op), bytes * static_cast<uint64_t>(context->size));
  gloo::allgather(options);
}

void all_gather_v(const Op& op, const Context& context) {
  auto parts = bytes_of<size_t>(op, op.recv_counts, context->size);
  const size_t own = parts[static_cast<size_t>(context->rank)];
  gloo::AllgathervOptions options(context);
  if (!op.in_place) options.setInput(input<uint8_t>(op), own);
  options.setOutput(output<uint8_t>(op), std::move(parts));
  gloo::allgatherv(options);
}

void all_to_all(const Op& op, const Context& context) {
  const uint64_t bytes = op.count * op.element * static_cast<uint64_t>(context->size);
  const SentCopy sent(op, bytes);
  gloo::AlltoallOptions options(context);
  options.setInput(sent.data(op), bytes);
  options.setOutput(output<uint8_t>(op), bytes);
  gloo::alltoall(options);
}

void all_to_all_v(const Op& op, const Context& context) {
  const SentCopy sent(op, op.send_size * op.element);
  gloo::AlltoallvOptions options(context);
  options.setInput(sent.data(op), bytes_of<int64_t>(op, op.send_counts, context->size));
  options.setOutput(output<uint8_t>(op), bytes_of<int64_t>(op, op.recv_counts, context->size));
  gloo::alltoallv(options);
}

// In place, the root's own part is copied onto itself, here and in scatter: libgloo has no other
// form, and in practice memcpy allows it; compilers rely on that too.
void gather(const Op& op, const Context& context) {
  const uint64_t bytes = op.count * op.element;
  gloo::GatherOptions options(context);
  options.setInput(input<uint8_t>(op), bytes);
  if (context->rank == op.root_or_peer)
    options.setOutput(output<uint8_t>(op), bytes * static_cast<uint64_t>(context->size));
  options.setRoot(op.root_or_peer);
  gloo::gather(options);
}

void scatter(const Op& op, const Context& context) {
  const uint64_t bytes = op.count * op.element;
  gloo::ScatterOptions options(context);
  if (context->rank == op.root_or_peer) {
    std::vector<uint8_t*> parts;
    parts.reserve(static_cast<size_t>(context->size));
    for (int32_t rank = 0; rank < context->size; ++rank)
      parts.push_back(input<uint8_t>(op) + static_cast<uint64_t>(rank) * bytes);
    options.setInputs(std::move(parts), bytes);
  }
  options.setOutput(output<uint8_t>(op), bytes);
  options.setRoot(op.root_or_peer);
  gloo::scatter(options);
}

void barrier(const Context& context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

void perform(const Op& op, const Context& context) {
  switch (op.kind) {
    case DB_ALL_REDUCE:
      return all_reduce(op, context);
    case DB_REDUCE:
      return reduce(op, context);
    case DB_BROADCAST:
      return broadcast(op, context);
    case DB_ALL_GATHER:
      return all_gather(op, context);
    case DB_ALL_GATHER_V:
      return all_gather_v(op, context);
    case DB_ALL_TO_ALL:
      return all_to_all(op, context);
    case DB_ALL_TO_ALL_V:
      return all_to_all_v(op, context);
    case DB_GATHER:
      return gather(op, context);
    case DB_SCATTER:
      return scatter(op, context);
    default:
      return barrier(context);
  }
}

}  // namespace

GlooCollectives::GlooCollectives(int32_t rank, int32_t size, ConnectionEngine* engine)
    : transport_(std::make_shared<GlooTransport>(rank, size, engine)),
      context_(std::make_shared<ConnectedContext>(transport_)) {}

bool GlooCollectives::has(const Op& op) {
  switch (op.kind) {
    case DB_REDUCE_SCATTER:
    case DB_REDUCE_SCATTER_V:
      return false;
    case DB_ALL_REDUCE:
    case DB_REDUCE:
    case DB_ALL_GATHER:
      return op.count > 0;
    default:
      return true;
  }
}

Failure GlooCollectives::run(const Op& op, const Header& header, int64_t spin_ns) {
  transport_->begin(header, op.deadline_ns, spin_ns);
  try {
    perform(op, context_);
  } catch (const EngineFailed& failed) {
    return failed.failure();
  }
  if (transport_->unfinished() == 0) return {};
  return Failure::make(DB_ERR_INTERNAL,
                       describe(op) + ": libgloo did not wait for " +
                           std::to_string(transport_->unfinished()) +
                           " of the messages that it posted; report this bug",
                       DB_ERROR_COMM_DEAD);
}

std::vector<int32_t> GlooCollectives::received_from() const { return transport_->received_from(); }

}  // namespace db::gloo_cpu
