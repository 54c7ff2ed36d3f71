#include "plugin/bases.h"

#include <coupler/bases.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/error.h"
#include "config/validate.h"

namespace coupler::plugin {
namespace {

const db_wanted_bases* bases_extension(const DistributedBackend& table) {
  if (!DB_HAS(&table, DistributedBackend, get_extension) || table.get_extension == nullptr) {
    return nullptr;
  }
  return static_cast<const db_wanted_bases*>(table.get_extension(DB_BASES));
}

[[noreturn]] void refuse_list(const DistributedBackend& table, const std::string& what) {
  throw Error(ErrorCode::kPlugin,
              fmt::format("the backend '{}' lists its bases wrongly: {}", table.name, what),
              {.subject = table.name, .hint = "correct the plugin; coupler/bases.h explains it"});
}

WantedBase read_wanted(const DistributedBackend& table, const db_wanted_base* wanted) {
  if (wanted == nullptr || !DB_HAS(wanted, db_wanted_base, ranks)) {
    refuse_list(table, "an entry is NULL or its struct_size is too small");
  }
  if (wanted->role == nullptr || *wanted->role == '\0') refuse_list(table, "a role has no name");
  if (wanted->ranks != DB_BASE_WORLD && wanted->ranks != DB_BASE_MACHINE) {
    refuse_list(table, fmt::format("role '{}' has ranks {}, which this version does not know",
                                   wanted->role, wanted->ranks));
  }
  return {.role = wanted->role,
          .option = wanted->role,
          .otherwise = wanted->otherwise == nullptr ? "auto" : wanted->otherwise,
          .description = wanted->description == nullptr ? "" : wanted->description,
          .of_machine = wanted->ranks == DB_BASE_MACHINE};
}

uint64_t memory_kinds(uint64_t capabilities) {
  const uint64_t named = capabilities & (DB_CAP_HOST_MEMORY | DB_CAP_CUDA_MEMORY);
  return named != 0 ? named : uint64_t{DB_CAP_HOST_MEMORY};
}

std::string memory_text(uint64_t capabilities) {
  const bool host = (memory_kinds(capabilities) & DB_CAP_HOST_MEMORY) != 0;
  return host ? "host memory" : "a device's memory";
}

}  // namespace

std::vector<WantedBase> wanted_bases(const DistributedBackend& table) {
  if ((table.capabilities & DB_CAP_NEEDS_BASE) == 0) return {};
  const db_wanted_bases* list = bases_extension(table);
  if (list == nullptr) {
    return {{.role = "world",
             .option = "base",
             .otherwise = "auto",
             .description = "The transport it runs on: a plugin's name, a path to a plugin's "
                            "file, or auto, as for backend.use."}};
  }
  if (!DB_HAS(list, db_wanted_bases, base_count) || list->base_count == 0) {
    refuse_list(table, "it is empty");
  }
  std::vector<WantedBase> result;
  for (uint64_t i = 0; i < list->base_count; ++i) {
    WantedBase wanted = read_wanted(table, list->bases[i]);
    if (std::any_of(result.begin(), result.end(),
                    [&](const WantedBase& other) { return other.role == wanted.role; })) {
      refuse_list(table, fmt::format("role '{}' is there twice", wanted.role));
    }
    result.push_back(std::move(wanted));
  }
  return result;
}

bool is_composite(const DistributedBackend& table) {
  return (table.capabilities & DB_CAP_NEEDS_BASE) != 0 && bases_extension(table) != nullptr;
}

bool composes_machines(const DistributedBackend& table) {
  const std::vector<WantedBase> bases = wanted_bases(table);
  return std::any_of(bases.begin(), bases.end(),
                     [](const WantedBase& base) { return base.of_machine; });
}

std::string use_of(const WantedBase& base, const config::BackendConfig& backend,
                   const std::string& wrapper) {
  return config::wrapper_base(backend, wrapper, base.option, base.otherwise);
}

Error about_base(const Error& error, const DistributedBackend& wrapper, const WantedBase& wanted,
                 const std::string& use) {
  const std::string key = fmt::format("backend.{}.{}", wrapper.name, wanted.option);
  return {error.code(),
          fmt::format("{} = \"{}\": {}", key, use, without_hint(error.what())),
          {error.detail().rank, key,
           error.detail().subject == "backend.use"
               ? fmt::format("set {} to one of these names or to a path with a slash, or add the "
                             "plugin's folder to backend.plugin_path or COUPLER_PLUGIN_PATH",
                             key)
               : error.detail().hint}};
}

std::string memory_problem(const DistributedBackend& wrapper, uint64_t base_capabilities) {
  if ((memory_kinds(wrapper.capabilities) & memory_kinds(base_capabilities)) != 0) return "";
  return fmt::format("it moves only {}, and {} works on {}", memory_text(base_capabilities),
                     wrapper.name, memory_text(wrapper.capabilities));
}

void check_memory(const DistributedBackend& wrapper, const WantedBase& wanted,
                  const std::string& base, uint64_t base_capabilities) {
  const std::string problem = memory_problem(wrapper, base_capabilities);
  if (problem.empty()) return;
  const std::string key = fmt::format("backend.{}.{}", wrapper.name, wanted.option);
  fail_config(
      fmt::format("{} = \"{}\": {}", key, base, problem), key,
      fmt::format("set {} to a transport for {} (`coupler plugins --matrix` lists them), or "
                  "backend.use to \"{}\" alone; over host memory, a device's tensors are "
                  "copied",
                  key, memory_text(wrapper.capabilities), base));
}

void check_base(const DistributedBackend& wrapper, const WantedBase& wanted,
                const DistributedBackend& base) {
  const bool composes = is_composite(base);
  if ((base.capabilities & DB_CAP_NEEDS_BASE) == 0 || (composes && !is_composite(wrapper))) {
    return check_memory(wrapper, wanted, base.name, base.capabilities);
  }
  const std::string key = fmt::format("backend.{}.{}", wrapper.name, wanted.option);
  fail_config(
      fmt::format("{} = \"{}\" needs a base itself; a base must be a transport{}", key, base.name,
                  composes ? ", and a backend that composes transports takes no other one" : ""),
      key, "name a transport; `coupler plugins` lists the backends and which need a base");
}

}  // namespace coupler::plugin
