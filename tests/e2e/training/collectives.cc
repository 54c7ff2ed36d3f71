// Collectives over values: nested structures, objects, differing ranks, splitting, the trigger.
#include <coupler/coupler.h>
#include <coupler/objects.h>

#include "check.h"

namespace {

struct Predictions {
  torch::Tensor loss;
  std::vector<torch::Tensor> states;
};

struct Summary {
  std::string name;
  std::vector<double> values;
};
void to_json(nlohmann::json& json, const Summary& summary) {
  if (summary.name.empty()) throw std::invalid_argument("a summary needs a name");
  json = {{"name", summary.name}, {"values", summary.values}};
}
void from_json(const nlohmann::json& json, Summary& summary) {
  json.at("name").get_to(summary.name);
  json.at("values").get_to(summary.values);
}

}  // namespace

template <>
struct coupler::NestedFields<Predictions> {
  static constexpr auto fields = std::make_tuple(nested_field("loss", &Predictions::loss),
                                                 nested_field("states", &Predictions::states));
};

namespace {

using coupler::Accelerator;
using coupler::ReduceOp;
using Map = std::map<std::string, torch::Tensor>;

void expect_part(const std::string& text, const std::string& part) {
  EXPECT(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'");
}

// Every dtype that can be sent, in one structure with scalars, empty and strided tensors.
void nested_gather(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  const auto own = [&](torch::ScalarType type) {
    return torch::full({2, 3}, 1 + rank).to(type).t();  // strided, [3, 2]
  };
  std::map<std::string, std::vector<torch::Tensor>> value;
  const std::vector<torch::ScalarType> types = {
      torch::kBool,  torch::kUInt8, torch::kInt8,     torch::kInt16, torch::kInt32,
      torch::kInt64, torch::kHalf,  torch::kBFloat16, torch::kFloat, torch::kDouble};
  for (const auto type : types) value["types"].push_back(own(type));
  value["others"] = {torch::tensor(rank), torch::zeros({0, 4}), torch::Tensor(),
                     torch::full({20000}, rank, torch::requires_grad().dtype(torch::kFloat))};
  const auto result = accelerator.gather(value);
  for (size_t i = 0; i < types.size(); ++i) {
    std::vector<torch::Tensor> parts;
    for (int r = 0; r < world_size; ++r) parts.push_back(torch::full({3, 2}, 1 + r).to(types[i]));
    EXPECT(torch::equal(result.at("types")[i], torch::cat(parts)), toString(types[i]));
  }
  const auto& others = result.at("others");
  EXPECT(torch::equal(others[0], torch::arange(world_size)), "gather of a nested scalar");
  EXPECT(others[1].sizes() == torch::IntArrayRef({0, 4}), "gather of an empty tensor");
  EXPECT(!others[2].defined(), "gather of an undefined tensor");
  EXPECT(others[3].size(0) == 20000 * world_size && others[3][-1].item<int>() == world_size - 1 &&
             !others[3].requires_grad(),
         "gather of a large leaf");
}

void nested_reduce_and_broadcast(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  const double mine = 1 + rank, sum = world_size * (world_size + 1) / 2.0;
  const Predictions value = {
      torch::tensor(mine),
      {torch::full({2, 2}, mine, torch::kFloat).t(), torch::full({3}, 1 + rank)}};
  const Predictions added = accelerator.reduce(value);
  EXPECT(added.loss.dim() == 0 && added.loss.item<double>() == sum, "nested sum");
  EXPECT(torch::equal(added.states[1], torch::full({3}, world_size * (world_size + 1) / 2)),
         "integer sum");
  EXPECT(value.loss.item<double>() == mine, "reduce changed its input");
  const std::vector<torch::Tensor> floats = {value.loss, value.states[0].to(torch::kBFloat16)};
  const auto mean = accelerator.reduce(floats, ReduceOp::kMean, 4);
  EXPECT(std::abs(mean[0].item<double>() - 4 * sum / world_size) < 1e-6, "nested mean, scaled");
  EXPECT(mean[1].scalar_type() == torch::kBFloat16 &&
             std::abs(mean[1][0][0].item<double>() - 4 * sum / world_size) < 0.1,
         "mean of bf16");
  EXPECT(accelerator.reduce(value, ReduceOp::kMax).states[1][0].item<int>() == world_size, "max");
  EXPECT(accelerator.reduce(value, ReduceOp::kMin).states[1][0].item<int>() == 1, "min");
  EXPECT(accelerator.reduce(torch::tensor({rank == 0, false})).equal(torch::tensor({true, false})),
         "the sum of bools is not a logical or");
  EXPECT(accelerator.reduce(torch::ones({0})).numel() == 0, "reduce of an empty tensor");

  const std::pair<Predictions, torch::data::Example<>> both = {
      value, {torch::full({2}, rank, torch::kBool), torch::full({70000}, rank)}};
  const auto sent = accelerator.broadcast(both, world_size - 1);
  EXPECT(sent.first.loss.item<double>() == world_size &&
             sent.second.target[69999].item<int>() == world_size - 1,
         "nested broadcast");
  EXPECT(sent.second.data[1].item<bool>() == (world_size > 1), "broadcast of bools");
}

void padding(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  const Map value = {{"tokens", torch::full({1 + rank, 2}, rank)},
                     {"mask", torch::full({1 + rank}, true)},
                     {"scalar", torch::tensor(rank)}};
  const Map behind = accelerator.pad_across_processes(value, 0, 1);
  EXPECT(behind.at("tokens").size(0) == world_size && behind.at("mask").size(0) == world_size,
         "pad: size");
  EXPECT(behind.at("tokens").narrow(0, 0, 1 + rank).equal(value.at("tokens")), "pad: own rows");
  EXPECT(behind.at("tokens").narrow(0, 1 + rank, world_size - 1 - rank).eq(1).all().item<bool>(),
         "pad: padding");
  EXPECT(behind.at("scalar").item<int>() == rank, "pad changed a value without that dimension");
  EXPECT(accelerator.gather(behind).at("tokens").size(0) == world_size * world_size,
         "gather of padded");
  const auto first = accelerator.pad_across_processes(value.at("tokens").t(), -1, -100, true);
  EXPECT(first.sizes() == torch::IntArrayRef({2, world_size}) &&
             first[0][world_size - 1].item<int>() == rank,
         "pad_first");
  EXPECT(world_size == rank + 1 || first[1][0].item<int>() == -100, "pad_first: padding");
  const std::string text = error_of([&] {
    accelerator.pad_across_processes(Map{{"x", torch::ones({1}, torch::kUInt8)}}, 0, 300);
  });
  expect_part(text,
              "value[\"x\"]: it cannot be padded with 300, which is not a value of type Byte");
}

// All ranks get an error that names the difference, and the job continues: a training step works.
void differing_ranks(Accelerator& accelerator) {
  if (accelerator.world_size() == 1) return;
  const bool last = accelerator.rank() == accelerator.world_size() - 1;
  const std::string ranks =
      "ranks 0 and " + std::to_string(accelerator.world_size() - 1) + " differ";
  torch::manual_seed(3);
  torch::nn::Linear model(3, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  for (int round = 0; round < 2; ++round) {
    const Map sizes = {{"logits", torch::ones({2, last ? 4 : 3})}};
    std::string text = error_of([&] { accelerator.gather(sizes); });
    expect_part(text, ranks);
    expect_part(text, "value[\"logits\"] is Float [2, 3] on rank 0");
    expect_part(text, "value[\"logits\"] is Float [2, 4] on rank");
    const Map keys = {{last ? "b" : "a", torch::ones({1})}};
    expect_part(error_of([&] { accelerator.broadcast(keys); }), ranks);
    const auto type = last ? torch::kHalf : torch::kFloat;
    text = error_of([&] { accelerator.reduce(torch::ones({3}, type), ReduceOp::kMean); });
    expect_part(text, "reduce(mean): " + ranks + ": value is Float [3] on rank 0");
    text = error_of(
        [&] { accelerator.pad_across_processes(torch::ones({last ? 1 : 2}).view({-1}).to(type)); });
    expect_part(text, ranks);
    text = error_of([&] {
      last ? accelerator.gather(torch::ones({1})) : accelerator.broadcast(torch::ones({1}));
    });
    expect_part(text, "rank 0 calls broadcast(from 0), but rank");
    text = error_of([&] {
      const auto own = torch::ones({2, 2});
      accelerator.gather(last ? own.to_sparse() : own);
    });
    expect_part(text, "not dense");

    accelerator.backward(net->forward(torch::ones({2, 3})).sum());
    opt.step();
    opt.zero_grad();
  }
  const auto total = accelerator.reduce(torch::ones({2, 3}));
  EXPECT(total[0][0].item<int>() == accelerator.world_size(), "reduce after differing ranks");
}

void objects(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  const Summary own = {"rank " + std::to_string(rank) + std::string(static_cast<size_t>(rank), '!'),
                       std::vector<double>(static_cast<size_t>(rank), 0.25)};
  const auto all = coupler::gather_object(accelerator, own);
  EXPECT(all.size() == static_cast<size_t>(world_size),
         "gather_object: there is not one object for each rank");
  for (int r = 0; r < world_size; ++r) {
    const Summary& seen = all[static_cast<size_t>(r)];
    EXPECT(seen.name.rfind("rank " + std::to_string(r), 0) == 0, "gather_object: " + seen.name);
    EXPECT(seen.values == std::vector<double>(static_cast<size_t>(r), 0.25),
           "gather_object: values");
  }
  const std::map<std::string, int> settings = {{"seed", rank}};
  const auto sent = coupler::broadcast_object(accelerator, settings, world_size - 1);
  EXPECT(sent.at("seed") == world_size - 1, "broadcast_object");
  EXPECT(coupler::gather_object(accelerator, std::vector<int>()).back().empty(), "empty objects");

  // One rank's object cannot be sent: every rank gets the reason and the rank, and continues.
  const bool last = rank == world_size - 1;
  const std::string text = error_of([&] {
    coupler::gather_object(accelerator, Summary{last ? "" : "fine", {}});
  });
  expect_part(text, "a summary needs a name");
  if (!last) expect_part(text, "rank " + std::to_string(world_size - 1) + " cannot take part");
  expect_part(error_of([&] { coupler::broadcast_object(accelerator, 1, world_size); }),
              "there is no such rank");
  if (world_size > 1) {
    expect_part(error_of([&] {
                  if (last) {
                    coupler::gather_object(accelerator, 1);
                  } else {
                    coupler::broadcast_object(accelerator, 1);
                  }
                }),
                "rank 0 calls broadcast_object(from 0), but rank");
  }
  EXPECT(coupler::gather_object(accelerator, rank).back() == world_size - 1,
         "objects after errors");
}

void split_and_trigger(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  std::vector<std::string> prompts;
  for (int i = 0; i < 2 * world_size + 1; ++i) prompts.push_back("prompt " + std::to_string(i));
  std::vector<std::string> joined;
  for (const auto& part :
       coupler::gather_object(accelerator, accelerator.split_between_processes(prompts))) {
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT(joined == prompts, "the ranks' parts do not add up to the whole");
  const auto rows = torch::arange(2 * world_size + 1);
  const auto padded = accelerator.split_between_processes(Map{{"x", rows}}, true);
  EXPECT(accelerator.gather(padded).at("x").size(0) == (world_size == 1 ? 3 : 3 * world_size),
         "padding");

  EXPECT(!accelerator.check_trigger(), "a trigger fired that no rank set");
  if (rank == world_size - 1) accelerator.set_trigger();
  EXPECT(accelerator.check_trigger(), "a trigger that the last rank set did not fire");
  EXPECT(!accelerator.check_trigger(), "a trigger is not reset");
}

}  // namespace

std::vector<Check> collectives_checks() {
  return {
      {"nested_gather", nested_gather},
      {"nested_reduce_and_broadcast", nested_reduce_and_broadcast},
      {"padding", padding},
      {"differing_ranks", differing_ranks},
      {"objects", objects},
      {"split_and_trigger", split_and_trigger},
  };
}
