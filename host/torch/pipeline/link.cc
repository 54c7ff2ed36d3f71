#include "pipeline/link.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "tensors/tensor_ops.h"

namespace coupler::pipelining {

ValueMeta meta_of(const std::vector<at::Tensor>& values) {
  ValueMeta meta;
  for (const at::Tensor& value : values) {
    meta.push_back({value.scalar_type(), value.requires_grad(), value.sizes().vec()});
  }
  return meta;
}

std::string text_of(const ValueMeta& meta) {
  std::vector<std::string> parts;
  for (const TensorMeta& tensor : meta) {
    parts.push_back(fmt::format("{} [{}]{}", c10::toString(tensor.type),
                                fmt::join(tensor.sizes, ", "),
                                tensor.wants_gradient ? " with gradient" : ""));
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

at::Tensor header_of(const ValueMeta& meta) {
  if (meta.empty() || static_cast<int64_t>(meta.size()) > kMaxWireTensors) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("a stage passes on {} tensors; it can pass 1 to {}", meta.size(),
                            kMaxWireTensors),
                {.hint = "cut where fewer tensors are passed on, or pack them"});
  }
  at::Tensor header = at::zeros({kHeaderNumbers}, at::kLong);
  int64_t* next = header.mutable_data_ptr<int64_t>();
  *next++ = static_cast<int64_t>(meta.size());
  for (const TensorMeta& tensor : meta) {
    tensors::to_db_dtype(tensor.type);  // throws
    const auto dimensions = static_cast<int64_t>(tensor.sizes.size());
    if (dimensions > kMaxWireDimensions) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("a stage passes on a tensor of {} dimensions; it can have at most {}",
                      dimensions, kMaxWireDimensions),
          {.hint = "flatten it in the layer before the cut and restore its shape after it"});
    }
    *next++ = static_cast<int64_t>(tensor.type);
    *next++ = tensor.wants_gradient ? 1 : 0;
    *next++ = dimensions;
    for (const int64_t size : tensor.sizes) *next++ = size;
    next += kMaxWireDimensions - dimensions;
  }
  return header;
}

ValueMeta meta_in(const at::Tensor& header) {
  const int64_t* next = header.const_data_ptr<int64_t>();
  const auto require = [](bool holds) {
    if (holds) return;
    throw Error(ErrorCode::kMismatch, "another stage sent an invalid header ahead of its tensors",
                {.hint = "run the same build of Coupler on every rank"});
  };
  const int64_t tensors = *next++;
  require(tensors >= 1 && tensors <= kMaxWireTensors);
  ValueMeta meta(static_cast<size_t>(tensors));
  for (TensorMeta& tensor : meta) {
    const int64_t type = *next++, gradient = *next++, dimensions = *next++;
    require(type >= 0 && type < static_cast<int64_t>(at::ScalarType::NumOptions) &&
            (gradient == 0 || gradient == 1) && dimensions >= 0 &&
            dimensions <= kMaxWireDimensions);
    tensor.type = static_cast<at::ScalarType>(type);
    tensor.wants_gradient = gradient == 1;
    tensor.sizes.assign(next, next + dimensions);
    for (const int64_t size : tensor.sizes) require(size >= 0);
    next += kMaxWireDimensions;
  }
  return meta;
}

db_op message_op(db_kind kind, const at::Tensor& tensor, int peer) {
  db_op op = tensors::broadcast_op(tensor, peer);  // takes the same arguments
  op.kind = kind;
  return op;
}

namespace {

// Tags are matched exactly, so they distinguish messages in flight at the same time.
constexpr int64_t kTags = 1 << 14;

// Waits for aborted operations; the caller reports why they were aborted.
void forget(std::vector<comm::Work>& works) {
  for (comm::Work& work : works) {
    try {
      work.wait();
    } catch (const Error&) {
      continue;
    }
  }
}

bool is_done(std::vector<comm::Work>& works) {
  return std::all_of(works.begin(), works.end(), [](comm::Work& work) { return work.done(); });
}

}  // namespace

// If the backend cannot use the device's memory, operations on it would complete when submitted,
// and receives could not be posted ahead. So messages then go through host memory.
StageLink::StageLink(std::shared_ptr<comm::Communicator> comm, int peer, c10::Device device,
                     MakeArrival make_arrival)
    : comm_(std::move(comm)),
      peer_(peer),
      device_(device),
      wire_(comm_->is_on_streams() ? device : c10::Device(c10::kCPU)),
      make_arrival_(std::move(make_arrival)) {}

