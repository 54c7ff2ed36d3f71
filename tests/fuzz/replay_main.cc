// main() of a fuzzer without libFuzzer: runs the harness on every seed, then on mutations of the
// seeds, the same in every run.
//   fuzz_NAME SEEDS [MUTATIONS]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Optional: a harness may mutate its inputs itself; it calls LLVMFuzzerMutate for parts of them.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t limit, unsigned seed)
    __attribute__((weak));
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t limit);

namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSeed = 20261122;
constexpr int kMutations = 20'000;
constexpr size_t kMaxInput = size_t{64} << 10;
// Fragments that exercise the formats' limits.
constexpr std::array<const char*, 8> kWords = {"\"", "{", "}", "[", "-1", "18446744073709551615",
                                               ",",  ":"};

// Runs the harness. The current input is in a file, which remains if the harness ends the program.
class Harness {
 public:
  Harness()
      : path_(fs::temp_directory_path() / ("coupler-fuzz-" + std::to_string(::getpid()))),
        file_(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {}
  ~Harness() {
    ::close(file_);
    ::unlink(path_.c_str());
  }
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  const fs::path& path() const { return path_; }

  void run(const std::string& input) const {
    if (::ftruncate(file_, 0) != 0 ||
        ::pwrite(file_, input.data(), input.size(), 0) != static_cast<ssize_t>(input.size())) {
      std::perror(path_.c_str());
      std::exit(2);
    }
    // A heap copy of the exact size, so that the address sanitizer detects reads past the end.
    const std::vector<uint8_t> exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }

 private:
  fs::path path_;
  int file_;
};

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  // One to four changes to one of the seeds.
  std::string next() {
    std::string text = seed();
    for (size_t change = 0, changes = 1 + below(4); change < changes; ++change) mutate(text);
    text.resize(std::min(text.size(), kMaxInput));
    return text;
  }

  // A seed, mutated by the harness.
  std::string next_custom() {
    const std::string& text = seed();
    std::vector<uint8_t> bytes(kMaxInput);
    const size_t size = std::min(text.size(), kMaxInput);
    std::copy_n(text.begin(), size, bytes.begin());
    const size_t changed =
        LLVMFuzzerCustomMutator(bytes.data(), size, kMaxInput, static_cast<unsigned>(random_()));
    return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(changed)};
  }

  // Flips a bit, changes a byte, inserts a word, erases or repeats bytes, truncates, or takes the
  // end of another seed.
  void mutate(std::string& text) {
    if (text.empty()) text = seed() + " ";
    const size_t place = below(text.size());
    switch (below(7)) {
      case 0:
        text[place] = static_cast<char>(text[place] ^ (1 << below(8)));
        break;
      case 1:
        text[place] = static_cast<char>(random_());
        break;
      case 2:
        text.insert(place, kWords[below(kWords.size())]);
        break;
      case 3:
        text.erase(place, 1 + below(8));
        break;
      case 4:
        text.insert(place, text.substr(place, 1 + below(64)));
        break;
      case 5:
        text.resize(place);
        break;
      default: {
        const std::string& other = seed();
        text.resize(place);
        text += other.substr(below(other.size() + 1));
      }
    }
  }

  // Not a standard distribution, since these differ between standard libraries.
  size_t below(size_t limit) { return random_() % limit; }
  const std::string& seed() { return seeds_[below(seeds_.size())]; }

  std::vector<std::string> seeds_;
  std::mt19937 random_{kSeed};
};

Mutator* the_mutator = nullptr;  // for LLVMFuzzerMutate

std::vector<std::string> read_seeds(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const fs::path& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t limit) {
  std::string text(data, data + size);
  the_mutator->mutate(text);
  const size_t changed = std::min(text.size(), limit);
  std::copy_n(text.begin(), changed, data);
  return changed;
}

int main(int count, char** arguments) {
  if (count != 2 && count != 3) {
    std::fprintf(stderr, "usage: %s SEEDS [MUTATIONS]\n", arguments[0]);
    return 2;
  }
  const auto seeds = read_seeds(arguments[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "%s holds no seeds\n", arguments[1]);
    return 2;
  }
  const int mutations = count == 3 ? std::atoi(arguments[2]) : kMutations;
  const Harness harness;
  std::printf("the current input is in %s\n", harness.path().c_str());
  std::fflush(stdout);
  harness.run("");
  for (const std::string& seed : seeds) harness.run(seed);
  Mutator mutator(seeds);
  the_mutator = &mutator;
  for (int i = 0; i < mutations; ++i) {
    const bool custom = LLVMFuzzerCustomMutator != nullptr && i % 2 == 0;
    harness.run(custom ? mutator.next_custom() : mutator.next());
  }
  std::printf("%zu seeds and %d mutations\n", seeds.size(), mutations);
  return 0;
}
