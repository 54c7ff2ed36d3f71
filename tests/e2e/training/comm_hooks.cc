// Comm hooks under every backend: a hook that averages changes nothing, it sees this rank's own
// gradients in the same buckets in every step, its collectives overlap with backward, and a hook
// that fails ends the job on every rank.
#include <coupler/coupler.h>

#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "check.h"

namespace {

using coupler::Accelerator;
using coupler::GradientBucket;
using coupler::GradientFuture;

constexpr int64_t kHookRows = 24;  // divisible by world sizes 1 to 4

// A prepared model and its copy, which LibTorch trains alone.
struct HookTwins {
  explicit HookTwins(Accelerator& accelerator) : accelerator(accelerator) {
    torch::manual_seed(13);
    Net model;
    net = accelerator.prepare(model);
    torch::manual_seed(13);
    reference = Net();
  }
  void backward(int step, double scale = 1) {
    const Batch joined = joined_batch(step, kHookRows);
    accelerator.backward(
        scale * loss_of(net, own_part(joined, accelerator.rank(), accelerator.world_size())));
    (scale * loss_of(reference, joined)).backward();
  }
  // theirs: what the reference's gradients have to be multiplied by.
  void expect_gradients(const std::string& what, double theirs = 1, double tolerance = 1e-8) {
    for (size_t i = 0; i < trainable(net).size(); ++i) {
      const torch::Tensor ours = accelerator.gradient(trainable(net)[i]);
      const torch::Tensor expected = trainable(reference)[i].grad() * theirs;
      EXPECT(ours.defined(), what + ": no gradient " + std::to_string(i));
      EXPECT(torch::allclose(ours, expected, tolerance, tolerance / 100),
             what + ": gradient " + std::to_string(i) + " differs by " +
                 std::to_string((ours - expected).abs().max().item<double>()));
    }
  }
  void drop() {
    for (torch::Tensor& parameter : reference->parameters()) parameter.mutable_grad().reset();
    for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
  }

