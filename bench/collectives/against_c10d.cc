// The gloo_cpu backend against c10d::ProcessGroupGloo from the same LibTorch, which PyTorch's DDP
// uses on CPUs. Started by bench/run under `coupler launch`.
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "session.h"

namespace coupler::bench {
namespace {

constexpr std::chrono::seconds kTimeout{60};
constexpr const char* kPortKey = "contest/c10d-port";
constexpr int64_t kWarmUpCount = int64_t{4} << 20;  // floats; cold connections stall

c10::intrusive_ptr<c10d::TCPStore> meet(Session& session) {
  c10d::TCPStoreOptions options;
  options.isServer = session.rank() == 0;
  options.numWorkers = session.world_size();
  options.waitWorkers = false;
  options.timeout = kTimeout;
  options.port = 0;  // any free port
  if (session.rank() != 0) {
    const auto port = session.store().get(kPortKey, kTimeout);
    if (!port) throw std::runtime_error("rank 0 did not publish the port of its TCPStore");
    options.port = static_cast<uint16_t>(std::stoul(*port));
  }
  auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  if (session.rank() == 0) session.store().set(kPortKey, std::to_string(store->getPort()));
  return store;
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect(Session& session) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->timeout = kTimeout;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(meet(session), session.rank(),
                                                     session.world_size(), options);
}

Candidate reference(const c10::intrusive_ptr<c10d::ProcessGroupGloo>& group) {
  return {.name = "c10d ProcessGroupGloo", .prepare = [group](float* data, uint64_t count) {
            auto tensors = std::make_shared<std::vector<at::Tensor>>();
            tensors->push_back(at::from_blob(data, {static_cast<int64_t>(count)}, at::kFloat));
            return [group, tensors] { group->allreduce(*tensors)->wait(); };
          }};
}

void run(int argc, char** argv) {
  at::set_num_threads(1);
  Session session(argc, argv);
  const auto group = connect(session);
  const Candidate c10d = reference(group);
  std::vector<float> warm_up(static_cast<size_t>(kWarmUpCount));
  const auto operation = c10d.prepare(warm_up.data(), warm_up.size());
  for (int i = 0; i < 3; ++i) operation();
  session.hold({session.blocking(), c10d, session.asynchronous()});
}

}  // namespace
}  // namespace coupler::bench

int main(int argc, char** argv) {
  return coupler::bench::guarded([&] { coupler::bench::run(argc, argv); });
}
