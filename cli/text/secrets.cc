#include "cli/text/secrets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace coupler::cli {

bool may_be_secret(std::string_view name) {
  // PRECONDITION_TRANSPORTS is the key by which Open MPI's ranks authenticate each other;
  // COUPLER_OVERRIDES holds whole -o arguments, including options of backends.
  constexpr std::array<std::string_view, 13> kWords = {"SECRET",
                                                       "TOKEN",
                                                       "PASS",
                                                       "KEY",
                                                       "CREDENTIAL",
                                                       "AUTH",
                                                       "JWT",
                                                       "COOKIE",
                                                       "NONCE",
                                                       "LOGIN",
                                                       "CERT",
                                                       "OVERRIDES",
                                                       "PRECONDITION_TRANSPORTS"};
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return upper.find(word) != std::string::npos; });
}

bool is_reported_variable(std::string_view name) {
  constexpr std::array<std::string_view, 10> kPrefixes = {"COUPLER_",  "MASTER_", "OMPI_", "SLURM_",
                                                          "OMP_",      "NCCL_",   "GLOO_", "PMI_",
                                                          "MPI_LOCAL", "PET_"};
  constexpr std::array<std::string_view, 9> kNames = {
      "RANK",           "WORLD_SIZE",           "LOCAL_RANK", "LOCAL_WORLD_SIZE",
      "LOCAL_SIZE",     "JOB_COMPLETION_INDEX", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES",
      "LD_LIBRARY_PATH"};
  return std::any_of(
             kPrefixes.begin(), kPrefixes.end(),
             [&](std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; }) ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::string printable(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      clean += fmt::format("\\x{:02x}", byte);
    } else {
      clean += c;
    }
  }
  return clean;
}

}  // namespace coupler::cli
