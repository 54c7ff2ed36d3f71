#include "pipeline/link.h"

#include <ATen/Functions.h>
#include <coupler/error.h>

#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

// Tags are matched exactly, so they distinguish messages in flight at the same time.
constexpr int64_t kTags = 1 << 14;

// Waits for aborted operations; the caller reports why they were aborted.
void forget(std::vector<Work>& works) {
  for (Work& work : works) {
    try {
      work.wait();
    } catch (const Error&) {
      continue;
    }
  }
}

bool is_done(std::vector<Work>& works) {
  for (Work& work : works) {
    if (!work.done()) return false;
  }
  return true;
}

}  // namespace

// If the backend cannot use the device's memory, operations on it would complete when submitted,
// and receives could not be posted ahead. So messages then go through host memory.
Link::Link(std::shared_ptr<Communicator> comm, int peer, c10::Device device)
    : comm_(std::move(comm)),
      peer_(peer),
      device_(device),
      wire_(comm_->is_on_streams() ? device : c10::Device(c10::kCPU)) {}

Link::~Link() = default;

db_op Link::op(db_kind kind, const at::Tensor& tensor) {
  db_op result{};
  result.kind = kind;
  result.dtype = to_db_dtype(tensor.scalar_type());
  result.send = tensor.const_data_ptr();
  result.recv = tensor.mutable_data_ptr();
  result.count = static_cast<uint64_t>(tensor.numel());
  result.memory = memory_of(tensor.device());
  result.root_or_peer = peer_;
  result.tag = static_cast<int32_t>(messages_++ % kTags);
  return result;
}

void Link::send(const std::vector<at::Tensor>& values, bool header) {
  while (!sent_.empty() && is_done(sent_.front().works)) sent_.pop_front();
  Message message;
  if (header) message.values.push_back(header_of(form_of(values)));
  for (const at::Tensor& value : values) {
    message.values.push_back(value.detach().to(wire_).contiguous());
  }
  sent_.push_back(std::move(message));
  for (const at::Tensor& value : sent_.back().values) {
    sent_.back().works.push_back(comm_->submit(op(DB_SEND, value)));
  }
}

void Link::finish() {
  while (!sent_.empty()) {
    for (Work& work : sent_.front().works) work.wait();
    sent_.pop_front();
  }
}

void Link::expect(const Form& form) {
  Message& message = expected_.emplace_back();
  for (const TensorForm& tensor : form) {
    message.values.push_back(at::empty(tensor.sizes, at::TensorOptions(tensor.type).device(wire_)));
  }
  for (const at::Tensor& value : message.values) {
    message.works.push_back(comm_->submit(op(DB_RECV, value)));
  }
}

Form Link::receive_form() {
  const at::Tensor header = at::zeros({kHeaderNumbers}, at::kLong);
  comm_->submit(op(DB_RECV, header)).wait();
  return form_in(header);
}

std::vector<at::Tensor> Link::receive() {
  Message& message = expected_.front();
  for (Work& work : message.works) work.wait();
  std::vector<at::Tensor> values = std::move(message.values);
  expected_.pop_front();
  for (at::Tensor& value : values) value = value.to(device_);
  return values;
}

void Link::abort(const std::string& why) {
  comm_->abort(why);
  for (Message& message : sent_) forget(message.works);
  for (Message& message : expected_) forget(message.works);
  sent_.clear();
  expected_.clear();
}

}  // namespace coupler
