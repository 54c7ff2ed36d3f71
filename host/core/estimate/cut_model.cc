#include "estimate/cut_model.h"

#include "sharding/pipeline_schedule.h"

namespace coupler::estimate {

std::vector<LoggedModel> cut_model(const LoggedModel& model, const LayerChain& chain, int stages) {
  std::vector<double> bytes;
  for (const std::vector<size_t>& layer : chain) {
    double sum = 0;
    for (const size_t p : layer) sum += static_cast<double>(model.parameters[p].bytes());
    bytes.push_back(sum);
  }
  const sharding::StageBegins begins = sharding::balanced_cut(bytes, stages);
  std::vector<LoggedModel> result;
  for (size_t stage = 0; stage < begins.size(); ++stage) {
    const size_t end = stage + 1 < begins.size() ? begins[stage + 1] : chain.size();
    std::vector<bool> keeps(model.parameters.size());
    for (size_t layer = begins[stage]; layer < end; ++layer) {
      for (const size_t p : chain[layer]) keeps[p] = true;
    }
    LoggedModel& part = result.emplace_back(model);
    for (size_t p = 0; p < keeps.size(); ++p) {
      if (!keeps[p]) part.parameters[p].leave_to_others();
    }
  }
  return result;
}

}  // namespace coupler::estimate
