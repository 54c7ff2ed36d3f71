#include "accelerator/trace_file.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/durable_file.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kOrigin = "coupler";
// Process numbers of a rank in a merged trace begin at its rank times this.
constexpr int64_t kProcesses = 10'000'000;

json read_trace(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  json trace = json::parse(in, nullptr, /*allow_exceptions=*/false);
  const auto events = trace.is_object() ? trace.find("traceEvents") : trace.end();
  if (!trace.is_object() || events == trace.end() || !events->is_array())
    throw Error(
        ErrorCode::kIo, fmt::format("{} is not a trace", path),
        {.rank = -1, .subject = path, .hint = "its process may have ended while writing it"});
  return trace;
}

double microseconds(int64_t nanoseconds, int64_t base) {
  return static_cast<double>(nanoseconds - base) / 1e3;
}

std::string dump_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Moves an event into the common time, and its process id into the rank's range.
void move_event(json& event, int64_t rank, double shift) {
  if (event.contains("ts") && event["ts"].is_number())
    event["ts"] = event["ts"].get<double>() + shift;
  const bool numbered = event.contains("pid") && event["pid"].is_number_integer();
  if (numbered) {
    event["pid"] = rank * kProcesses + event["pid"].get<int64_t>() % kProcesses;
  } else if (event.contains("pid") && event["pid"].is_string()) {
    event["pid"] = fmt::format("rank {} {}", rank, event["pid"].get<std::string>());
  }
  if (numbered && event.value("name", "") == "process_name")
    event["args"]["name"] = fmt::format("rank {}", rank);
  // Each rank numbers arrows from 1, so ids get the rank as prefix.
  if (event.contains("id"))
    event["id"] =
        fmt::format("{}-{}", rank,
                    event["id"].is_string() ? event["id"].get<std::string>() : event["id"].dump());
}

void add_flops(json& events, const std::map<uint64_t, uint64_t>& flops) {
  for (json& event : events) {
    if (event.value("cat", "") != "cpu_op") continue;
    json& arguments = event["args"];
    const auto found = flops.find(arguments.value("External id", uint64_t{0}));
    if (found != flops.end()) arguments["flops"] = found->second;
  }
}

}  // namespace

void add_spans(const std::string& path, const std::vector<KeptSpan>& spans,
               const std::map<uint64_t, uint64_t>& flops, const TraceOrigin& origin) {
  json trace = read_trace(path);
  if (!flops.empty()) add_flops(trace["traceEvents"], flops);
  const int64_t base = trace.value("baseTimeNanoseconds", int64_t{0});
  json& events = trace["traceEvents"];
  int64_t process = 0;
  for (const json& event : events) {
    if (event.contains("pid") && event["pid"].is_number_integer()) {
      process = event["pid"];
      break;
    }
  }
  int64_t number = 0;
  for (const KeptSpan& kept : spans) {
    const SpanRecord& span = kept.span;
    json event = {{"name", span.name},
                  {"cat", blocks_thread(span.kind) ? "wait" : "communication"},
                  {"pid", process},
                  {"tid", kept.thread},
                  {"ts", microseconds(span.begin, base)},
                  {"args", {{"bytes", span.bytes}, {"number", span.number}}}};
    if (span.group != nullptr) event["args"]["group"] = span.group;
    if (span.kind == SpanKind::kOperation) {
      json end = event;
      event["ph"] = "b";
      end["ph"] = "e";
      end["ts"] = microseconds(span.end, base);
      event["id"] = end["id"] = fmt::format("coupler-{}", ++number);
      events.push_back(std::move(event));
      events.push_back(std::move(end));
    } else {
      event["ph"] = "X";
      event["dur"] = static_cast<double>(span.end - span.begin) / 1e3;
      events.push_back(std::move(event));
    }
  }
  trace[kOrigin] = {{"rank", origin.rank}, {"clockOffsetNanoseconds", origin.clock_offset}};
  replace_file(path, dump_text(trace));
}

// Holds only one rank's trace in memory at a time.
void merge_traces(const std::vector<std::string>& paths, const std::string& merged) {
  const std::string temporary = merged + ".new";
  fs::remove(temporary);  // left by a killed process
  DurableFile out(temporary);
  const auto write = [&out](const std::string& text) { out.write(text.data(), text.size()); };
  int64_t base = 0;
  std::string before;  // what separates the next event
  for (const std::string& path : paths) {
    json trace = read_trace(path);
    const json origin = trace.value(kOrigin, json::object());
    const int64_t own_base = trace.value("baseTimeNanoseconds", int64_t{0});
    if (before.empty()) {
      base = own_base;
      write(fmt::format(
          "{{\"schemaVersion\":{},\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{},"
          "\"traceEvents\":[",
          trace.value("schemaVersion", 1), base));
      before = "\n";
    }
    const int64_t rank = origin.value("rank", int64_t{0});
    const double shift =
        static_cast<double>(own_base - base + origin.value("clockOffsetNanoseconds", int64_t{0})) /
        1e3;
    for (json& event : trace["traceEvents"]) {
      move_event(event, rank, shift);
      write(before + dump_text(event));
      before = ",\n";
    }
  }
  write("\n]}\n");
  out.finish();
  rename_durably(temporary, merged);
}

}  // namespace coupler
