// Collectives of tensors on a device, alone and together with CPU tensors.
#include <coupler/coupler.h>
#include <coupler/objects.h>

#include "device.h"

namespace {

using coupler::Accelerator;

torch::Tensor own_rows(Accelerator& accelerator, int64_t rows) {
  return torch::arange(rows * 3, torch::kFloat).view({rows, 3}) + 100.0F * accelerator.rank();
}

torch::Tensor all_rows(Accelerator& accelerator, int64_t rows) {
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < accelerator.world_size(); ++rank) {
    parts.push_back(torch::arange(rows * 3, torch::kFloat).view({rows, 3}) + 100.0F * rank);
  }
  return torch::cat(parts);
}

void expect_there(Accelerator& accelerator, const torch::Tensor& tensor,
                  const torch::Tensor& expected, const std::string& what) {
  EXPECT(tensor.device() == accelerator.device(), what + " is on " + tensor.device().str());
  EXPECT(torch::equal(tensor.cpu(), expected), what + " has different values");
}

// Small tensors are packed together; large ones are sent separately.
void tensors_are_gathered(Accelerator& accelerator) {
  for (const int64_t rows : {int64_t{1}, int64_t{4}, int64_t{30000}}) {
    const auto own = own_rows(accelerator, rows).to(accelerator.device());
    expect_there(accelerator, accelerator.gather(own), all_rows(accelerator, rows), "gather");
  }
}

void structures_are_gathered(Accelerator& accelerator) {
  const auto own = own_rows(accelerator, 2);
  const std::map<std::string, std::vector<torch::Tensor>> value = {
      {"device", {own.to(accelerator.device()), (own * 2).to(accelerator.device())}},
      {"host", {own, own + 1}}};
  const auto gathered = accelerator.gather(value);
  const auto expected = all_rows(accelerator, 2);
  expect_there(accelerator, gathered.at("device")[0], expected, "the first");
  expect_there(accelerator, gathered.at("device")[1], expected * 2, "the second");
  EXPECT(gathered.at("host")[0].is_cpu(), "a CPU tensor is on another device");
  EXPECT(torch::equal(gathered.at("host")[1], expected + 1), "the CPU tensor has different values");
}

void tensors_are_reduced_and_broadcast(Accelerator& accelerator) {
  const auto own = own_rows(accelerator, 4);
  const auto there = own.to(accelerator.device());
  torch::Tensor sum = torch::zeros_like(own);
  for (int rank = 0; rank < accelerator.world_size(); ++rank) {
    sum += own + 100.0F * static_cast<float>(rank - accelerator.rank());
  }
  expect_there(accelerator, accelerator.reduce(there), sum, "the sum");
  expect_there(accelerator, accelerator.reduce(there, coupler::ReduceOp::kMean),
               sum / accelerator.world_size(), "the mean");
  const int last = accelerator.world_size() - 1;
  expect_there(accelerator, accelerator.broadcast(there, last),
               own + 100.0F * static_cast<float>(last - accelerator.rank()), "the broadcast");
  expect_there(accelerator, there, own, "the input");
}

void tensors_are_padded(Accelerator& accelerator) {
  const int64_t rows = 1 + accelerator.rank();
  const auto padded =
      accelerator.pad_across_processes(own_rows(accelerator, rows).to(accelerator.device()), 0, -1);
  EXPECT(padded.size(0) == accelerator.world_size(), "it has " + std::to_string(padded.size(0)));
  EXPECT(padded.device() == accelerator.device(), "it is on " + padded.device().str());
  EXPECT(torch::equal(padded.cpu().slice(0, 0, rows), own_rows(accelerator, rows)),
         "the rows differ");
  EXPECT((padded.cpu().slice(0, rows) == -1).all().item<bool>(), "the padding differs");
}

void own_rows_are_gathered_for_metrics(Accelerator& accelerator) {
  const int64_t samples = 3 * accelerator.world_size() + 1;  // the last step repeats some samples
  const auto data = torch::arange(samples, torch::kFloat).view({samples, 1});
  auto loader = coupler::data_loader(coupler::TensorDataset(data, data), {.batch_size = 2});
  auto batches = accelerator.prepare(loader);
  std::vector<torch::Tensor> seen;
  for (auto& batch : batches) {
    const auto gathered =
        accelerator.gather_for_metrics(std::vector<torch::Tensor>{batch.data, batch.target * 2});
    EXPECT(gathered[0].device() == accelerator.device(), "it is on another device");
    seen.push_back(gathered[0].cpu());
    EXPECT(torch::equal(gathered[1].cpu(), seen.back() * 2), "two leaves do not match");
  }
  EXPECT(torch::equal(torch::cat(seen), data), "samples are missing or repeated");
}

void objects_travel_beside_tensors(Accelerator& accelerator) {
  const std::vector<std::string> names =
      coupler::gather_object(accelerator, "rank " + std::to_string(accelerator.rank()));
  EXPECT(static_cast<int>(names.size()) == accelerator.world_size(), "names are missing");
  EXPECT(names.back() == "rank " + std::to_string(accelerator.world_size() - 1), names.back());
  accelerator.wait_for_everyone();
}

void another_kind_of_device_is_named(Accelerator& accelerator) {
  if (accelerator.world_size() == 1) return;
  const auto own = own_rows(accelerator, 2);
  const std::string text = error_of(
      [&] { accelerator.gather(accelerator.rank() == 0 ? own : own.to(accelerator.device())); });
  const std::string type = c10::DeviceTypeName(accelerator.device().type(), /*lower_case=*/true);
  EXPECT(text.find("on test_accelerator") != std::string::npos ||
             text.find("on " + type) != std::string::npos,
         text);
}

}  // namespace

std::vector<Check> collective_checks() {
  return {
      {"tensors_are_gathered", tensors_are_gathered},
      {"structures_are_gathered", structures_are_gathered},
      {"tensors_are_reduced_and_broadcast", tensors_are_reduced_and_broadcast},
      {"tensors_are_padded", tensors_are_padded},
      {"own_rows_are_gathered_for_metrics", own_rows_are_gathered_for_metrics},
      {"objects_travel_beside_tensors", objects_travel_beside_tensors},
      {"another_kind_of_device_is_named", another_kind_of_device_is_named},
  };
}
