#include "sharding/pipeline_schedule.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace coupler::sharding {

std::vector<PipelineStep> inference_schedule(int64_t micro_batches) {
  std::vector<PipelineStep> result;
  for (int64_t i = 0; i < micro_batches; ++i) result.push_back({StepKind::kForward, i});
  return result;
}

std::vector<PipelineStep> training_schedule(int stage, int stages, int64_t micro_batches) {
  const int64_t ahead = std::min<int64_t>(stages - 1 - stage, micro_batches);
  std::vector<PipelineStep> result = inference_schedule(ahead);
  for (int64_t i = 0; i < micro_batches; ++i) {
    if (ahead + i < micro_batches) result.push_back({StepKind::kForward, ahead + i});
    result.push_back({StepKind::kBackward, i});
  }
  return result;
}

namespace {

constexpr const char* kSubject = "split_points";

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, what, {.subject = kSubject, .hint = hint});
}

bool is_at(const std::string& layer, const std::string& point) {
  return layer == point ||
         (layer.size() > point.size() && layer.starts_with(point) && layer[point.size()] == '.');
}

}  // namespace

StageBegins cut_at(const std::vector<std::string>& layers, const std::vector<std::string>& points,
                   int stages) {
  if (points.size() + 1 != static_cast<size_t>(stages)) {
    refuse(
        fmt::format(
            "split_points names {} layers, but {} processes need {}: each named layer begins "
            "the next process's part",
            points.size(), stages, stages - 1),
        fmt::format("name {} of these, or use \"auto\": {}", stages - 1, fmt::join(layers, ", ")));
  }
  StageBegins begins = {0};
  for (const std::string& point : points) {
    const auto found = std::find_if(layers.begin(), layers.end(), [&](const std::string& layer) {
      return !point.empty() && is_at(layer, point);
    });
    if (found == layers.end()) {
      const std::string nearest = nearest_name(point, layers);
      refuse(fmt::format("split_points: the model has no layer '{}'{}", point,
                         nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)),
             fmt::format("its layers, in order: {}", fmt::join(layers, ", ")));
    }
    if (found == layers.begin()) {
      refuse(fmt::format("split_points: '{}' is the first layer, where the first process's part "
                         "already begins",
                         point),
             "name layers after it");
    }
    begins.push_back(static_cast<size_t>(found - layers.begin()));
  }
  std::sort(begins.begin(), begins.end());
  const auto twice = std::adjacent_find(begins.begin(), begins.end());
  if (twice != begins.end()) {
    refuse(fmt::format("split_points names the layer '{}' twice", layers[*twice]),
           "name each layer once");
  }
  return begins;
}

StageBegins balanced_cut(const std::vector<double>& costs, int stages) {
  const size_t layers = costs.size(), parts = static_cast<size_t>(stages);
  if (layers < parts) {
    refuse(fmt::format("the model has {} layers, too few for {} processes", layers, stages),
           "run fewer processes, or split the model into more and smaller layers");
  }
  std::vector<double> sums(layers + 1, 0);
  for (size_t i = 0; i < layers; ++i) sums[i + 1] = sums[i] + costs[i];
  struct Best {
    double most = std::numeric_limits<double>::infinity(), squares = 0;
    size_t begin = 0;
    bool operator<(const Best& other) const {
      return most < other.most || (most == other.most && squares < other.squares);
    }
  };
  // best[p][n]: the first n layers in p parts.
  std::vector<std::vector<Best>> best(parts + 1, std::vector<Best>(layers + 1));
  best[0][0].most = 0;
  for (size_t p = 1; p <= parts; ++p) {
    for (size_t n = p; n <= layers; ++n) {
      for (size_t begin = p - 1; begin < n; ++begin) {
        const double own = sums[n] - sums[begin];
        const Best& before = best[p - 1][begin];
        const Best here{std::max(before.most, own), before.squares + own * own, begin};
        if (here < best[p][n]) best[p][n] = here;
      }
    }
  }
  StageBegins begins(parts);
  for (size_t p = parts, n = layers; p > 0; --p) {
    n = best[p][n].begin;
    begins[p - 1] = n;
  }
  return begins;
}

}  // namespace coupler::sharding
