#include "sharding/pipeline_schedule.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace coupler::sharding {

namespace {

// All steps of one kind in their order, which is the same on every stage.
std::vector<PipelineStep> passes(StepKind kind, int stages, int64_t micro_batches,
                                 int virtual_stages) {
  std::vector<PipelineStep> result;
  for (int64_t first = 0; first < micro_batches; first += stages) {
    const int64_t end = std::min(first + stages, micro_batches);
    for (int turn = 0; turn < virtual_stages; ++turn) {
      const int place = kind == StepKind::kForward ? turn : virtual_stages - 1 - turn;
      for (int64_t i = first; i < end; ++i) result.push_back({kind, i, place});
    }
  }
  return result;
}

}  // namespace

std::vector<PipelineStep> inference_schedule(int stages, int64_t micro_batches,
                                             int virtual_stages) {
  return passes(StepKind::kForward, stages, micro_batches, virtual_stages);
}

// With virtual stages, the first group must come back to the stage before its first backward, and a
// pair of neighbors is two steps apart, since both directions take one.
std::vector<PipelineStep> training_schedule(int stage, int stages, int64_t micro_batches,
                                            int virtual_stages) {
  const auto forwards = passes(StepKind::kForward, stages, micro_batches, virtual_stages);
  const auto backwards = passes(StepKind::kBackward, stages, micro_batches, virtual_stages);
  const int after = stages - 1 - stage;
  const int wanted = virtual_stages == 1 ? after : 2 * after + (virtual_stages - 1) * stages;
  const size_t ahead = std::min(static_cast<size_t>(wanted), forwards.size());
  std::vector<PipelineStep> result(forwards.begin(),
                                   forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (size_t i = 0; i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) result.push_back(forwards[ahead + i]);
    result.push_back(backwards[i]);
  }
  return result;
}

double idle_share(int stages, int64_t micro_batches, int virtual_stages) {
  const double waits = stages - 1;
  return waits / (static_cast<double>(micro_batches) * virtual_stages + waits);
}

namespace {

constexpr const char* kSubject = "split_points";

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, what, {.subject = kSubject, .hint = hint});
}

// "3 processes", or "2 processes with 2 virtual stages each".
std::string text_of_stages(int stages, int virtual_stages) {
  return virtual_stages == 1
             ? fmt::format("{} processes", stages)
             : fmt::format("{} processes with {} virtual stages each", stages, virtual_stages);
}

bool is_at(const std::string& layer, const std::string& point) {
  return layer == point ||
         (layer.size() > point.size() && layer.starts_with(point) && layer[point.size()] == '.');
}

}  // namespace

StageBegins cut_at(const std::vector<std::string>& layers, const std::vector<std::string>& points,
                   int stages, int virtual_stages) {
  const int needed = stages * virtual_stages - 1;
  if (points.size() != static_cast<size_t>(needed)) {
    refuse(fmt::format("split_points names {} layers, but {} need {}: each named layer begins "
                       "the next process's part",
                       points.size(), text_of_stages(stages, virtual_stages), needed),
           fmt::format("name {} of these, or use \"auto\": {}", needed, fmt::join(layers, ", ")));
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

StageBegins balanced_cut(const std::vector<double>& costs, int stages, int virtual_stages) {
  const size_t layers = costs.size(),
               parts = static_cast<size_t>(stages) * static_cast<size_t>(virtual_stages);
  if (layers < parts) {
    refuse(fmt::format("the model has {} layers, too few for {}", layers,
                       text_of_stages(stages, virtual_stages)),
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