comm::Work StageLink::submit(db_kind kind, const at::Tensor& tensor) {
  db_op op = message_op(kind, tensor, peer_);
  op.tag = static_cast<int32_t>(messages_++ % kTags);
  return comm_->submit(op);
}

void StageLink::send(const std::vector<at::Tensor>& values, bool header) {
  while (!sent_.empty() && is_done(sent_.front().works)) sent_.pop_front();
  Message message;
  if (header) message.values.push_back(header_of(meta_of(values)));
  for (const at::Tensor& value : values) {
    message.values.push_back(value.detach().to(wire_).contiguous());
  }
  sent_.push_back(std::move(message));
  for (const at::Tensor& value : sent_.back().values) {
    sent_.back().works.push_back(submit(DB_SEND, value));
  }
}

void StageLink::finish() {
  while (!sent_.empty()) {
    for (comm::Work& work : sent_.front().works) work.wait();
    sent_.pop_front();
  }
}

void StageLink::expect(const ValueMeta& meta) {
  Message& message = expected_.emplace_back();
  for (const TensorMeta& tensor : meta) {
    message.values.push_back(
        make_arrival_ ? make_arrival_(tensor.sizes, tensor.type)
                      : at::empty(tensor.sizes, at::TensorOptions(tensor.type).device(wire_)));
  }
  for (const at::Tensor& value : message.values) {
    message.works.push_back(submit(DB_RECV, value));
  }
}

ValueMeta StageLink::receive_meta() {
  const at::Tensor header = at::zeros({kHeaderNumbers}, at::kLong);
  submit(DB_RECV, header).wait();
  return meta_in(header);
}

std::vector<at::Tensor> StageLink::receive() {
  Message& message = expected_.front();
  for (comm::Work& work : message.works) work.wait();
  std::vector<at::Tensor> values = std::move(message.values);
  expected_.pop_front();
  for (at::Tensor& value : values) value = value.to(device_);
  return values;
}

void StageLink::abort(const std::string& why) {
  comm_->abort(why);
  for (Message& message : sent_) forget(message.works);
  for (Message& message : expected_) forget(message.works);
  sent_.clear();
  expected_.clear();
}

StageLinks::StageLinks(comm::Communicator& comm, int virtual_count, c10::Device device,
                       const MakeArrival& make_arrival)
    : stage(comm.rank()), stages(comm.size()), virtual_stages(virtual_count) {
  if (stages == 1) return;
  const auto pair_of = [&](int color, const std::string& name) {
    if (!make_arrival) return comm.split(color, stage, name);
    return color < 0 ? nullptr : comm::Communicator::made_up(name, 2);
  };
  const auto link_of = [&](const std::shared_ptr<comm::Communicator>& pair, int peer) {
    return std::make_unique<StageLink>(pair, peer, device, make_arrival);
  };
  // The pairs (0, 1), (2, 3), … and then (1, 2), (3, 4), …: a stage is in at most one of each.
  for (int odd = 0; odd < 2; ++odd) {
    const int pair = stage < odd ? -1 : (stage - odd) / 2;
    const int lower = odd + 2 * pair;
    const bool is_in_one = pair >= 0 && lower + 1 < stages;
    for (const bool forward : {true, false}) {
      const auto shared = pair_of(is_in_one ? pair : -1,
                                  fmt::format("{} {}", forward ? "activations" : "gradients", odd));
      if (is_in_one) connect(link_of(shared, stage == lower ? 1 : 0), stage == lower, forward);
    }
  }
  if (virtual_stages == 1) return;
  const bool is_end = stage == 0 || stage == stages - 1;
  for (const bool forward : {true, false}) {
    const auto shared =
        pair_of(is_end ? 0 : -1, forward ? "activations around" : "gradients around");
    if (is_end) connect(link_of(shared, stage == 0 ? 1 : 0), stage != 0, forward);
  }
}

void StageLinks::connect(std::unique_ptr<StageLink> link, bool precedes, bool forward) {
  auto& place =
      forward ? (precedes ? values_out : values_in) : (precedes ? gradients_in : gradients_out);
  place = std::move(link);
}

void StageLinks::begin(uint64_t signature) {
  if (signature_ == signature) return;
  signature_ = signature;
  metas_in.clear();
  metas_out.clear();
}

void StageLinks::abort(const std::string& why) {
  const std::array links = {values_in.get(), values_out.get(), gradients_in.get(),
                            gradients_out.get()};
  for (StageLink* link : links) {
    if (link != nullptr) link->abort(why);
  }
}

}  // namespace coupler::pipelining
