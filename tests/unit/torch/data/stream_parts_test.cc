// Streams that skip, that give each rank a part of their own, and that save their position.
#include <ATen/Functions.h>

#include <random>

#include "loaders.h"

namespace coupler {
namespace {

using testing::batches_of;
using testing::expect_says;
using testing::kAll;
using testing::Numbers;
using testing::NumberStream;
using testing::refusal;
using testing::run_loaders;
using testing::Yielded;
using testing::yielded_by;

// Counts what is read.
struct Counted : NumberStream {
  using NumberStream::NumberStream;
  std::optional<int64_t> next() {
    ++reads;
    return NumberStream::next();
  }
  int64_t reads = 0;
};

struct Skipping : Counted {
  using Counted::Counted;
  size_t skip(size_t wanted) {
    const int64_t skipped = std::min(static_cast<int64_t>(wanted), count - place);
    place += skipped;
    return static_cast<size_t>(skipped);
  }
};

// A stream that cannot skip but knows its position.
struct Saving : Counted {
  using Counted::Counted;
  void save(StateDict& state) const { state.set("place", place); }
  void load(const StateDict& state) { place = state.integer("place"); }
};

// Part p of n has samples p, p + n, p + 2n, …
struct Divided {
  explicit Divided(int64_t samples) : count(samples) {}
  void shard(size_t of_part, size_t of_parts) {
    part = static_cast<int64_t>(of_part);
    parts = static_cast<int64_t>(of_parts);
  }
  void reset() { place = 0; }
  std::optional<int64_t> next() {
    const int64_t sample = part + place * parts;
    if (sample >= count) return std::nullopt;
    ++place;
    ++reads;
    return sample;
  }
  int64_t count, part = 0, parts = 1, place = 0, reads = 0;
};

struct SavingDivided : Divided {
  using Divided::Divided;
  void save(StateDict& state) const { state.set("place", place); }
  void load(const StateDict& state) { place = state.integer("place"); }
};

// Files of different lengths: part p of n has files p, p + n, …; sample k of file f is 100 f + k.
struct Files {
  explicit Files(Numbers of) : lengths(std::move(of)) {}
  void shard(size_t part, size_t of_parts) {
    first = part;
    parts = of_parts;
  }
  void reset() {
    file = first;
    place = 0;
  }
  std::optional<int64_t> next() {
    while (file < lengths.size() && place == lengths[file]) {
      file += parts;
      place = 0;
    }
    if (file >= lengths.size()) return std::nullopt;
    return static_cast<int64_t>(file) * 100 + place++;
  }
  Numbers lengths;
  size_t first = 0, parts = 1, file = 0;
  int64_t place = 0;
};

DataLoaderOptions random_options(std::mt19937_64& random, int64_t world_size) {
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  const bool split = below(2) == 1;
  return {.batch_size = (1 + below(5)) * (split ? world_size : 1),
          .drop_last = below(4) == 0,
          .split_batches = split,
          .even_batches = below(2) == 0,
          .workers = below(8) == 0 ? 1 : 0};
}

// Whatever is saved and skipped, ranks get what they would get from the plain stream, also when
// they resume.
template <class Stream>
void expect_as_from_a_plain_stream(uint64_t seed, int cases) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases; ++i) {
    const auto world_size = static_cast<int>(1 + random() % 4);
    const DataLoaderOptions options = random_options(random, world_size);
    const int64_t step =
        options.split_batches ? options.batch_size : options.batch_size * world_size;
    const int64_t samples = step + 20 + static_cast<int64_t>(random() % 60);
    const auto plain = [&] { return data_loader(NumberStream(samples), options); };
    const auto make = [&] { return data_loader(Stream(samples), options); };
    const Yielded expected = yielded_by(plain, world_size);
    const Yielded seen = yielded_by(make, world_size);
    ASSERT_EQ(seen.steps, expected.steps) << i;
    ASSERT_EQ(seen.own, expected.own) << i;
    const size_t stop = 1 + random() % expected.steps.size();
    const Yielded before = yielded_by(plain, world_size, stop),
                  begun = yielded_by(make, world_size, stop);
    ASSERT_EQ(begun.cursor.samples, before.cursor.samples);
    // On other numbers of ranks, too.
    const int after = options.split_batches ? world_size : static_cast<int>(1 + random() % 4);
    const Yielded from_plain = yielded_by(plain, after, kAll, &before.cursor);
    const Yielded resumed = yielded_by(make, after, kAll, &begun.cursor);
    ASSERT_EQ(resumed.steps, from_plain.steps) << i;
    ASSERT_EQ(resumed.own, from_plain.own) << i;
  }
}

