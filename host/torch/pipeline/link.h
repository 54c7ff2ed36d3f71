// StageLink: one direction between two neighboring stages, over their own communicator, on which
// only one of them sends. So messages cannot deadlock, even on backends that run operations
// strictly in order. Used by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace coupler::pipelining {

// ValueMeta: what a rank must know to receive a value: how many tensors it has, their types and
// shapes. It is sent as a fixed-size header ahead of the first such value. Pure functions.

struct TensorMeta {
  at::ScalarType type = at::kFloat;
  bool wants_gradient = false;  // the receiver sends one back
  std::vector<int64_t> sizes;
  bool operator==(const TensorMeta&) const = default;
};
using ValueMeta = std::vector<TensorMeta>;

constexpr int64_t kMaxWireTensors = 16, kMaxWireDimensions = 8;
constexpr int64_t kHeaderNumbers = 1 + kMaxWireTensors * (3 + kMaxWireDimensions);

ValueMeta meta_of(const std::vector<at::Tensor>& values);
std::string text_of(const ValueMeta& meta);  // "[Float [2, 3] with gradient, Long [2]]"

// A tensor of kHeaderNumbers int64. Throws Error(kUnsupported) if the value does not fit or has a
// type that cannot be sent.
at::Tensor header_of(const ValueMeta& meta);
// Throws Error(kMismatch) if the numbers are not a valid header.
ValueMeta meta_in(const at::Tensor& header);

// DB_SEND or DB_RECV of a whole tensor.
db_op message_op(db_kind kind, const at::Tensor& tensor, int peer);

// In a dry run, in which nothing arrives: makes what would.
using MakeArrival = std::function<at::Tensor(at::IntArrayRef sizes, at::ScalarType type)>;

class StageLink {
 public:
  // peer: the other of comm's two ranks. device: where received tensors are put. make_arrival: null
  // except in a dry run.
  StageLink(std::shared_ptr<comm::Communicator> comm, int peer, c10::Device device,
            MakeArrival make_arrival);
  StageLink(const StageLink&) = delete;
  StageLink& operator=(const StageLink&) = delete;

  // Sends a value (header: its ValueMeta first) and returns at once; keeps the value until it is
  // sent.
  void send(const std::vector<at::Tensor>& values, bool header);
  // Waits until all sends are complete.
  void finish();

  // Posts the receive of the next value.
  void expect(const ValueMeta& meta);
  bool expects() const { return !expected_.empty(); }
  ValueMeta receive_meta();  // blocks
  // The value of the oldest expect(). Blocks.
  std::vector<at::Tensor> receive();

  // Ends the operations in flight on both ranks; the other rank receives `why`.
  void abort(const std::string& why);

 private:
  struct Message {  // tensors must outlive their operations, so they are declared first
    std::vector<at::Tensor> values;
    std::vector<comm::Work> works;
  };
  comm::Work submit(db_kind kind, const at::Tensor& tensor);

  const std::shared_ptr<comm::Communicator> comm_;
  const int peer_;
  const c10::Device device_;
  const c10::Device wire_;  // the memory that messages go through
  const MakeArrival make_arrival_;
  int64_t messages_ = 0;  // tensors and headers so far
  std::deque<Message> sent_, expected_;
};

// What one stage of a pipeline shares with the stages before and after it, from batch to batch.
struct StageLinks {
  // stages: the communicator whose ranks are the stages, in order. Each pair of neighbors gets a
  // communicator for each direction. With several virtual stages, the first stage follows the last.
  // make_arrival: as of StageLink; with it, neighbors are made up. Collective.
  StageLinks(comm::Communicator& stages, int virtual_stages, c10::Device device,
             const MakeArrival& make_arrival);

  // Whether a virtual stage of this stage is the model's first or last part.
  bool is_first(int virtual_stage) const { return stage == 0 && virtual_stage == 0; }
  bool is_last(int virtual_stage) const {
    return stage == stages - 1 && virtual_stage == virtual_stages - 1;
  }
  int before() const { return (stage + stages - 1) % stages; }
  int after() const { return (stage + 1) % stages; }
  // Begins a batch; forgets what values are like if the signature has changed.
  void begin(uint64_t signature);
  void abort(const std::string& why);

  const int stage, stages, virtual_stages;
  std::unique_ptr<StageLink> values_in, gradients_out;  // with before(); null: nothing precedes
  std::unique_ptr<StageLink> values_out, gradients_in;  // with after(); null: nothing follows
  // The values of a micro-batch, by virtual stage and number of rows.
  using Forms = std::map<std::pair<int, int64_t>, ValueMeta>;
  Forms metas_in, metas_out;

 private:
  // precedes: whether this stage sends activations to the pair's other one. forward: whether
  // activations are what passes.
  void connect(std::unique_ptr<StageLink> link, bool precedes, bool forward);

  std::optional<uint64_t> signature_;
};

}  // namespace coupler::pipelining
