// What `coupler test` checks, by section. Every rank of the job runs the same sections in the same
// order on one thread. A rank records what is wrong instead of throwing, so that the ranks stay in
// step and all findings can be collected.
#pragma once

#include <coupler/accelerator.h>

#include <string>
#include <vector>

namespace coupler::self_test {

// What is wrong on this rank; keeps only the first few.
class Findings {
 public:
  void expect(bool condition, const std::string& otherwise) {
    if (!condition && texts_.size() < kMost) texts_.push_back(otherwise);
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  static constexpr size_t kMost = 3;
  std::vector<std::string> texts_;
};

struct Section {
  const char* name;
  void (*run)(Accelerator& accelerator, Findings& findings);
};

// Whether all ranks have the same elements.
bool same_everywhere(Accelerator& accelerator, const at::Tensor& tensor);

// Each throws Error only if the job cannot go on.
void initialization(Accelerator& accelerator, Findings& findings);
void process_execution(Accelerator& accelerator, Findings& findings);
void random_numbers(Accelerator& accelerator, Findings& findings);
void collectives(Accelerator& accelerator, Findings& findings);
void split_between_processes(Accelerator& accelerator, Findings& findings);
void trigger(Accelerator& accelerator, Findings& findings);
void data_loaders(Accelerator& accelerator, Findings& findings);
void training(Accelerator& accelerator, Findings& findings);

}  // namespace coupler::self_test