TEST(StreamSkip, AThousandCases_GiveWhatThePlainStreamGives) {
  expect_as_from_a_plain_stream<Skipping>(1, 1000);
}
TEST(StreamState, AThousandCases_GiveWhatThePlainStreamGives) {
  expect_as_from_a_plain_stream<Saving>(2, 1000);
}

// The ten million samples of which each of four ranks must read a quarter, and nothing again.
constexpr int64_t kMany = 10'000'000;
constexpr int64_t kBatch = 1000, kReaders = 4, kStep = kBatch * kReaders;

template <class Stream>
void expect_resumed_at_nine_tenths(LoaderCursor cursor, bool in_parts) {
  auto loader = data_loader(Stream(kMany), {.batch_size = kBatch});
  loader.bind(3, kReaders, at::kCPU);
  cursor.samples = kMany / 10 * 9;
  loader.load_state(cursor);
  int64_t next = kMany / 10 * 9 + (in_parts ? 3 : 3 * kBatch), batches = 0;
  for (const Numbers& batch : loader) {
    ASSERT_EQ(batch.front(), next);
    if (++batches == 1) {
      EXPECT_LE(loader.dataset().reads, 2 * kStep);
    }
    next += kStep;
  }
  EXPECT_EQ(batches, kMany / 10 / kStep);
  // The tenth that is left, and the first step, which would fill an incomplete last one.
  EXPECT_LE(loader.dataset().reads, kMany / 10 / kReaders + kStep);
}

TEST(StreamResume, AtNineTenthsOfTenMillion_ReadsAQuarterOfTheRestAndNothingAgain) {
  LoaderCursor cursor;
  expect_resumed_at_nine_tenths<Skipping>(cursor, false);
  cursor.parts = kReaders;
  cursor.stream.set("place", kMany / 10 * 9 / kReaders);
  expect_resumed_at_nine_tenths<SavingDivided>(cursor, true);
}

TEST(StreamResume, WithoutSkipOrState_ReadsAgainAndSaysSo) {
  auto loader = data_loader(Counted(100), {.batch_size = 5});
  LoaderCursor cursor{.samples = 50};
  loader.load_state(cursor);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(batches_of(loader).size(), 10u);
  expect_says(::testing::internal::GetCapturedStderr(),
              "the stream is read again up to sample 50 of epoch 0");
  EXPECT_GE(loader.dataset().reads, 100);
  auto skipping = data_loader(Skipping(100), {.batch_size = 5});
  skipping.load_state(cursor);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(batches_of(skipping).size(), 10u);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// What the ranks yield that are threads, because parts are kept in step.
template <class Make>
std::vector<std::vector<Numbers>> epoch_in_parts(int world_size, const Make& make,
                                                 std::vector<Numbers>* own = nullptr) {
  std::vector<std::vector<Numbers>> seen(static_cast<size_t>(world_size));
  if (own != nullptr) own->resize(seen.size());
  run_loaders(world_size, [&](int rank, const auto& peers) {
    auto loader = make();
    loader.bind(rank, world_size, at::kCPU, peers);
    const auto core = loader.core();
    for (const Numbers& batch : loader) {
      const auto r = static_cast<size_t>(rank);
      seen[r].push_back(batch);
      if (own != nullptr)
        (*own)[r].insert((*own)[r].end(), batch.begin(), batch.begin() + core->own_samples());
      EXPECT_EQ(core->stands_in(), core->own_samples() == 0);
    }
  });
  return seen;
}

TEST(StreamParts, EachRank_ReadsItsOwn) {
  for (const int64_t workers : {0, 1}) {
    const auto seen = epoch_in_parts(
        2, [&] { return data_loader(Divided(9), {.batch_size = 2, .workers = workers}); });
    EXPECT_EQ(seen[0], (std::vector<Numbers>{{0, 2}, {4, 6}, {8, 0}}));
    EXPECT_EQ(seen[1], (std::vector<Numbers>{{1, 3}, {5, 7}, {5, 7}}));  // stands in
  }
  auto alone = data_loader(Divided(5), {.batch_size = 2, .even_batches = false});
  EXPECT_EQ(batches_of(alone), (std::vector<Numbers>{{0, 1}, {2, 3}, {4}}));
  // Rank 0 reads everything if it reads for all.
  run_loaders(2, [&](int rank, const auto& peers) {
    auto loader = data_loader(Divided(6), {.batch_size = 1, .dispatch_batches = true},
                              [](const Numbers& samples) { return at::tensor(samples); });
    loader.bind(rank, 2, at::kCPU, peers);
    Numbers seen;
    for (const at::Tensor& batch : loader) seen.push_back(batch.template item<int64_t>());
    EXPECT_EQ(seen, (rank == 0 ? Numbers{0, 2, 4} : Numbers{1, 3, 5}));
  });
}

TEST(StreamParts, OfDifferentLengths_GiveEverySampleOnceInStep) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    const int world_size = 2 + static_cast<int>(random() % 2);
    Numbers lengths(static_cast<size_t>(world_size) + random() % 3), expected;
    for (size_t f = 0; f < lengths.size(); ++f) {
      lengths[f] = 1 + static_cast<int64_t>(random() % 9);
      for (int64_t k = 0; k < lengths[f]; ++k)
        expected.push_back(static_cast<int64_t>(f) * 100 + k);
    }
    const DataLoaderOptions options{.batch_size = 1 + static_cast<int64_t>(random() % 3),
                                    .workers = static_cast<int64_t>(random() % 2)};
    std::vector<Numbers> own;
    const auto seen = epoch_in_parts(
        world_size, [&] { return data_loader(Files(lengths), options); }, &own);
    Numbers all;
    for (const Numbers& of_rank : own) all.insert(all.end(), of_rank.begin(), of_rank.end());
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all, expected) << i;
    for (const auto& of_rank : seen) {
      ASSERT_EQ(of_rank.size(), seen[0].size()) << i;
      for (const Numbers& batch : of_rank)
        ASSERT_EQ(batch.size(), static_cast<size_t>(options.batch_size));
    }
  }
}

