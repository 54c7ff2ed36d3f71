// The gloo_cpu backend against libgloo's own algorithms on warm connections. Does not link
// LibTorch, whose gloo symbols clash with libgloo's. Started by bench/run under `coupler launch`.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <stdexcept>

#include "session.h"

namespace coupler::bench {
namespace {

constexpr std::chrono::seconds kTimeout{60};
constexpr uint64_t kWarmUpCount = uint64_t{4} << 20;  // floats; cold connections stall

// libgloo connects its ranks through the job's store.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  explicit GlooStore(coupler::store::Store& store) : store_(store) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set("gloo/" + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_.get("gloo/" + key, kTimeout);
    if (!value) throw std::runtime_error("libgloo's key " + key + " did not arrive in time");
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  coupler::store::Store& store_;
};

std::shared_ptr<gloo::Context> connect(Session& session) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  GlooStore store(session.store());
  auto context = std::make_shared<gloo::rendezvous::Context>(session.rank(), session.world_size());
  context->setTimeout(kTimeout);
  context->connectFullMesh(store, device);
  return context;
}

Candidate function_style(const std::shared_ptr<gloo::Context>& context, const char* name,
                         gloo::AllreduceOptions::Algorithm algorithm) {
  return {.name = name, .prepare = [=](float* data, uint64_t count) {
            auto options = std::make_shared<gloo::AllreduceOptions>(context);
            options->setOutput(data, count);
            options->setAlgorithm(algorithm);
            void (*sum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
            options->setReduceFunction(sum);
            return [options] { gloo::allreduce(*options); };
          }};
}

Candidate halving_doubling(const std::shared_ptr<gloo::Context>& context) {
  return {.name = "gloo halving-doubling", .prepare = [=](float* data, uint64_t count) {
            auto algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
                context, std::vector<float*>{data}, static_cast<int>(count));
            return [algorithm] { algorithm->run(); };
          }};
}

void run(int argc, char** argv) {
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  Session session(argc, argv);
  const auto context = connect(session);
  const Candidate ring = function_style(context, "gloo ring", Algorithm::RING);
  const Candidate bcube = function_style(context, "gloo bcube", Algorithm::BCUBE);
  std::vector<float> warm_up(kWarmUpCount);
  const auto operation = ring.prepare(warm_up.data(), warm_up.size());
  for (int i = 0; i < 3; ++i) operation();
  session.hold(
      {session.blocking(), ring, halving_doubling(context), bcube, session.asynchronous()});
}

}  // namespace
}  // namespace coupler::bench

int main(int argc, char** argv) {
  return coupler::bench::guarded([&] { coupler::bench::run(argc, argv); });
}