  Accelerator& accelerator;
  Net net{nullptr}, reference{nullptr};
};

// This rank's part of a whole tensor like buffer().
torch::Tensor own_shard(GradientBucket& bucket, const torch::Tensor& whole) {
  if (bucket.shard_sizes().empty()) return whole;
  int64_t begin = 0;
  for (int r = 0; r < bucket.rank(); ++r) begin += bucket.shard_sizes()[static_cast<size_t>(r)];
  return whole.narrow(0, begin, bucket.shard_sizes()[static_cast<size_t>(bucket.rank())]);
}

// Three ways to the mean.
void hooks_that_average(Accelerator& accelerator) {
  const auto by_default = [](GradientBucket& bucket) { return bucket.average(); };
  const auto at_once = [](GradientBucket& bucket) -> GradientFuture {
    torch::Tensor sum = bucket.all_reduce(bucket.buffer().clone()).wait();
    return own_shard(bucket, sum.div_(bucket.world_size()));
  };
  // A gather and then, as a second collective, a sum of halves: the mean of both is the mean.
  const auto in_steps = [](GradientBucket& bucket) {
    return bucket.all_gather(bucket.buffer().clone()).then([&bucket](const torch::Tensor& rows) {
      torch::Tensor half = bucket.buffer() / (2.0 * bucket.world_size());
      return bucket.all_reduce(half).then([&bucket, rows](const torch::Tensor& sum) {
        return own_shard(bucket, sum + rows.mean(0) / 2).clone();
      });
    });
  };
  const std::vector<std::pair<const char*, coupler::CommHook>> hooks = {
      {"average", by_default}, {"at once", at_once}, {"in steps", in_steps}};
  for (const auto& [name, hook] : hooks) {
    HookTwins twins(accelerator);
    const auto registered = accelerator.register_comm_hook(twins.net, name, hook);
    for (int step = 0; step < 2; ++step) twins.backward(step);  // the second adds to the first
    twins.expect_gradients(name);
  }
}

// What the hook gets: all of this rank's gradients, in the same buckets each time.
void hook_sees_buckets(Accelerator& accelerator) {
  HookTwins twins(accelerator);
  Net alone;  // this rank's gradients only
  {
    torch::manual_seed(13);
    alone = Net();
  }
  std::map<size_t, std::vector<std::string>> known;
  std::set<size_t> seen;
  int lasts = 0;
  std::map<std::string, torch::Tensor> own;
  const auto registered =
      accelerator.register_comm_hook(twins.net, "looks", [&](GradientBucket& bucket) {
        EXPECT(seen.insert(bucket.index()).second, "a bucket came twice");
        EXPECT(bucket.rank() < bucket.world_size(), "rank");
        lasts += bucket.is_last() ? 1 : 0;
        const auto [at, first] = known.emplace(bucket.index(), bucket.names());
        EXPECT(first || at->second == bucket.names(), "other parameters in the same bucket");
        EXPECT(!bucket.names().empty(), "a bucket without names");
        for (size_t i = 0; i < bucket.gradients().size(); ++i) {
          EXPECT(bucket.parameters()[i].sizes() == bucket.gradients()[i].sizes(), "sizes");
          own[bucket.names()[i]] = bucket.gradients()[i].clone();
        }
        return bucket.average();
      });
  for (int step = 0; step < 3; ++step) {
    seen.clear();
    own.clear();
    lasts = 0;
    alone->zero_grad();
    twins.drop();
    twins.backward(step);
    loss_of(alone,
            own_part(joined_batch(step, kHookRows), accelerator.rank(), accelerator.world_size()))
        .backward();
    if (accelerator.world_size() == 1) {
      EXPECT(seen.empty(), "the hook was called in a single process");
      continue;
    }
    EXPECT(lasts == 1, std::to_string(lasts) + " last buckets");
    EXPECT(seen.size() == known.size() && *seen.rbegin() + 1 == known.size(),
           "buckets are not numbered from 0");
    std::set<std::string> names;
    for (const auto& [index, of] : known) names.insert(of.begin(), of.end());
    EXPECT(names == (std::set<std::string>{"tied", "hidden.bias", "hidden.weight", "scale"}),
           "not the names of the trainable parameters");
    for (const auto& [name, gradient] : own) {
      const auto expected = alone->named_parameters()[name].grad();
      EXPECT(torch::allclose(gradient, expected), name + " is not this rank's own gradient");
    }
  }
}

// A hook may change gradients before and after the reduction, and clipping, accumulation and the
// optimizer see the result. After its scope, gradients are averaged as before.
void hook_transforms(Accelerator& accelerator) {
  const double factor = accelerator.world_size() > 1 ? 6 : 1;
  HookTwins twins(accelerator);
  torch::optim::SGD optimizer(trainable(twins.net), 0.1);
  torch::optim::SGD other(trainable(twins.reference), 0.1);
  auto opt = accelerator.prepare(optimizer);
  {
    const auto registered =
        accelerator.register_comm_hook(twins.net, "times 6", [](GradientBucket& bucket) {
          bucket.buffer().mul_(2);
          return bucket.average().then([](const torch::Tensor& mean) { return mean * 3; });
        });
    const std::string again = error_of([&] {
      const auto second = accelerator.register_comm_hook(
          twins.net, "second", [](GradientBucket& bucket) { return bucket.average(); });
    });
    EXPECT(again.find("has the hook 'times 6' already") != std::string::npos, again);
    accelerator.set_gradient_accumulation_steps(2);
    for (int step = 0; step < 2; ++step) {
      const auto window = accelerator.accumulate(twins.net);
      twins.backward(step);
      if (step == 0) continue;
      twins.expect_gradients("a window", factor / 2);
      const double norm = accelerator.clip_grad_norm(twins.net, 0.01);
      for (torch::Tensor& parameter : trainable(twins.reference)) {
        parameter.mutable_grad().mul_(factor / 2);
      }
      const double expected = torch::nn::utils::clip_grad_norm_(trainable(twins.reference), 0.01);
      EXPECT(std::abs(norm - expected) < 1e-6 * expected, "the norm is " + std::to_string(norm));
      opt.step();
      opt.zero_grad();
      other.step();
      other.zero_grad();
    }
    accelerator.set_gradient_accumulation_steps(1);
  }
  accelerator.for_each_tensor(twins.net, [&](const std::string& name, const torch::Tensor& value) {
    EXPECT(torch::allclose(value, twins.reference->named_parameters()[name]), name);
  });
  for (int step = 2; step < 4; ++step) {
    twins.backward(step);
    twins.expect_gradients("after the hook's scope");
    opt.step();
    opt.zero_grad();
    other.step();
    other.zero_grad();
  }
}

// Shards, rows and rank 0's values, in 16 bits where a bucket's dtype is wider.
void hook_collectives(Accelerator& accelerator) {
  HookTwins twins(accelerator);
  const auto registered =
      accelerator.register_comm_hook(twins.net, "collectives", [](GradientBucket& bucket) {
        const int ranks = bucket.world_size();
        const auto options = torch::TensorOptions(torch::kDouble);
        // Row r of rank s is 10 s + r.
        const auto rows = [&] {
          return (torch::arange(ranks, options) + 10 * bucket.rank()).unsqueeze(1).repeat({1, 3});
        };
        const torch::Tensor swapped = bucket.all_to_all(rows()).wait();
        EXPECT(
            torch::equal(swapped.select(1, 0), 10 * torch::arange(ranks, options) + bucket.rank()),
            "all_to_all");
        const torch::Tensor largest =
            bucket.all_reduce(torch::full({2}, bucket.rank(), options), coupler::ReduceOp::kMax)
                .wait();
        EXPECT(largest[1].item<double>() == ranks - 1, "all_reduce of the maximum");
        const torch::Tensor first =
            bucket.broadcast(torch::full({2}, bucket.rank() + 7, options), 0).wait();
        EXPECT(first[0].item<double>() == 7, "broadcast");
        torch::Tensor mean;
        if (bucket.shard_sizes().empty()) {
          const torch::Tensor sum = bucket.reduce_scatter(rows()).wait();
          EXPECT(sum.sizes() == torch::IntArrayRef({3}) &&
                     sum[0].item<double>() == 5 * ranks * (ranks - 1) + ranks * bucket.rank(),
                 "reduce_scatter");
          mean = bucket.all_reduce(bucket.buffer().clone()).wait() / ranks;
        } else {
          mean = bucket.reduce_scatter(bucket.buffer().clone()).wait() / ranks;
        }
        const std::string wrong = error_of([&] {
          bucket.all_to_all(torch::zeros({ranks + 1, 2}, options));
        });
        EXPECT(wrong.find("needs one row for each of") != std::string::npos, wrong);
        return mean;
      });
  twins.backward(0);
  twins.expect_gradients("collectives");
}

// A backward for some inputs reduces a model only if one of them is its parameter, or if gradients
// of an earlier backward wait for an average.
void inputs_reduce_their_model(Accelerator& accelerator) {
  HookTwins twins(accelerator);
  int calls = 0;
  const auto registered =
      accelerator.register_comm_hook(twins.net, "counts", [&](GradientBucket& bucket) {
        ++calls;
        return bucket.average();
      });
  const bool several = accelerator.world_size() > 1;
  torch::Tensor x = torch::ones({2}).requires_grad_();
  const auto backward_of_x = [&] {
    const auto scope = accelerator.accumulate(twins.net);
    calls = 0;
    x.mutable_grad().reset();
    accelerator.backward(x.square().sum(), {.inputs = {x}});
    EXPECT(torch::equal(x.grad(), torch::full({2}, 2.0)), "the gradient of x");
  };
  backward_of_x();
  EXPECT(calls == 0, "a model without a gradient was reduced");
  {
    const auto alone = accelerator.no_sync(twins.net);
    twins.backward(0);
  }
  backward_of_x();
  EXPECT(calls > 0 || !several, "waiting gradients were not averaged");
  twins.expect_gradients("waiting gradients");
  backward_of_x();
  EXPECT(calls == 0, "gradients were averaged again");
  twins.expect_gradients("averaged gradients");
}

void wrong_hooks(Accelerator& accelerator) {
  HookTwins twins(accelerator);
  const std::string empty = error_of([&] {
    const auto none = accelerator.register_comm_hook(twins.net, "none", coupler::CommHook());
  });
  EXPECT(empty.find("the hook 'none' is an empty function") != std::string::npos, empty);
  Net stranger;
  const std::string unknown = error_of([&] {
    const auto none = accelerator.register_comm_hook(
        stranger, "x", [](GradientBucket& bucket) { return bucket.average(); });
  });
  EXPECT(unknown.find("was not prepared") != std::string::npos, unknown);
  if (accelerator.world_size() == 1) return;
  const std::string name = accelerator.rank() == 0 ? "one" : "another";
  const std::string differs = error_of([&] {
    const auto none = accelerator.register_comm_hook(
        twins.net, name, [](GradientBucket& bucket) { return bucket.average(); });
  });
  EXPECT(differs.find("the comm hook of the model") != std::string::npos, differs);
}

// On one rank only. Every rank gets an error that names hook, bucket and rank.
void hook_fails(Accelerator& accelerator) {
  HookTwins twins(accelerator);
  const int bad = accelerator.world_size() - 1;
  const auto registered =
      accelerator.register_comm_hook(twins.net, "fragile", [&](GradientBucket& bucket) {
        if (accelerator.rank() == bad) throw std::runtime_error("no luck");
        return bucket.average();
      });
  const std::string message = error_of([&] { twins.backward(0); });
  const std::string expected = "the comm hook 'fragile' failed on rank " + std::to_string(bad);
  EXPECT(message.find(expected) != std::string::npos &&
             message.find("no luck") != std::string::npos &&
             message.find("of the model") != std::string::npos,
         message);
  std::printf("rank %d: %s\n", accelerator.rank(), message.c_str());
}

}  // namespace

std::vector<Check> comm_hook_checks() {
  return {
      {"hooks_that_average", hooks_that_average},
      {"hook_sees_buckets", hook_sees_buckets},
      {"hook_transforms", hook_transforms},
      {"hook_collectives", hook_collectives},
      {"inputs_reduce_their_model", inputs_reduce_their_model},
      {"wrong_hooks", wrong_hooks},
      {"hook_fails", hook_fails, true},
  };
}