TEST(StreamParts, DropLast_EndsEveryRankWithTheFirst) {
  const auto make = [] {
    return data_loader(Files({7, 5, 9}), {.batch_size = 2, .drop_last = true});
  };
  const auto seen = epoch_in_parts(3, make);
  EXPECT_EQ(seen[0], (std::vector<Numbers>{{0, 1}, {2, 3}}));
  EXPECT_EQ(seen[1], (std::vector<Numbers>{{100, 101}, {102, 103}}));
  EXPECT_EQ(seen[2], (std::vector<Numbers>{{200, 201}, {202, 203}}));
}

// What a loop yields that counts, for up to `steps` steps, and the cursor after them.
template <class Loader>
LoaderCursor collect(Loader& loader, std::vector<Numbers>& seen, size_t steps = kAll) {
  LoaderCursor cursor;
  size_t step = 0;
  for (const Numbers& batch : loader) {
    if (!loader.core()->stands_in()) seen.push_back(batch);
    cursor = loader.state();
    if (++step == steps) break;
  }
  return cursor;
}

template <class Stream>
void expect_parts_resumed(int64_t workers) {
  const DataLoaderOptions options{.batch_size = 2, .workers = workers};
  constexpr int kWorld = 3;
  constexpr size_t kSteps = 5;  // of the longest part
  for (size_t stop = 1; stop < kSteps; ++stop) {
    run_loaders(kWorld, [&](int rank, const auto& peers) {
      std::vector<Numbers> whole, seen;
      auto loader = data_loader(Stream(25), options);
      loader.bind(rank, kWorld, at::kCPU, peers);
      collect(loader, whole);
      const LoaderCursor cursor = collect(loader, seen, stop);
      EXPECT_EQ(cursor.epoch, 1);
      EXPECT_EQ(cursor.parts, kWorld);
      auto resumed = data_loader(Stream(25), options);
      resumed.load_state(cursor);
      resumed.bind(rank, kWorld, at::kCPU, peers);
      EXPECT_EQ(resumed.state().parts, kWorld);
      collect(resumed, seen);
      EXPECT_EQ(seen, whole) << stop;
    });
  }
}

TEST(StreamParts, InterruptedEpoch_GoesOnExactly) {
  for (const int64_t workers : {0, 1}) {
    expect_parts_resumed<SavingDivided>(workers);
    expect_parts_resumed<Divided>(workers);  // each part is read again
  }
}

