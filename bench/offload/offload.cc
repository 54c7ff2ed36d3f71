// AdamW steps over 50 million parameters whose state is in memory or on disk, in turns, driven by
// bench/run: bench offload --folder FOLDER --control SOCKET, plus configuration arguments. Modes:
// steps, optimizer steps alone; raw, which concurrently reads and writes the bytes of such a step;
// ordered, which does so layer by layer and updates a layer that is in memory between reading and
// writing each; loop, forward, backward and step.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/ones.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fcntl.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "control.h"
#include "program.h"

namespace coupler::bench::offload {
namespace {

constexpr int64_t kWidth = 2048, kLayers = 12;
constexpr int64_t kRows = 256;  // rows per batch in the loop
constexpr size_t kPiece = size_t{8} << 20;

// An unnamed file that holds one step's bytes; reads and writes it with direct I/O.
class RawFile {
 public:
  RawFile(const std::string& folder, int64_t bytes)
      : bytes_(bytes / static_cast<int64_t>(kPiece) * static_cast<int64_t>(kPiece)),
        file_(check(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600))) {
    write(0, bytes_);
  }
  ~RawFile() { ::close(file_); }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  // By one thread each.
  void read(int64_t from, int64_t bytes) const { move(from, bytes, read_, ::pread); }
  void write(int64_t from, int64_t bytes) const { move(from, bytes, written_, ::pwrite); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<char, Free>;
  static Memory make_memory() {
    return Memory(static_cast<char*>(std::aligned_alloc(4096, kPiece)));
  }
  static int check(int64_t result) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), "the raw file");
    return static_cast<int>(result);
  }
  template <class Call>
  void move(int64_t from, int64_t bytes, const Memory& memory, const Call& call) const {
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(kPiece)) {
      check(call(file_, memory.get(), kPiece, (from + at) % bytes_));
    }
  }

  const int64_t bytes_;
  const int file_;
  const Memory read_ = make_memory(), written_ = make_memory();
};

// Work on one layer after the other, which another thread waits for.
class Progress {
 public:
  void advance() {
    done_.fetch_add(1);
    done_.notify_one();
  }
  void wait_for(int64_t layers) const {
    for (int64_t done = done_.load(); done < layers; done = done_.load()) done_.wait(done);
  }

 private:
  std::atomic<int64_t> done_{0};
};

// The least that a step with its state on disk has to do: a thread reads layer after layer
// (parameter, gradient, two moments), this thread updates each, and a third writes it back.
void step_in_order(const RawFile& raw, const std::vector<at::Tensor>& layer) {
  constexpr int64_t kTensor = kWidth * kWidth * 4;
  Progress fetched, updated;
  std::thread reader([&] {
    for (int64_t i = 0; i < kLayers; ++i) {
      raw.read(i * 4 * kTensor, 4 * kTensor);
      fetched.advance();
    }
  });
  std::thread writer([&] {
    for (int64_t i = 0; i < kLayers; ++i) {
      updated.wait_for(i + 1);
      raw.write(i * 4 * kTensor, 3 * kTensor);
    }
  });
  for (int64_t i = 0; i < kLayers; ++i) {
    fetched.wait_for(i + 1);
    at::_fused_adamw_({layer[0]}, {layer[1]}, {layer[2]}, {layer[3]}, {}, {layer[4]}, /*lr=*/1e-4,
                      /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/1e-2, /*eps=*/1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
    updated.advance();
  }
  reader.join();
  writer.join();
}

}  // namespace

int program(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--folder FOLDER --control SOCKET");
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int64_t i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  const int64_t parameters = kLayers * kWidth * kWidth;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto backward = [&, &net = net](int64_t rows) {
    accelerator.backward(net->forward(at::ones({rows, kWidth})).mean());
  };
  backward(1);
  opt.step();  // completes the step that backward began (optimizer_in_backward)

  const RawFile raw(values[0], parameters * 4 * 4);
  std::vector<at::Tensor> layer(4);
  for (at::Tensor& tensor : layer) tensor = at::ones({kWidth, kWidth});
  layer.push_back(at::ones({}));  // the number of the step
  const auto train = [&, &opt = opt](const std::string& mode, int64_t times) {
    for (int64_t i = 0; i < times; ++i) {
      if (mode == "ordered") {
        step_in_order(raw, layer);
        continue;
      }
      if (mode == "loop") {
        opt.zero_grad();
        backward(kRows);
      }
      if (mode != "raw") {
        opt.step();
        continue;
      }
      // Reads parameters, gradients and two moments; writes all but the gradients.
      std::thread writer([&] { raw.write(0, parameters * 4 * 3); });
      raw.read(0, parameters * 4 * 4);
      writer.join();
    }
  };
  coupler::bench::Control control(values[1]);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train = train,
                 .loss = [] { return 0.0; }});
  return 0;
}

const Registration kRegistration("offload", program);

}  // namespace coupler::bench::offload
