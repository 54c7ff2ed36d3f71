// Link: one direction between two neighboring stages, over their own communicator, on which only
// one of them sends. So messages cannot deadlock, even on backends that run operations strictly in
// order (nccl). Used by the training thread.
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
  // peer: the other of comm's two ranks. device: where received tensors are put.
  Link(std::shared_ptr<Communicator> comm, int peer, c10::Device device);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Sends a value (header: its form first) and returns at once; keeps the value until it is sent.
  void send(const std::vector<at::Tensor>& values, bool header);
  // Waits until all sends are complete.
  void finish();

  // Posts the receive of the next value.
  void expect(const Form& form);
  bool expects() const { return !expected_.empty(); }
  Form receive_form();  // blocks
  // The value of the oldest expect(). Blocks.
  std::vector<at::Tensor> receive();

  // Ends the operations in flight on both ranks; the other rank receives `why`.
  void abort(const std::string& why);

 private:
  struct Message {  // tensors must outlive their operations, so they are declared first
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