TEST(StreamParts, OnAnotherNumberOfRanks_AreRefusedWithinAnEpochOnly) {
  LoaderCursor cursor{.samples = 12, .parts = 3};
  auto loader = data_loader(SavingDivided(25), {.batch_size = 2});
  loader.bind(0, 2, at::kCPU);
  const std::string expected =
      "within an epoch of a stream that was read in 3 parts, but this job reads it in 2 parts";
  expect_says(refusal([&] { loader.load_state(cursor); }), expected);
  auto unbound = data_loader(SavingDivided(25), {.batch_size = 2});
  unbound.load_state(cursor);
  unbound.bind(1, 2, at::kCPU);
  expect_says(refusal([&] { batches_of(unbound); }), expected);
  unbound.bind(1, 3, at::kCPU);
  cursor.stream.set("place", 4);
  unbound.load_state(cursor);
  EXPECT_EQ(batches_of(unbound).front(), (Numbers{13, 16}));
  auto whole = data_loader(NumberStream(25), {.batch_size = 2});
  whole.bind(0, 3, at::kCPU);
  expect_says(refusal([&] { whole.load_state(cursor); }), "but this job reads it as a whole");
  cursor.samples = 0;
  loader.load_state(cursor);  // an epoch's start fits any number
  EXPECT_EQ(batches_of(loader).front(), (Numbers{0, 2}));
}

TEST(StreamParts, WrongParts_AreNamed) {
  run_loaders(3, [](int rank, const auto& peers) {
    auto loader = data_loader(Files({3, 2}), {});
    loader.bind(rank, 3, at::kCPU, peers);
    expect_says(refusal([&] { batches_of(loader); }), "rank 2 has no data at all");
  });
  run_loaders(2, [](int rank, const auto& peers) {
    auto loader = data_loader(Files({3, 9}), {.batch_size = 4, .drop_last = true});
    loader.bind(rank, 2, at::kCPU, peers);
    expect_says(refusal([&] { batches_of(loader); }),
                "with drop_last every rank needs 4 samples (batch_size), but rank 0's part has "
                "fewer");
  });
  struct Undivided : Divided {
    using Divided::Divided;
    void shard(size_t, size_t) {}
  };
  ::testing::internal::CaptureStderr();
  run_loaders(2, [](int rank, const auto& peers) {
    auto loader = data_loader(Undivided(8), {.batch_size = 2},
                              [](const Numbers& samples) { return at::tensor(samples); });
    loader.bind(rank, 2, at::kCPU, peers);
    for ([[maybe_unused]] auto& batch : loader) {
    }
  });
  expect_says(::testing::internal::GetCapturedStderr(),
              "rank 1 reads the same first batch of the stream as rank 0: let shard(part, parts)");
}

TEST(StreamState, ThatCannotBeRestored_IsNamedAndTheCursorKept) {
  struct Broken : Saving {
    using Saving::Saving;
    void load(const StateDict& state) {
      if (broken) throw std::runtime_error("the shard was deleted");
      if (!forgetful) Saving::load(state);
    }
    bool broken = false, forgetful = false;
  };
  auto loader = data_loader(Broken(20), {.batch_size = 2});
  LoaderCursor cursor{.epoch = 3, .samples = 8};
  cursor.stream.set("place", 8);
  loader.load_state(cursor);
  loader.dataset().broken = true;
  expect_says(
      refusal([&] { batches_of(loader); }),
      "batch 0 of epoch 3 (samples 8 to 9 of the stream): the stream's state after 8 samples "
      "cannot be restored: the shard was deleted");
  loader.dataset().broken = false;
  loader.dataset().forgetful = true;
  expect_says(refusal([&] { batches_of(loader); }),
              "cannot be restored: 'place' has another value in save() right after load()");
  loader.dataset().forgetful = false;
  EXPECT_EQ(batches_of(loader).front(), (Numbers{8, 9}));
  EXPECT_EQ(loader.epoch(), 3);

  struct Overshooting : Skipping {
    using Skipping::Skipping;
    size_t skip(size_t wanted) { return wanted + 1; }
  };
  auto overshooting = data_loader(Overshooting(20), {.batch_size = 2});
  overshooting.skip_first_batches(3);
  expect_says(refusal([&] { batches_of(overshooting); }), "the stream's skip(4) returned 5");
  auto short_one = data_loader(Skipping(20), {.batch_size = 2});
  short_one.skip_first_batches(11);
  expect_says(refusal([&] { batches_of(short_one); }),
              "the stream has 20 samples, but 22 were to be skipped");
}

TEST(StreamParts, SkippedBatches_AreSkippedInEachPart) {
  const auto seen = epoch_in_parts(2, [] {
    auto loader = data_loader(Divided(12), {.batch_size = 2});
    return loader;
  });
  run_loaders(2, [&](int rank, const auto& peers) {
    auto loader = data_loader(Divided(12), {.batch_size = 2});
    loader.bind(rank, 2, at::kCPU, peers);
    loader.skip_first_batches(1);
    const auto& whole = seen[static_cast<size_t>(rank)];
    EXPECT_EQ(batches_of(loader), (std::vector<Numbers>(whole.begin() + 1, whole.end())));
  });
}

}  // namespace
}  // namespace coupler
