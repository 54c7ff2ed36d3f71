// Link: one direction between two neighbouring stages, over a communicator of their own, on which
// only one of them sends. So messages cannot wait for each other in a circle, also on backends that
// work an order of operations off (nccl). Used by the thread that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "pipeline/form.h"

namespace coupler {

class Link {
 public:
  // peer: of the two ranks of comm. device: where received tensors shall be.
  Link(std::shared_ptr<Communicator> comm, int peer, c10::Device device);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Sends a value (header: the form goes ahead) and returns at once; keeps it as long as it takes.
  void send(const std::vector<at::Tensor>& values, bool header);
  // Waits until all that was sent is gone.
  void finish();

  // Posts the receive of the next value.
  void expect(const Form& form);
  bool expects() const { return !expected_.empty(); }
  Form receive_form();  // blocks
  // The value that expect was called for first. Blocks.
  std::vector<at::Tensor> receive();

  // Ends what is under way on both ranks; the other one hears why.
  void abort(const std::string& why);

 private:
  struct Message {  // what is moved must outlive its operation, so it is declared first
    std::vector<at::Tensor> values;
    std::vector<Work> works;
  };
  db_op op(db_kind kind, const at::Tensor& tensor);

  const std::shared_ptr<Communicator> comm_;
  const int peer_;
  const c10::Device device_;
  const c10::Device wire_;  // the memory that messages go through
  int64_t messages_ = 0;    // tensors and headers so far
  std::deque<Message> sent_, expected_;
};

}  // namespace coupler
